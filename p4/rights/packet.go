package rights

import (
	"fmt"
	"net/netip"
)

// Kind is the kind of a packet.
type Kind uint8

// The kinds of packets.
const (
	Alloc Kind = iota
	AllocAnswer
	Write
	Free
	Read
	MemoryAnswer // to anything else than Alloc
	Plain        // all that is not about rights: settle, ledger, commit, rollback, forget, control
	Call
	Oneway
	Reply
	Exception
	Ask
	kindCount
)

var kindNames = [kindCount]string{"ALLOC", "answer to ALLOC", "WRITE", "FREE", "READ", "answer", "plain", "CALL", "ONEWAY", "REPLY", "EXCEPTION", "ASK"}

// String returns the kind's name as the specification has it.
func (k Kind) String() string {
	if k < kindCount {
		return kindNames[k]
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// Packet is what the switch sees of a packet.
type Packet struct {
	Kind        Kind
	Source      Source
	To          netip.Addr
	Incarnation uint32 // of its sender, as the header says; a memory server's boot

	Machine uint8  // packets of memory: the machine in the pointer
	Region  Region // packets of memory
	OK      bool   // AllocAnswer: the server has allocated the region

	Ref     Ref      // packets of calls: first slot and number. Read: the use of a slot that it relies on, or none
	Blocks  []Block  // Call and Oneway: one for each slot
	Results []Region // Reply
}

// Block is what a call lists for one of its slots.
type Block struct {
	Parent  Ref // the use of a slot by which the sender has those regions that are not its own
	Regions []Region
}

// Action is what becomes of a packet.
type Action uint8

// The actions.
const (
	Drop Action = iota // and count
	Pass
	PassToAll  // to all copies of a memory machine
	TurnAround // to its sender, with a reason
)

// Reason is why a packet is turned around.
type Reason uint8

// The reasons.
const (
	PermissionDenied Reason = iota + 1 // it never will be permitted
	Lent                               // not now: the sender asks again
	Unavailable                        // the destination is gone
)

// String returns the reason in plain words.
func (r Reason) String() string {
	return [...]string{"", "permission denied", "lent", "unavailable"}[r]
}

// Verdict says what becomes of a packet.
type Verdict struct {
	Action     Action
	Reason     Reason // of TurnAround
	NeverBegun bool   // of a call that is turned around as Unavailable: it has not begun to run, and will not
	Had        uint16 // of a Reply that passes: which results were the caller's already; of a copy all
	HalfUsed   bool   // a digest tells the Gatekeeper that the node needs its next batch; it is a hint, and may be lost
	Row        string // the row of the table that has decided
}

func (v Verdict) String() string {
	switch v.Action {
	case Pass:
		return "passes"
	case PassToAll:
		return "passes to all copies"
	case TurnAround:
		return v.Reason.String()
	default:
		return "dropped"
	}
}
