// Package endpoint is the protocol of calls between two nodes, without network,
// clock or goroutine: the Caller sends until it is answered, the Callee runs
// each call at most once and answers it as often as asked. Package rpc is the
// shell around them: it owns the sockets, tells the time and does what the
// cores decide.
//
//	Caller                                                   Callee
//	Begin ── call (session, sequence; floor) ──────────────▶ Receive: Run
//	Tick  ── the same again, later and later ──────────────▶ Receive: Duplicate
//	Receive ◀──────────────────────────────────── reply ──── Finish
//	Tick  ── again, for the reply was lost ────────────────▶ Receive: Resend
//	Receive ◀──────────────────────────── the same reply ────
//	Begin ── next call: its floor settles the one before ──▶ reply forgotten, id refused for ever
//
// A caller has one session for each call that it has out at a time and numbers
// the calls within it, so a call's sequence number is its floor as well: the
// next call in the same session settles it, whatever other calls still wait.
// The callee nevertheless accepts any window: several calls of a session at
// once, in any order of arrival.
//
// Time is a time.Duration since an instant that the shell chooses. Neither core
// is safe for concurrent use: each has one owner, which locks.
package endpoint
