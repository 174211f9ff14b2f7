// Package rpc is how a program takes part in a rack: it becomes a node, calls
// services and exports its own, in Apache Thrift, with code from the unmodified
// Thrift compiler.
//
//	node, err := rpc.Join(ctx, rpc.WithName("arrays"))
//	client := arrays.NewArraysClient(node.Client("Arrays"))       // call
//	err = node.Export(ctx, "Arrays", arrays.NewArraysProcessor(h)) // serve
//	p, err := node.Memory().Alloc(ctx, 1<<20)                     // distributed memory
//
// A call is one datagram, and so is its answer. What is larger travels by
// reference: a bifrost.GlobalPointer in an argument lends the callee the region
// that it points to until the call returns; one in a result hands the region
// over. The runtime finds pointers in what the generated code writes, and the
// rack's switch and Gatekeeper see to it that nobody reads or writes what it was
// not given.
//
//	generated client                                      handler
//	    │ Call                                               ▲
//	    ▼                                                    │
//	client ── codec: Thrift ◀▶ bytes, pointers      run ── codec, generated processor
//	    │                                                    ▲
//	    ▼                                                    │ a worker's slot (pool)
//	outgoing ── endpoint.Caller (ids, re-sends)     incoming ── endpoint.Callee (duplicates)
//	    │                                                    ▲
//	    ▼ [node]:45100                                       │ [service]:45100
//	────┴───────── one datagram each way (rpc/packet) ───────┴────
//
// Latency decides how goroutines are used, for to wake one costs more than the
// rest of a call: a caller reads its own answer (chair), a service's reader runs
// the handlers that are quick (lead), and all that waits for time shares one
// timer (pulse).
//
// Calls fail with an *Error unless the callee's handler or Thrift itself raised
// the exception; see Error. At this stage every call is at most once (PolicyNone)
// unless a client asks for more, which the Gatekeeper then provides.
package rpc
