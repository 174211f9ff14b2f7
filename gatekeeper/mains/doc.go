// Package mains says who may run a durable main (docs/design.md, section 3). It is a pure core: inputs in, records
// for the log out; it does no I/O, starts no goroutine and reads no clock. One goroutine owns a Table.
//
// What a main does is in its node's ledger. Here is only who runs it:
//
//	Begin ─▶ may it? ─▶ wait until the former run's calls have no leases ─▶ Admit ══log══▶ the node runs it
//	Over ──▶ the main's end is in the ledger ══log══▶ nobody runs it again, but a new run may begin
//
// A main has one run at a time. It begins at no other node than the one whose ledger has its checkpoints, and not if
// the ledger is lost. A main that was over when its node failed stays so: its program may have died before it could
// know. Until that node has left, or is gone for good, the main does not begin elsewhere.
package mains
