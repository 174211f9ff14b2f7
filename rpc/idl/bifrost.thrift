/**
 * What application IDL includes to pass references to distributed memory.
 */
namespace go bifrost

/**
 * A reference to a byte in distributed memory: the 16-byte IPv6 address that a
 * global pointer is. An empty address is the nil pointer. The runtime finds
 * every GlobalPointer in what a call or a reply carries, however deep, and puts
 * it in the packet's header, where the rack sees it: the callee is lent the
 * region until it returns, and a result's region changes hands.
 */
struct GlobalPointer {
  1: binary address
}

/**
 * What travels in place of an argument or result that is marked (bifrost.ref):
 * where its bytes stand, and how many there are. Binary stands as it is, a list
 * of numbers one after the other in little-endian order, every other value in the
 * form of docs/by-reference.md. Nothing of length 0 needs memory: its pointer is nil. What is
 * short and does not stand in memory yet travels as value, and its pointer is nil.
 */
struct Reference {
  1: GlobalPointer pointer
  2: i64 length
  3: optional binary value
}

/**
 * A standing lease (rpc.Ref.Share): the right of one node to read a value until
 * its owner takes that back. It names no pointer, so that a message that carries
 * it lends nothing. To any other node it is of no use.
 */
struct Lease {
  /** How many bytes there are. Of none there is no lease, and nothing else is set. */
  1: i64 length
  /** Where they stand: a global pointer. */
  2: binary address
  /** The use of a call slot that the lessee reads by. */
  3: i32 slot
  4: i64 number
}
