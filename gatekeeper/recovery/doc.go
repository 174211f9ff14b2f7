// Package recovery brings failed nodes back (thesis section 5.3; docs/exactly-once.md).
// It is a pure core: inputs in, an Output out; it does no I/O, starts no goroutine and
// reads no clock. One goroutine owns a Machine.
//
//	             ┌──────────────── fencing ───────────────┐   ┌──── restoring ────┐
//	Fail ══log══▶ Cut, FailCalls, Unidentify, Fence each ─▶═log═▶ Fenced, Place ──▶ Recovered
//	              Unidentified, Fenced by each server          Whole, Joined
//	   ▲                                                                │
//	   └──────────────────── the spare fails ───────────────────────────┘
//
// Package execution decides what is cut off and run again: Cut and Fenced tell it, and it
// answers Whole. Package resources decides on which blade: Place tells it. So a recovery
// that finds no spare waits in restoring, and goes on when resources has one. The calls
// that wait for it stay in the log.
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
