package lease

import (
	"fmt"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// Outcome says what became of an event.
type Outcome uint8

// The outcomes.
const (
	// Done: the event has taken effect; its packet goes on once the rules are in place.
	Done Outcome = iota + 1
	// Again: it had taken effect before; its packet goes on once more.
	Again
	// Duplicate: a first copy is still being handled; this one is dropped.
	Duplicate
	// Refused: see Step.Refusal. A refused Reply still ends its call's leases.
	Refused
)

// String returns the outcome's name.
func (o Outcome) String() string {
	switch o {
	case Done:
		return "done"
	case Again:
		return "again"
	case Duplicate:
		return "duplicate"
	case Refused:
		return "refused"
	default:
		return fmt.Sprintf("outcome %d", uint8(o))
	}
}

// Step is what became of one event, and the rules that change by it.
type Step struct {
	// Event is the event, and Tag what was submitted with it.
	Event   Event
	Tag     any
	Outcome Outcome
	Refusal *Refusal // set if the outcome is Refused
	// Revoke and Grant are the exact differences. If there are any, ID is not 0
	// and Machine.Done(ID) must follow when the switch has applied them.
	Revoke, Grant []Rule
	ID            uint64
	// Changed are the regions that have come up, are gone or being freed, or have
	// another controller: what must be logged of an event but its call.
	Changed []dsmpacket.Region
	// Reclaim are regions that nobody has any more. Their memory can be freed
	// when the rules are gone; the Machine has forgotten them.
	Reclaim []dsmpacket.Region
}

// Reason says why an event was refused.
type Reason uint8

// The reasons.
const (
	NoRegion      Reason = iota + 1 // the pointer lies in no region
	NotHeld                         // the caller neither controls nor leases the region
	NotController                   // only the region's controller may do this
	Leased                          // the region is leased out
	Freeing                         // the region is being freed
	NoNode                          // the node is gone
	NotTheCall                      // the reply does not come from the callee, or not to the caller
	Taken                           // the call id or the region belongs to somebody else
	LostRegion                      // the region's memory machine has lost its content
)

var reasons = [...]string{
	NoRegion: "it lies in no region", NotHeld: "the caller neither controls nor leases it",
	NotController: "it is not under the node's control", Leased: "it is leased out", Freeing: "it is being freed",
	NoNode: "the node is gone", NotTheCall: "it does not answer this call", Taken: "it belongs to somebody else",
	LostRegion: "its memory machine has started anew, and the region is lost",
}

// Refusal is why an event was refused; it is an error. Pointer is the first
// offending one, nil if the reason is not about a pointer.
type Refusal struct {
	Reason  Reason
	Pointer dsmpacket.Pointer
	Node    Node
}

// Error implements error.
func (r *Refusal) Error() string {
	why := "unknown reason"
	if int(r.Reason) < len(reasons) && reasons[r.Reason] != "" {
		why = reasons[r.Reason]
	}
	if r.Pointer.IsNil() {
		return fmt.Sprintf("node %s: %s", r.Node, why)
	}
	return fmt.Sprintf("pointer %s, node %s: %s", r.Pointer, r.Node, why)
}

// Code is the error code under which the refusal travels.
func (r *Refusal) Code() fault.Code {
	switch r.Reason {
	case NoNode, LostRegion:
		return fault.Unavailable
	case NotTheCall, Taken:
		return fault.BadRequest
	default:
		return fault.PermissionDenied
	}
}
