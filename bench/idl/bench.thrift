/** What the benchmarks call beside the arrays example's services. */
include "../../rpc/idl/bifrost.thrift"

namespace go hop

/** One stage of a chain of calls that share an argument. */
service Hop {
  /** Passes data on to `left` further stages; the last one returns its sum. */
  i64 forward(1: binary data, 2: i32 left)

  /** The same by reference: only the last stage reads the data. */
  i64 forwardRef(1: bifrost.GlobalPointer data, 2: i64 length, 3: i32 left)
}
