package gatekeeper

import (
	"net/netip"
	"slices"

	"github.com/bifrost-rack/bifrost/dsm/packet"
	"github.com/bifrost-rack/bifrost/gatekeeper/execution"
	"github.com/bifrost-rack/bifrost/gatekeeper/lease"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	rpc "github.com/bifrost-rack/bifrost/rpc/packet"
)

// A node controls a region on behalf of an execution, or as what its service keeps.
// What an execution controls when it ends, and has neither handed over nor left to
// a service with state, nobody knows any more: it is freed.
//
//	alloc by E, result for E, one-way E ─▶ E holds it ─▶ result of E: its caller's execution holds it
//	                                                 ├─▶ E ends in a service with state: the node keeps it
//	                                                 └─▶ E ends: freed
type holdings struct {
	holder map[packet.Pointer]rpc.ID // by a region's base
	held   map[rpc.ID][]packet.Region
}

func newHoldings() holdings {
	return holdings{holder: map[packet.Pointer]rpc.ID{}, held: map[rpc.ID][]packet.Region{}}
}

// hold says on whose behalf a region is controlled from now on; zero is nobody's.
func (h *holdings) hold(r packet.Region, e rpc.ID) {
	h.release(r)
	if !e.IsZero() {
		h.holder[r.Base] = e
		h.held[e] = append(h.held[e], r)
	}
}

// release says that nobody does any more.
func (h *holdings) release(r packet.Region) {
	e, ok := h.holder[r.Base]
	if !ok {
		return
	}
	delete(h.holder, r.Base)
	rest := slices.DeleteFunc(h.held[e], func(o packet.Region) bool { return o == r })
	if len(rest) == 0 {
		delete(h.held, e)
	} else {
		h.held[e] = rest
	}
}

// end returns what an execution holds at its end.
func (h *holdings) end(e rpc.ID) []packet.Region {
	regions := h.held[e]
	for _, r := range regions {
		delete(h.holder, r.Base)
	}
	delete(h.held, e)
	return regions
}

// exactly is what is known of an exactly-once call, nothing of another one.
func (c *controller) exactly(id rpc.ID) execution.View {
	v, _ := c.table.View(id)
	return v
}

// onBehalf is the execution that a call's results are for. A session's call may name
// a parent, for whom it waits, but that is no execution that is known here when it ends.
func (c *controller) onBehalf(v execution.View) rpc.ID {
	if v.Header.Flags&rpc.FlagSession != 0 {
		return rpc.ID{}
	}
	return v.Header.Parent
}

// ended reports whether an execution has come to its end: it is done, or not known any
// more.
func (c *controller) ended(e rpc.ID) bool {
	if v, call := c.table.View(e); call {
		return v.Stage == "done"
	}
	_, main := c.table.Where(e)
	_, over := c.table.Over(e)
	return !main || over
}

// holdAll notes that the regions of pointers are controlled on behalf of an execution.
func (c *controller) holdAll(pointers []packet.Pointer, e rpc.ID) {
	for _, p := range pointers {
		if r, ok := c.leases.Find(p); ok {
			c.holdings.hold(r.Region, e)
		}
	}
}

// endHoldings frees what an execution controls at its end, or leaves it to the
// node's service if that has state.
func (c *controller) endHoldings(e rpc.ID, at netip.Addr, keep bool) {
	c.endUnclaimed(e)
	c.endOrigins(e, 0)
	for _, r := range c.holdings.end(e) {
		if v, ok := c.leases.Find(r.Base); !ok || v.Region != r || v.Controller != at {
			continue
		}
		if keep {
			c.keepRegion(r)
		} else {
			c.steps(c.leases.Abandon(r, at))
		}
	}
}

// keepsState reports whether a service is one with state.
func (c *controller) keepsState(hash uint64) bool {
	s := c.services[rackaddr.ServiceOf(hash)]
	return s != nil && s.stateful()
}

// forsake frees the regions of a node that has failed and is to come back, which its
// program had on its own account: the next one knows nothing of them, unless it is
// told by the state of its service.
func (c *controller) forsake(n *node) {
	for _, x := range n.exports {
		if x.stateful {
			return
		}
	}
	for _, r := range c.leases.ControlledBy(n.address) {
		if _, held := c.holdings.holder[r.Base]; !held {
			c.steps(c.leases.Abandon(r, n.address))
		}
	}
}

// heldBy is on whose behalf a region is controlled; zero for a node's own.
func (c *controller) heldBy(r packet.Region) rpc.ID { return c.holdings.holder[r.Base] }

// controlled notes that nodes have got control of regions, and on whose behalf.
func (c *controller) controlled(s lease.Step) {
	if s.Outcome == lease.Done {
		switch e := s.Event.(type) {
		case lease.Oneway:
			c.holdAll(e.Pointers, c.exactly(e.ID).Header.Call)
		case lease.Reply:
			c.holdAll(e.Results, c.onBehalf(c.exactly(e.ID)))
		}
	}
	for _, r := range s.Changed {
		v, ok := c.leases.Find(r.Base)
		if e, is := s.Event.(lease.Withdrawn); is {
			c.holdings.hold(r, e.Parent)
		}
		switch {
		case !ok || v.Region != r:
			c.holdings.release(r)
			if !c.origins.lost[r.Base] {
				c.origins.forget(r)
			}
		case v.Controller.IsValid():
			c.mayWrite(v.Controller)
		}
	}
}
