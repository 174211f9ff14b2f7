// Package record is what a node writes to its ledger (design section 3): the records,
// their wire format, and what they add up to. It does no I/O.
//
//	CALL ─▶ begun ─▶ journal … ─▶ done ─▶ REPLY, one-ways, frees ─▶ over ─▶ forgotten
//
// Done is the commit of an execution: whoever has it settled may act on the outcome. A
// State is the fold of records in their order. A Base is a State as a record: the fold of
// a base and what follows it is the fold of all that the base stands for and what
// follows, so that a ledger may be cut before its newest base.
//
// Each record lists its fields once, in a method that a coder visits: to write them, to
// read them, to describe them (docs/ledger-records.md) and, in tests, to fill them. Numbers
// are unsigned varints, bytes have their length in front, lists their number of elements.
package record
