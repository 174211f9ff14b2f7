// Package execution decides about every exactly-once call that the switch holds,
// and about its answer: whether it is new, running, done, refused or stale, what
// is logged, in which order its effects leave, and what is run again when a node
// has failed (thesis section 5.3; docs/exactly-once.md). It is a pure core: inputs
// in, an Output out; it does no I/O, starts no goroutine and reads no clock. One
// goroutine owns a Table.
//
//	CALL ─▶ Call ──Admit──▶ Admitted ══log══▶ Deliver ─▶ callee          a1, b1
//	REPLY ─▶ Reply ══log══▶ Commit ─▶ Committed ─▶ Return ─▶ Returned
//	                            └─▶ its one-ways: Deliver; Answer; Ack   b2
//	node failed ─▶ Fail ══log══▶ Fenced ─▶ Rollback ─▶ RolledBack ══log══▶ Deliver
//
// What an input changes is in the records of its Output, and they form one batch.
// Actions, and all later Outputs, take effect only once that batch is logged. So a
// Gatekeeper that is killed at any point has told nobody anything that its log
// does not know. Load makes a Table of the log, and Resume emits again each
// action that may have been lost; every action may be carried out twice.
//
// An execution is what one call makes run, or a durable main. The trailers of the
// calls that it has made are its journal, so only these calls are logged for it.
// When its node fails, it is cut: its answers do not count any more, the
// calls that it has lent regions to finish, the memory servers roll it back, and
// it is delivered to the node's next incarnation with its journal. An execution
// that was cut too often is aborted: rolled back, and answered with an exception.
//
// # Records
//
//	KindCall        a call, from Admitted until its parent has committed; Attempt
//	                1 and 2 mark a one-way that waits for that, 3 an enlisted call of a
//	                stateful service
//	KindReply       its outcome; Attempt 1 marks one that is aborted, 2 one whose
//	                results were handed over
//	KindCheckpoint  a main and its last checkpoint; Attempt has the bit 1 while that
//	                commits, 2 if its node's ledger has its checkpoints, 4 if its next
//	                one is to come here. It stays when the main is over
//	KindState       a service's state and the number of the last call in it
//	KindSession     a client's floor
//	KindCut         what a node's failures have cut off
//
// A record goes when nobody can ask for it any more: a call's when its parent has
// committed (or its session's floor has passed it) and it is done itself. The
// answers of a stateful service stay until its state has them.
package execution
