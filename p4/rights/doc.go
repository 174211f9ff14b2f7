// Package rights is an executable model of rights in the switch: what each packet of a call, an allocation or a free may
// do, and how it changes the switch's registers. docs/rights.md is the specification, and its tables are generated from
// this package. The P4 program does the same (p4/rights.p4): package p4/difftest compares it with this
// model packet by packet.
//
// [Switch] has the state: tables that the Gatekeeper writes, and registers that packets change. [Switch.Judge] says what
// becomes of one packet. It goes through the rows of one table (table.go), and the first row whose condition holds
// decides. [Switch.Do] is the same for the Gatekeeper's operations (hand.go). [Switch.Check] asks for what always holds.
//
//	CALL k,#  ──▶ slot[k] = (#, open, n→c, regions)   lent of each region +1
//	READ by k,#   passes while slot[k] is open, and lists the region
//	REPLY k,# ──▶ slot[k] closed                      lent of each region −1, results change hands
//
// The tests beside it are the other half: memory servers, runtimes with ledgers, the Gatekeeper's steps, a network that
// loses, repeats and reorders, crashes, and an oracle. They explore that half with this one as the switch. They leave out
// each row of the table once, and something must break.
//
// The package is a core: it starts no goroutine, reads no clock and does no I/O. A Switch has one owner.
package rights
