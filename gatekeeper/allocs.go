package gatekeeper

import (
	"maps"

	"github.com/bifrost-rack/bifrost/dsm/packet"
)

// allocKey is a memory machine id.
type allocKey uint8

// allocs are a node's allocations at one machine that this Gatekeeper has given
// rules to and that the node has not settled: a window with a floor, like the
// memory server's own. Without it, a copy of an allocation's answer that comes
// after the region was freed would look like a new region, and its rules would
// stay for ever.
type allocs struct {
	floor uint64
	above map[uint64]struct{} // request ids
}

// late reports whether an answer is a copy of one that was handled before, and
// whose region the lease machine may have forgotten since.
func (a *allocs) late(request uint64) bool {
	_, known := a.above[request]
	return known || request < a.floor
}

// full reports whether the node has settled none of too many allocations.
func (a *allocs) full(most int) bool { return len(a.above) >= most }

// handled notes that an allocation has its rules.
func (a *allocs) handled(request uint64) {
	if request >= a.floor {
		a.above[request] = struct{}{}
	}
}

// settle moves the floor up to the client's.
func (a *allocs) settle(floor uint64) {
	if floor <= a.floor {
		return
	}
	a.floor = floor
	maps.DeleteFunc(a.above, func(id uint64, _ struct{}) bool { return id < floor })
}

// allocsAt returns the node's window at a machine, settled as the packet says.
func (n *node) allocsAt(p packet.Pointer, m *packet.Header) *allocs {
	k := allocKey(p.Machine())
	a := n.allocs[k]
	if a == nil {
		a = &allocs{above: map[uint64]struct{}{}}
		if n.allocs == nil {
			n.allocs = map[allocKey]*allocs{}
		}
		n.allocs[k] = a
	}
	a.settle(m.Floor)
	return a
}
