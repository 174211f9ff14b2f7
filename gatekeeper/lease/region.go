package lease

import (
	"slices"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
)

// region is the state of one region. It is known from its allocation until it is
// freed, reclaimed or lost.
type region struct {
	id         dsmpacket.Region
	owner      Node // whose allocation it was
	controller Node // the zero Node when that is gone
	freeing    bool // the free has gone to the memory blade
	dead       bool // forgotten; stays here until its last transition is done
	leases     []*leased
	readers    []reader  // the leases' callees, each once
	queue      []*job    // events on this region; the first one is being handled
	touched    []touched // by the event being judged: see change
	was        custody   // before that event, once it has touched the region
}

// leased is one lease: a call that carries a region.
type leased struct {
	call   *call
	region *region
	at     int // index in region.leases
}

// reader is a node with leases on a region, and how many.
type reader struct {
	node  Node
	count int
}

// ops is the design's table: what the state of a region lets a node do.
func (r *region) ops(n Node) (s ops) {
	if r.dead {
		return 0
	}
	if r.reads(n) {
		s = mayRead
	}
	if r.controller != n {
		return s
	}
	switch {
	case r.freeing:
		return s | mayFree // so that a lost free can be sent again
	case len(r.leases) > 0:
		return s | mayRead
	}
	return mayRead | mayWrite | mayFree
}

// reads reports whether node n has a lease.
func (r *region) reads(n Node) bool {
	return slices.ContainsFunc(r.readers, func(o reader) bool { return o.node == n })
}

// lend adds the lease of a call.
func (r *region) lend(c *call) {
	l := &leased{c, r, len(r.leases)}
	r.leases = append(r.leases, l)
	c.leases = append(c.leases, l)
	for i := range r.readers {
		if r.readers[i].node == c.callee {
			r.readers[i].count++
			return
		}
	}
	r.readers = append(r.readers, reader{c.callee, 1})
}

// end takes a lease out of its region; the call's own list is the caller's business.
func (r *region) end(l *leased) {
	last := r.leases[len(r.leases)-1]
	r.leases[l.at], last.at = last, l.at
	r.leases[len(r.leases)-1] = nil
	r.leases = r.leases[:len(r.leases)-1]
	for i := range r.readers {
		if r.readers[i].node != l.call.callee {
			continue
		}
		if r.readers[i].count--; r.readers[i].count == 0 {
			r.readers = slices.Delete(r.readers, i, i+1)
		}
		return
	}
}

// find returns the region that p lies in, or nil.
func (m *Machine) find(p dsmpacket.Pointer) *region {
	r := m.regions[p.Base()]
	if r == nil || r.dead || !r.id.Contains(p) {
		return nil
	}
	return r
}

// mine is find among the regions that the job has to itself. A region that came
// up while the job was waiting is none of them: the event did not mean it.
func (m *Machine) mine(j *job, p dsmpacket.Pointer) *region {
	if r := m.find(p); r != nil && len(r.queue) > 0 && r.queue[0] == j {
		return r
	}
	return nil
}

// add makes a region known to which the job has the only claim.
func (m *Machine) add(j *job, id dsmpacket.Region) *region {
	r := m.regions[id.Base]
	if r == nil {
		r = &region{id: id, queue: []*job{j}}
		j.regions = append(j.regions, r)
		m.index(r)
	}
	r.dead = false
	m.bytes[id.Base.Machine()] += id.Size()
	return r
}

// index makes a region one that can be found.
func (m *Machine) index(r *region) {
	m.regions[r.id.Base] = r
	m.order.ReplaceOrInsert(r)
}

// forget makes a region unknown. Its leases must have ended.
func (m *Machine) forget(r *region) {
	m.control(r, Node{})
	m.bytes[r.id.Base.Machine()] -= r.id.Size()
	r.dead, r.freeing = true, false
}

// bury drops a forgotten region that no event holds on to any more.
func (m *Machine) bury(r *region) {
	if r.dead && len(r.queue) == 0 {
		delete(m.regions, r.id.Base)
		m.order.Delete(r)
	}
}

// control gives a region a controller; the zero Node or one that is gone leaves
// it without.
func (m *Machine) control(r *region, n Node) {
	if old := m.nodes[r.controller]; old != nil {
		delete(old.controls, r)
	}
	r.controller = Node{}
	if next := m.nodes[n]; next != nil {
		r.controller = n
		next.controls[r] = struct{}{}
	}
}
