// Package rpc is how a program takes part in a rack. The program becomes a node, calls
// services and exports its own, in Apache Thrift, with code from the unmodified compiler:
//
//	node, err := rpc.Join(ctx, rpc.WithName("arrays"))
//	client := arrays.NewArraysClient(node.Client("Arrays"))        // call
//	err = node.Export(ctx, "Arrays", arrays.NewArraysProcessor(h)) // serve
//	p, err := node.Memory().Alloc(ctx, 1<<20)                      // distributed memory
//
// [Join], [Node.Client], [Node.Export] and [Node.Memory] are enough for a first program.
// Package bifrosttest runs one in a test. Calls fail with an [*Error] unless the handler or Thrift
// itself raised the exception. An [Interceptor] stands around them, on either side.
//
// # By reference
//
// A large value can stay in distributed memory: a [Ref] in the generated code, or a
// [GlobalPointer] in a Thrift struct. An argument lends the region to the callee until the
// call returns. A result, or a one-way call, gives the region away. The switch denies
// access to everybody else.
//
// # Exactly once
//
// Calls run exactly once unless their [Policy] is [PolicyNone]. When a node dies, what it had
// begun runs again, and must do the same again: handlers get the time from [Now], randomness
// from [Random] and what is outside of the rack through [Effect], and do several things at a
// time with [Go] and [WaitAny]. [WithState] keeps a service's state, and [Main] runs a program
// that goes on after a crash.
package rpc
