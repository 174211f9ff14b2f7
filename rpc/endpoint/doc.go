// Package endpoint is the protocol of calls between two nodes, without network,
// clock or goroutine: the Caller sends until it is answered. (Package direct is the called
// side.) Package rpc is the shell around it: it owns the sockets, tells the time and does what the
// core decides.
//
//	Caller                                                   callee
//	Take, Begin ── call (slot, number) ────────────────────▶ runs it
//	Tick  ── the same again, later and later ──────────────▶ a copy
//	Receive ◀──────────────────────────────────── answer ────
//	Take, Begin ── next call of the slot ──────────────────▶ answer forgotten, late copies refused for ever
//
// A caller has so many call slots as the Gatekeeper has given to it, in blocks. A slot has one call at a time. A call that finds none free
// waits for one.
//
// Time is a time.Duration since an instant that the shell chooses. A Caller
// is not safe for concurrent use: it has one owner, which locks.
package endpoint
