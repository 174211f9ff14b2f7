/**
 * What the ingress keeps of calls with an idempotency key, and the two services by which it keeps it. Only the ingress itself may
 * call them.
 */
include "../rpc/idl/bifrost.thrift"

namespace go durable

/** What a client is answered. */
struct Outcome {
  1: i32 status
  2: string mediaType
  3: binary body
}

/** A key that is in use. Without an outcome its call runs. */
struct Entry {
  1: binary key
  /** Of the request: service, method and body. That of a request whose body goes into memory lacks the body until it is there. */
  2: binary hash
  /** Tells calls with the same key apart. */
  3: binary nonce
  /** When the request came, in milliseconds since 1970. */
  4: i64 accepted
  5: optional Outcome outcome
}

/** What has become of the table of keys: its snapshot has all entries. */
struct Change {
  1: list<Entry> entries
  2: list<binary> gone
}

/** What is to be called. */
struct Request {
  1: Entry entry
  2: string target
  3: string method
  4: bool noAnswer
  /** The IDL's word; empty if there is none. */
  5: string policy
  /** The method's struct of arguments, in Thrift's binary protocol. */
  6: binary arguments
  /** The client is told that the call is accepted. So it finds an outcome, also if the call has never begun. */
  7: bool promised
  /** The number of the argument that the request's body is, which goes into memory as it comes. */
  8: optional i16 body
  /** The client takes the result, which is marked (bifrost.ref), as it is. */
  9: bool raw
  /** How long the call may take, in milliseconds; 0 for as long as it likes. */
  10: i64 timeout
}

/** A request's body, in memory. */
struct Body {
  1: bifrost.Reference content
  /** Its SHA-256. */
  2: binary hash
}

enum Verdict {
  /** The key is new: this is its call. */
  FRESH = 1
  /** Its call runs. */
  RUNNING = 2
  /** Its call has an outcome. */
  DONE = 3
  /** The key is in use for another request. */
  OTHER = 4
  /** There is no room for another key. */
  FULL = 5
}

struct Answer {
  1: Verdict verdict
  2: optional Outcome outcome
}

/** Makes calls for clients. Has no state. */
service Caller {
  /** Without a key in its entry it is a call of which nothing is kept. */
  Answer call(1: Request request)
  /** Puts the body of the request with a nonce into memory, which is handed over. */
  Body receive(1: binary nonce)
}

/** Keeps the table of keys. */
service Keys {
  Answer claim(1: Entry entry)
  /** Without an outcome the call has never begun, and the key is free again. */
  void settle(1: Entry entry)
}
