/** What the benchmark compares the stubs with: a method by pointer, by hand. */
include "../../../idl/bifrost.thrift"

namespace go byhand

service Darkroom {
  bifrost.GlobalPointer develop(1: bifrost.GlobalPointer raw, 2: i64 length)
}
