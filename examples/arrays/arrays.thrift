/**
 * The thesis's services (chapter 7): ping, echo, increment array and add arrays,
 * each by value and by reference.
 */
include "../../rpc/idl/bifrost.thrift"

namespace go arrays

/** The two arrays of an add differ in length. */
exception LengthMismatch {
  1: i64 a
  2: i64 b
}

service Ping {
  /** Does nothing: the base cost of a call. */
  void ping()
}

service Arrays {
  /** Returns what it was given. */
  binary echo(1: binary data)

  /** Adds delta to every byte (modulo 256). */
  binary increment(1: binary data, 2: i8 delta)

  /** Adds a and b element by element (modulo 256). */
  binary add(1: binary a, 2: binary b) throws (1: LengthMismatch mismatch)

  /**
   * The same by reference: the callee reads the arrays from the memory it was
   * lent, allocates the result, and hands over control of it.
   */
  bifrost.GlobalPointer echoRef(1: bifrost.GlobalPointer data, 2: i64 length)
  bifrost.GlobalPointer incrementRef(1: bifrost.GlobalPointer data, 2: i64 length, 3: i8 delta)
  bifrost.GlobalPointer addRef(1: bifrost.GlobalPointer a, 2: i64 aLength, 3: bifrost.GlobalPointer b, 4: i64 bLength)
    throws (1: LengthMismatch mismatch)
}
