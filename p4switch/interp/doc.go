// Package interp is the Go executor of compiled v1model programs: portable, and
// the reference that the kernel executor is tested against. It behaves as bmv2's
// simple_switch 1.15 does wherever that is defined at all.
//
//	frame ─▶ parse ─▶ verify ─▶ ingress ─┬─▶ egress ─▶ update ─▶ deparse ─▶ emit
//	  ▲                                  │      │                   │
//	  │          clone ──────────────────┼──────┤                   │
//	  │          multicast ──────────────┘      └─ clone ─▶ egress  │
//	  └─ resubmit (as it came) ◀─ ingress       recirculate ◀───────┘
//
// New compiles a program once: every expression, statement, table and state
// becomes a closure over a flat array of words, the packet's state, in which
// each field has its place. A packet is run to its end on the goroutine that
// calls Process, without allocation on the common path; any number of
// goroutines may do so at a time.
//
// Numbers are of unlimited precision in the model. Expressions are evaluated in
// 64 bits where an analysis of their range shows that to be exact (package
// files num*.go), in 128 bits where that is (wide*.go; IPv6 addresses), and in
// big numbers otherwise (big*.go).
//
// Where bmv2 crashes, hangs, or shows what an earlier packet left behind, the
// executor does something defined instead:
//
//   - a field of a header that was not valid before is zero if nothing was written to it;
//   - an element beyond a stack reads as zero and invalid, writes to it are lost;
//   - a negative index of a stack, register, counter or meter is beyond;
//   - a lookahead beyond the packet is a parser error, PacketTooShort;
//   - division by zero yields zero;
//   - a parser that makes no progress ends with ParserTimeout;
//   - a packet that is copied or sent round for ever is dropped and counted;
//   - a failed assertion drops the packet, not the switch;
//   - a default entry's direct counter counts misses; bmv2's does not count.
//
// As in bmv2, and unlike what one may expect, a resubmitted, recirculated or
// cloned packet has ingress_port 0 unless the program kept it, and a packet has at
// most one digest (the last one asked for). Unlike in bmv2, the depths of queues are
// those that [Executor.SetQueueDepth] was told.
//
// The packet path holds one of several read locks; the control plane takes them
// all (executor.go). So when a write returns, no packet is still on the path that
// was judged by what was there before. Hence emit functions and sinks, which
// run on the path, must not call the executor back.
package interp
