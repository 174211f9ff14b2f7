package callgraph

import (
	"slices"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
)

// carried is one pointer of one call, in the list of the call's pointers and in
// the list of all calls that carry the pointer.
type carried struct {
	pointer    dsmpacket.Pointer
	call       int32
	next       int32 // of the call
	same, back int32 // next and previous with the same pointer
}

// carry notes a call's pointers.
func (g *Graph) carry(i int32, pointers []dsmpacket.Pointer) {
	for _, p := range slices.Backward(pointers) {
		k := g.carried.add()
		c := g.calls.at(i)
		head := g.pointers[p]
		*g.carried.at(k) = carried{pointer: p, call: i, next: c.pointers, same: head}
		if head != 0 {
			g.carried.at(head).back = k
		}
		g.pointers[p] = k
		c.pointers = k
	}
}

// uncarry forgets them.
func (g *Graph) uncarry(c *call) {
	for k := c.pointers; k != 0; {
		e := *g.carried.at(k)
		switch {
		case e.back != 0:
			g.carried.at(e.back).same = e.same
		case e.same != 0:
			g.pointers[e.pointer] = e.same
		default:
			delete(g.pointers, e.pointer)
		}
		if e.same != 0 {
			g.carried.at(e.same).back = e.back
		}
		g.carried.remove(k)
		k = e.next
	}
	c.pointers = 0
}

func (g *Graph) pointersOf(c *call) (all []dsmpacket.Pointer) {
	for k := c.pointers; k != 0; k = g.carried.at(k).next {
		all = append(all, g.carried.at(k).pointer)
	}
	return all
}

// Carrying returns the calls that carry exactly this pointer, newest first.
// Which leases a region has, pointers into its middle included, the lease
// machine knows.
func (g *Graph) Carrying(p dsmpacket.Pointer) (all []View) {
	last := int32(0)
	for k := g.pointers[p]; k != 0; k = g.carried.at(k).same {
		if i := g.carried.at(k).call; i != last { // a pointer may be passed twice
			all = append(all, g.view(i))
			last = i
		}
	}
	return all
}
