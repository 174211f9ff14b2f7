/** What every Bifröst IDL includes. */
namespace go bifrost

/**
 * A global pointer: the address of a byte in distributed memory. Wherever one
 * stands in a message, the runtime lends or hands over the region it points to.
 */
struct GlobalPointer {
  /** 16 bytes, or none for nil. */
  1: binary address
}
