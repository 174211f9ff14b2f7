/**
 * What the runtime's tests call: every kind of type, exceptions, one-way methods
 * and global pointers.
 */
include "../../idl/bifrost.thrift"

namespace go testsvc

typedef i64 Stamp

enum Colour { RED = 1, GREEN = 2, BLUE = 7 }

struct Point { 1: double x, 2: double y }

union Shape {
  1: Point centre
  2: list<Point> corners
  3: string name
}

struct Everything {
  1: bool flag
  2: i8 tiny
  3: i16 small
  4: i32 medium
  5: i64 large
  6: double real
  7: string text
  8: binary raw
  9: Colour colour
  10: Stamp stamp
  11: Point point
  12: list<string> strings
  13: set<i32> numbers
  14: map<string, list<Point>> shapes
  15: optional string note
  16: optional Everything inner
  17: Shape shape
  18: required i32 must
  19: i32 preset = 42
  20: list<list<i64>> matrix
  21: map<i32, map<i32, string>> nested
}

/** A tree whose leaves are references. */
struct Tree {
  1: bifrost.GlobalPointer here
  2: list<Tree> below
  3: map<string, bifrost.GlobalPointer> named
  4: optional bifrost.GlobalPointer maybe
}

exception Refused {
  1: string why
  2: i32 number
}

exception Other { 1: bifrost.GlobalPointer evidence }

service Base {
  /** Does nothing. */
  void ping()
}

service Test extends Base {
  /** Returns its argument. */
  Everything echo(1: Everything thing)
  binary blob(1: binary raw)
  i64 add(1: i64 a, 2: i64 b)
  string greet(1: string name, 2: list<string> titles) throws (1: Refused refused, 2: Other other)
  void check(1: i32 number) throws (1: Refused refused)
  /** Fails in a way that is not declared. */
  void fail(1: string how)
  oneway void note(1: i64 number)
  /** Counts how often it has been run for each number. */
  i64 count(1: i64 number)
  bifrost.GlobalPointer swap(1: bifrost.GlobalPointer pointer)
  Tree plant(1: Tree tree)
  oneway void give(1: bifrost.GlobalPointer pointer)
  /** Calls itself through the rack, so deep. */
  i64 nest(1: i64 depth)
  /** A name that is longer than the header's field. */
  string methodWithAVeryLongName(1: string text)
}

/** A second service, for multiplexing. */
service Small {
  i64 twice(1: i64 number)
}
