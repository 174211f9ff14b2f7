// Package host lets a process in another language have the handlers of services that are exactly once and have state. The host is a node
// of the rack, with the ledger, the state and the calls; the child is the process, which runs the handlers:
//
//	rack ── call ──▶ host ── call ──▶ child: the handler
//	                 │ ◀── get, set, effect, invoke … ── │
//	                 │ ─── result ──────────────────────▶│
//	rack ◀─ answer ─ host ◀─ answer ──────────────────── │
//
// What a handler asks of its host is part of the execution that package rpc runs: an exactly-once call that runs again gets the same
// results. Host and child end together. If the child ends, or says what it may not, the host ends without an answer to any call, as a
// program in Go does that crashes; the next incarnation runs again what has not ended.
//
// Package hostwire has the frames, and docs/wire.md the protocol. `bifrost host` is the program.
package host
