/**
 * Every form that a reference can have, for the generator's tests.
 */
include "shared.thrift"

namespace go labtest.lab

typedef i64 user_id
typedef binary Film
typedef list<double> Curve

enum Colour { RED = 1, GREEN = 2 }

struct Print {
  1: string title = "untitled"
  2: Colour colour
  3: optional shared.Frame frame
}

union Medium {
  1: binary film
  2: Print sheet
}

exception Corrupt { 1: i64 offset }

service Lab extends shared.Store {
  /**
   * Develops a film: the example of the documentation.
   */
  binary develop(1: binary raw (bifrost.ref), 2: i32 contrast) throws (1: Corrupt c, 2: shared.Broken broken) (bifrost.ref)

  // Arguments of every kind.
  i64 mix(1: Film film (bifrost.ref), 2: list<i8> a (bifrost.ref), 3: list<i16> b (bifrost.ref), 4: list<i32> c (bifrost.ref),
    5: list<i64> d (bifrost.ref), 6: Curve e (bifrost.ref = "in"), 7: Print sheet (bifrost.ref), 8: shared.Frame frame (bifrost.ref),
    9: Medium medium (bifrost.ref), 10: user_id user, 11: map<Colour, list<Print>> prints, 12: set<string> type)

  list<i32> histogram(1: binary raw (bifrost.ref)) (bifrost.ref, bifrost.policy = "none")
  Print show(1: string title) (bifrost.ref)
  shared.Frame scale_frame(1: shared.Frame frame (bifrost.ref), 2: double by) (bifrost.ref)
  Curve new_curve(1: i32 points) (bifrost.ref)
  Colour colour(1: Print sheet (bifrost.ref))
  void burn(1: binary raw (bifrost.ref)) throws (1: Corrupt c)
  oneway void archive(1: binary raw (bifrost.ref), 2: string name)

  // Values of any type: of each title the prints that have it.
  map<string, list<Print>> album(1: list<Print> prints (bifrost.ref), 2: set<Colour> colours (bifrost.ref)) (bifrost.ref)

  // By value.
  string greet(1: string name, 2: shared.Frame picture) throws (1: Corrupt c) (bifrost.policy = "recover")
  oneway void note(1: i64 number)
  list<map<user_id, set<Colour>>> plain(1: Curve curve, 2: Film film, 3: bool rpc, 4: byte x_id)
}

service Keeper {
  i64 keep(1: binary film (bifrost.ref))
  i64 kept() (bifrost.policy = "none")
} (bifrost.state, bifrost.policy = "recover")

// Values that do not travel the cheapest way.
service Forced {
  binary out_of_region(1: binary raw (bifrost.ref = "region")) (bifrost.ref = "value")
  binary out_of_message(1: binary raw (bifrost.ref = "value")) (bifrost.ref = "region")
}

/** No stubs are made for it. */
service Untouched { void nothing() }
