package lease

import (
	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
)

// parked is the outcome of a reply that must wait for nested calls; it is not
// seen outside.
const parked Outcome = 255

// judge lets an event take effect, or not, by the design's table.
func (m *Machine) judge(j *job, c *change) (Outcome, *Refusal) {
	switch e := j.event.(type) {
	case Alloc:
		return m.alloc(j, e, c)
	case Call:
		return m.call(j, e, c)
	case Reply:
		return m.reply(j, e, c)
	case Oneway:
		return m.oneway(j, e, c)
	case Withdrawn:
		m.withdrawn(j, e, c)
	case Free:
		return m.free(j, e, c)
	case Freed:
		return m.freed(e, c)
	case Ended:
		if call := m.calls[e.ID]; call != nil {
			m.end(call, c)
		}
	case Orphaned:
		m.orphan(j, e, c)
	case Lost:
		m.lose(j, c)
	}
	return Done, nil
}

func refuse(why Reason, n Node, p dsmpacket.Pointer) (Outcome, *Refusal) {
	return Refused, &Refusal{Reason: why, Pointer: p, Node: n}
}

// absent says why a pointer that lies in no region is refused.
func (m *Machine) absent(p dsmpacket.Pointer) Reason {
	if id := p.ID(); id.Valid() && id.Generation() <= m.lost[p.Machine()] {
		return LostRegion
	}
	return NoRegion
}

// alloc: "A controls the region".
func (m *Machine) alloc(j *job, e Alloc, c *change) (Outcome, *Refusal) {
	if r := m.find(e.Region.Base); r != nil {
		if r.owner == e.Node && r.id == e.Region {
			return Again, nil
		}
		return refuse(Taken, e.Node, e.Region.Base)
	}
	if m.nodes[e.Node] == nil {
		return refuse(NoNode, e.Node, dsmpacket.Pointer{})
	}
	r := m.add(j, e.Region)
	r.owner = e.Node
	c.touch(r, e.Node)
	m.control(r, e.Node)
	return Done, nil
}

// free: "by controller, unleased: marked". The right to send the free again
// stays until the memory blade has answered.
func (m *Machine) free(j *job, e Free, c *change) (Outcome, *Refusal) {
	r := m.mine(j, e.Pointer)
	switch {
	case r == nil || r.id.Base != e.Pointer:
		return refuse(m.absent(e.Pointer), e.Node, e.Pointer)
	case r.controller != e.Node:
		return refuse(NotController, e.Node, e.Pointer)
	case r.freeing:
		return Again, nil
	case len(r.leases) > 0:
		return refuse(Leased, e.Node, e.Pointer)
	}
	c.touch(r, e.Node)
	r.freeing = true
	return Done, nil
}

// freed: the memory is gone, so is the last rule; or it could not be freed, and
// the controller has its rights back.
func (m *Machine) freed(e Freed, c *change) (Outcome, *Refusal) {
	r := m.regions[e.Region.Base]
	if r == nil || !r.freeing {
		return Again, nil
	}
	c.touch(r, r.controller)
	r.freeing = false
	if e.OK {
		m.forget(r)
	}
	return Done, nil
}

// orphan: "node gone for good: its regions go after their last lease".
func (m *Machine) orphan(j *job, e Orphaned, c *change) {
	for _, r := range j.regions {
		if r.dead || r.controller != e.Node {
			continue // freed, or handed over before
		}
		c.touch(r, r.controller)
		m.control(r, Node{})
		m.sweep(r, c)
	}
}

// lose: the memory blade has lost its content.
func (m *Machine) lose(j *job, c *change) {
	for _, r := range j.regions {
		if r.dead {
			continue
		}
		c.touch(r, r.controller)
		for _, o := range r.readers {
			c.touch(r, o.node)
		}
		for _, l := range r.leases {
			l.call.drop(l)
		}
		r.leases, r.readers = nil, nil
		m.forget(r)
	}
}

// sweep forgets a region that nobody has any more.
func (m *Machine) sweep(r *region, c *change) {
	if r.dead || r.controller.IsValid() || len(r.leases) > 0 {
		return
	}
	c.reclaim = append(c.reclaim, r.id)
	m.forget(r)
}
