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
//	────┴───────── one datagram each way (rpc/rpcpacket) ───────┴────
//
// Latency decides how goroutines are used, for to wake one costs more than the
// rest of a call: a caller reads its own answer (leader), a service's reader runs
// the handlers that are quick (lead), and all that waits for time shares one
// timer (pulse).
//
// Calls fail with an *Error unless the callee's handler or Thrift itself raised
// the exception; see Error.
//
// # Exactly once
//
// A call with another policy than PolicyNone is logged by the Gatekeeper before it
// runs, and so is its answer before anybody sees it. When a node dies, what it had
// begun is run again elsewhere, and must then do the same: handlers get the time
// from Now, randomness from Random, what is outside of the rack through Effect, and
// do several things at a time with Go and WaitAny. What these gave is journalled.
// A service's State is logged with its answers. A program that is itself to go on
// after a crash runs as a durable Main.
//
//	handler ─ operation ─▶ journal ── trailer of the next CALL ──▶ log
//	   │                      ▲                                     │ a crash
//	   ▼                      └── trailer of the redelivered CALL ◀─┘
//	answer, state ── commit: sent again until the Gatekeeper's ACK
//
// State, journal and checkpoints may be larger than a datagram, up to a megabyte a
// message (packet.MaxWhole): then they go to the Gatekeeper in parts, and a re-run
// fetches its journal. More is refused as NoSpace.
//
// The parts: an execution (execution.go) has branches (branch.go), whose operations
// have places; journal.go knows what each gave, journal.go and journal.go ask it;
// commit.go and state.go see to answers; state.go is the durable main.
package rpc
