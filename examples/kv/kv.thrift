/**
 * A key-value service. It keeps where each value is; the values themselves stand in
 * distributed memory, and travel by reference.
 */
namespace go kv

/** There is no such key. */
exception NoSuchKey {
  1: string key
}

/** The value is not of the version that was expected. */
exception Conflict {
  1: string key
  /** The version that it is of; 0 if there is no such key. */
  2: i64 version
}

/** The value is no number: want 1 to 19 decimal digits, perhaps with a sign. */
exception NotANumber {
  1: string key
}

/**
 * A value, and its version: the number of the change that made it. No two changes
 * have the same, whatever their keys.
 */
struct Entry {
  1: i64 version
  2: binary value
}

/**
 * Every method is exactly-once: what it does happens once, whoever crashes. That
 * matters most where it is not idempotent: append, increment, compareAndSet.
 */
service Store {
  /** Returns a copy of the value. */
  Entry get(1: string key) throws (1: NoSuchKey missing) (bifrost.ref, bifrost.policy = "recover")

  /** Sets a value and returns its version. */
  i64 put(1: string key, 2: binary value (bifrost.ref)) (bifrost.policy = "recover")

  /** Sets a value if it is of this version; version 0 stands for no value. */
  i64 compareAndSet(1: string key, 2: i64 version, 3: binary value (bifrost.ref)) throws (1: Conflict conflict) (bifrost.policy = "recover")

  /** Appends to a value, which it makes if there is none, and returns its new length. */
  i64 append(1: string key, 2: binary more (bifrost.ref)) (bifrost.policy = "recover")

  /** Adds to a decimal number, 0 if there is none, and returns the sum. */
  i64 increment(1: string key, 2: i64 by) throws (1: NotANumber bad) (bifrost.policy = "recover")

  /** Removes a key. */
  void remove(1: string key) throws (1: NoSuchKey missing) (bifrost.policy = "recover")

  /** Returns keys behind this one, in their order; none if there are no more. */
  list<string> keys(1: string after) (bifrost.policy = "recover")
} (bifrost.state = "incremental")

/** Where a value is: what the service keeps, and its ledger remembers. */
struct Place {
  1: string key
  /** The global pointer to its region; none if the value is empty. */
  2: binary pointer
  /** The value's bytes, and how many fit the region. */
  3: i64 length
  4: i64 room
  /** 0 if the key has been removed. */
  5: i64 version
}

/** A part of the index: all of it in a snapshot, what has changed in a delta. */
struct Places {
  /** The number of the last change. */
  1: i64 version
  2: list<Place> places
}
