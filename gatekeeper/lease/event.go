package lease

import (
	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
)

// Event is something that happened in the rack and may change rules. Events are
// plain values; the Machine keeps and returns them, and changes none.
type Event interface {
	// key is what makes a second copy of the event recognisable while the first
	// is still being handled; the zero key does not.
	key() key
}

// key identifies an event among those that are being handled.
type key struct {
	kind   kind
	call   CallID
	region dsmpacket.Region
}

type kind uint8

const (
	kindAlloc kind = iota + 1
	kindCall
	kindReply
	kindOneway
	kindWithdrawn
	kindFree
	kindFreed
	kindEnded
)

// Alloc says that a memory blade has allocated a region for a node.
type Alloc struct {
	Node   Node
	Region dsmpacket.Region
}

// Call says that a node calls another one and lends it what the pointers name. Parent is
// the execution that calls; if it is a call that the caller is just serving and
// that lends it one of the regions, the new lease is passed on from that one.
type Call struct {
	ID, Parent     CallID
	Caller, Callee Node
	Pointers       []dsmpacket.Pointer
}

// Reply says that a callee answers. Results are the pointers that it hands over; an
// exception is a Reply without any.
type Reply struct {
	ID             CallID
	Caller, Callee Node
	Results        []dsmpacket.Pointer
}

// Oneway says that a node calls another one which will not answer: control moves.
type Oneway struct {
	ID             CallID
	Caller, Callee Node
	Pointers       []dsmpacket.Pointer
}

// Withdrawn says that a one-way does not count, which was not delivered: its caller's
// execution, Parent, is taken back. Control of what the callee still has returns; it is
// nobody's if the caller is gone.
type Withdrawn struct {
	ID, Parent     CallID
	Caller, Callee Node
	Pointers       []dsmpacket.Pointer
}

// Free says that a node asks to free the region that begins at Pointer.
type Free struct {
	Node    Node
	Pointer dsmpacket.Pointer
}

// Freed says that the memory blade has answered a Free. OK tells whether the region is gone.
type Freed struct {
	Region dsmpacket.Region
	OK     bool
}

// Ended is submitted by the Machine itself: the callee of a call is gone, so its
// leases end without a reply.
type Ended struct{ ID CallID }

// Orphaned is submitted by the Machine itself: a region's controller is gone.
type Orphaned struct {
	Region dsmpacket.Region
	Node   Node
}

// Lost is submitted by the Machine itself: a region's memory is gone.
type Lost struct{ Region dsmpacket.Region }

func (e Alloc) key() key     { return key{kind: kindAlloc, region: e.Region} }
func (e Call) key() key      { return key{kind: kindCall, call: e.ID} }
func (e Reply) key() key     { return key{kind: kindReply, call: e.ID} }
func (e Oneway) key() key    { return key{kind: kindOneway, call: e.ID} }
func (e Withdrawn) key() key { return key{kind: kindWithdrawn, call: e.ID} }
func (e Free) key() key      { return key{kind: kindFree, region: dsmpacket.Region{Base: e.Pointer}} }
func (e Freed) key() key     { return key{kind: kindFreed, region: e.Region} }
func (e Ended) key() key     { return key{kind: kindEnded, call: e.ID} }

func (Orphaned) key() key { return key{} }
func (Lost) key() key     { return key{} }
