/**
 * A service that has one method for each kind of type, in the spirit of the test
 * that Apache Thrift's implementations run against each other: what goes in comes
 * out again.
 */
namespace go crosstest

enum Digit { ONE = 1, TWO, THREE, FIVE = 5, EIGHT = 8 }

typedef i64 Account
typedef map<string, Bonk> Bonks

const i32 LIMIT = 9853

struct Bonk {
  1: string message
  2: i32 kind
}

struct Scalars {
  1: string text
  4: i8 tiny
  9: i32 medium
  11: i64 large
}

struct Nest {
  1: i8 depth
  2: Scalars scalars
  3: i32 more
  4: optional Nest inner
}

struct Jungle {
  1: map<Digit, Account> accounts
  2: list<Scalars> scalars
}

union Either {
  1: string left
  2: Scalars right
  3: list<Bonk> many
}

struct Defaults {
  1: i32 number = LIMIT
  2: string text = "preset"
  3: list<i32> items = [1, 2, 3]
  4: optional bool flag = true
  5: required Digit digit = Digit.FIVE
}

struct Empty {}

/** Fields of later versions must be skipped. */
struct Narrow { 3: string kept }
struct Wide {
  1: i32 a
  2: map<string, list<set<i64>>> b
  3: string kept
  4: Nest c
  5: optional binary d
}

exception Failure {
  1: i32 code
  2: string message
}

exception Detailed {
  1: i32 code
  2: Scalars scalars
}

service Cross {
  void nothing()
  string text(1: string thing)
  bool truth(1: bool thing)
  i8 tiny(1: i8 thing)
  i16 small(1: i16 thing)
  i32 medium(1: i32 thing)
  i64 large(1: i64 thing)
  double real(1: double thing)
  binary raw(1: binary thing)
  Digit digit(1: Digit thing)
  Account account(1: Account thing)
  Scalars scalars(1: Scalars thing)
  Nest nest(1: Nest thing)
  Either either(1: Either thing)
  Defaults defaults(1: Defaults thing)
  Empty empty(1: Empty thing)
  map<i32, i32> numbers(1: map<i32, i32> thing)
  map<string, string> texts(1: map<string, string> thing)
  set<i32> members(1: set<i32> thing)
  list<i32> sequence(1: list<i32> thing)
  Bonks bonks(1: Bonks thing)
  map<i32, map<i32, i32>> square(1: i32 n)
  map<Account, map<Digit, Jungle>> jungle(1: Jungle thing)
  Scalars gather(1: i8 tiny, 2: i32 medium, 3: i64 large, 4: map<i16, string> texts, 5: Digit digit, 6: Account account)
  /** A later caller's struct for an earlier callee. */
  Narrow narrow(1: Narrow thing)
  /** Fails in the way that its argument asks for. */
  void fail(1: string how) throws (1: Failure failure)
  Scalars failTwice(1: string first, 2: string second) throws (1: Failure failure, 2: Detailed detailed)
  oneway void later(1: i32 number)
}

/** What a later version of the service looks like. */
service CrossLater {
  Wide narrow(1: Wide thing, 2: i32 more)
}

/** A second service on the same connection. */
service Second {
  string text(1: string thing)
}

/** A service that adds to another. */
service Extended extends Second {
  string twice(1: string thing)
}
