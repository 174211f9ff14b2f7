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
// The packet path holds one of several read locks; the control plane takes them
// all (lock.go). So when a write returns, no packet is still on the path that
// was judged by what was there before. Hence emit functions and sinks, which
// run on the path, must not call the executor back.
package interp
