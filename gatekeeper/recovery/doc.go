// Package recovery brings failed nodes back (thesis section 5.3; docs/exactly-once.md).
// It is a pure core: inputs in, an Output out; it does no I/O, starts no goroutine and
// reads no clock. One goroutine owns a Machine.
//
//	             ┌───── fencing ─────┐   ┌──── restoring ────┐
//	Fail ══log══▶ Unidentify, Fence each ─▶═log═▶ Fenced, Place ──▶ Recovered
//	              Unidentified, Fenced by each server     Joined
//	   ▲                                                    │
//	   └──────────────────── the spare fails ───────────────┘
//
// What the node's executions have done is decided by the node's next incarnation, from its ledger. Package resources
// decides on which blade that runs: Place tells it. So a recovery
// that finds no spare waits in restoring, and goes on when resources has one. If there will be no other incarnation, the
// recovery ends with the fence.
//
// A recovery's phase is its record (KindRecovery: Callee the incarnation that has
// failed, Attempt its phase, Order 1 if there will be no other incarnation, Time
// when it began, Data the cause). Records form a batch, and the actions of an
// Output, as those of later ones, take effect when it is logged, in their order.
// A Gatekeeper that is killed finishes its recoveries after Load and Resume.
// Before Place, nothing of the next incarnation exists, so fencing may be repeated;
// after it, the node's address belongs to the next incarnation, and only what is harmless
// to that one is repeated.
//
// A failure that was only suspected is made true by the fence; nothing else is done
// to the node before.
package recovery
