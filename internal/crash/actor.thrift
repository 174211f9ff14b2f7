/**
 * What the services of random programs do: whatever they are told.
 */
include "../../rpc/idl/bifrost.thrift"
namespace go actor

/** An entry that an operation has made in a service's state. */
struct Mark {
  1: i32 op
  2: i64 value
}

/** What came out of a script. */
struct Outcome {
  /** Depends on nothing but the program. */
  1: i64 value
  /** Depends on all that was left to chance as well. */
  2: i64 noise
  3: list<Mark> marks
  4: optional bifrost.GlobalPointer region
  /** Says nothing, and makes the answer large. */
  5: optional binary padding
}

/** The script says that its call is to fail. */
exception Refused {
  1: i64 value
  2: i64 noise
  3: list<Mark> marks
}

/** A service's state, for the oracle. */
struct Books {
  1: list<Mark> marks
  /** The counter in distributed memory. */
  2: i64 bumps
}

service Actor {
  /** Runs a script that may read the regions lent. */
  Outcome act(1: binary script, 2: i64 noise, 3: list<bifrost.GlobalPointer> lent) throws (1: Refused refused)
  /** Runs a script that the regions belong to. */
  oneway void post(1: binary script, 2: i64 noise, 3: list<bifrost.GlobalPointer> given)
  /** Closes the books: the state as it is; its region is freed. */
  Books audit()
}
