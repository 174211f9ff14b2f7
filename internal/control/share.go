package control

import (
	"net/netip"

	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// MaxShared is how many regions a standing lease is about at most.
const MaxShared = rpcpacket.ListRegions

// Share is what a node wants of a standing lease that it gives: that there is one, or that it ends. It is asked again until the answer says
// so. A node has one request about a lease out at a time.
type Share struct {
	Node        netip.Addr `json:"node"`
	Incarnation uint32     `json:"incarnation"`
	// ID tells the leases of an incarnation apart. 0 stands for all that earlier incarnations of the node have given; then End is set.
	ID uint64 `json:"id"`
	// Lessee may read Regions, at most MaxShared; both are unset if End is set.
	Lessee  netip.Addr         `json:"lessee,omitzero"`
	Regions []rpcpacket.Region `json:"regions,omitempty"`
	// End says that it is to end.
	End bool `json:"end,omitempty"`
}

// ShareState is how far a standing lease has come.
type ShareState uint8

// The states.
const (
	ShareComes ShareState = 1 // nobody may read yet
	ShareHolds ShareState = 2
	ShareEnds  ShareState = 3 // somebody may still read
	ShareEnded ShareState = 4 // nobody reads any more, also if there has never been one
)

// ShareReply answers it. Slot and Number are what the lessee reads by, when it holds. That it is refused is an error: PermissionDenied says that a region is not the
// node's, NotFound that there is no such lessee, NoSpace that the node's owner has its share of leases.
type ShareReply struct {
	State  ShareState       `json:"state"`
	Slot   rpcpacket.Slot   `json:"slot,omitempty"`
	Number rpcpacket.Number `json:"number,omitempty"`
}
