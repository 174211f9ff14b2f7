/**
 * A counter: what is added twice, or lost, is wrong for ever. Its accounts are kept
 * twice, in the service's state and in distributed memory, and each call checks one
 * against the other.
 */
namespace go counter

/** State and memory do not agree: something has happened twice, or not at all. */
exception Inconsistent {
  1: i32 account
  2: i64 state
  3: i64 memory
}

/** There is no such account: they are numbered from 0. */
exception NoSuchAccount {
  1: i32 account
  2: i32 accounts
}

service Counter {
  /** Adds up the bytes of an array, each 0 to 255, adds the sum to an account, and returns what that has then. */
  i64 add(1: i32 account, 2: binary amounts (bifrost.ref))
    throws (1: Inconsistent wrong, 2: NoSuchAccount missing) (bifrost.policy = "recover")

  /** Returns what all accounts have. */
  list<i64> totals() throws (1: Inconsistent wrong) (bifrost.policy = "recover")
} (bifrost.state = "snapshot")

/** Has no state: it passes what it is lent on to the Counter, so a call has a call out. */
service Front {
  i64 add(1: i32 account, 2: binary amounts (bifrost.ref))
    throws (1: Inconsistent wrong, 2: NoSuchAccount missing) (bifrost.policy = "recover")
}
