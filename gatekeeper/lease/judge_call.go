package lease

import (
	"slices"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
)

// call: "A must control or lease p. A loses write and free; B may read. B may
// pass its lease on in a nested call."
func (m *Machine) call(j *job, e Call, c *change) (Outcome, *Refusal) {
	if known := m.calls[e.ID]; known != nil {
		if known.caller == e.Caller {
			return Again, nil
		}
		return refuse(Taken, e.Caller, dsmpacket.Pointer{})
	}
	for _, n := range []Node{e.Caller, e.Callee} {
		if m.nodes[n] == nil {
			return refuse(NoNode, n, dsmpacket.Pointer{})
		}
	}
	for _, p := range e.Pointers {
		switch r := m.mine(j, p); {
		case r == nil:
			return refuse(m.absent(p), e.Caller, p)
		case r.freeing:
			return refuse(Freeing, e.Caller, p)
		case r.controller != e.Caller && !r.reads(e.Caller):
			return refuse(NotHeld, e.Caller, p)
		}
	}
	k := &call{id: e.ID, caller: e.Caller, callee: e.Callee}
	for _, r := range j.regions {
		c.touch(r, r.controller)
		c.touch(r, e.Callee)
		r.lend(k)
	}
	m.follow(k, e.Parent)
	return Done, nil
}

// follow makes a call known, under its parent.
func (m *Machine) follow(k *call, parent CallID) {
	m.calls[k.id] = k
	m.nodes[k.caller].calls[k] = struct{}{}
	m.nodes[k.callee].calls[k] = struct{}{}
	m.nest(k, parent)
}

// nest notes that call k passes on a lease of the call that its caller is
// serving as parent, whose reply must then wait.
func (m *Machine) nest(k *call, parent CallID) {
	p := m.calls[parent]
	if p == nil || p == k || p.callee != k.caller || p.replied {
		return
	}
	shared := func(l *leased) bool {
		return slices.ContainsFunc(k.leases, func(o *leased) bool { return o.region == l.region })
	}
	if slices.ContainsFunc(p.leases, shared) {
		k.under = p
		p.nested++
	}
}

// reply: "B's lease for that call ends; when no lease is left the controller has
// write and free back. A result pointer that B controls moves to A's control;
// one that B does not control turns the reply into an exception."
func (m *Machine) reply(j *job, e Reply, c *change) (Outcome, *Refusal) {
	k := m.calls[e.ID]
	if k != nil && (k.callee != e.Callee || k.caller != e.Caller) {
		return refuse(NotTheCall, e.Callee, dsmpacket.Pointer{})
	}
	if k != nil && k.nested > 0 && m.nodes[k.callee] != nil {
		m.park(k, j)
		return parked, nil
	}
	bad := m.results(j, e)
	if k != nil {
		m.end(k, c)
	}
	if bad != nil {
		return Refused, bad
	}
	for _, r := range m.named(nil, e.Results) {
		c.touch(r, e.Callee)
		c.touch(r, e.Caller)
		m.control(r, e.Caller)
		m.sweep(r, c) // the caller may be gone
	}
	return Done, nil
}

// results checks that the callee may hand over what a reply names.
func (m *Machine) results(j *job, e Reply) *Refusal {
	for _, p := range e.Results {
		switch r := m.mine(j, p); {
		case r == nil:
			return &Refusal{m.absent(p), p, e.Callee}
		case r.controller != e.Callee:
			return &Refusal{NotController, p, e.Callee}
		case r.freeing:
			return &Refusal{Freeing, p, e.Callee}
		}
	}
	return nil
}

// oneway: "control moves to B (nobody will return it)".
func (m *Machine) oneway(j *job, e Oneway, c *change) (Outcome, *Refusal) {
	for _, n := range []Node{e.Caller, e.Callee} {
		if m.nodes[n] == nil {
			return refuse(NoNode, n, dsmpacket.Pointer{})
		}
	}
	for _, p := range e.Pointers {
		switch r := m.mine(j, p); {
		case r == nil:
			return refuse(m.absent(p), e.Caller, p)
		case r.controller != e.Caller:
			return refuse(NotController, e.Caller, p)
		case r.freeing:
			return refuse(Freeing, e.Caller, p)
		}
	}
	for _, r := range j.regions {
		c.touch(r, e.Caller)
		c.touch(r, e.Callee)
		m.control(r, e.Callee)
	}
	return Done, nil
}

// withdrawn undoes a oneway, as far as it has happened. If the caller is gone for
// good meanwhile, nobody has what it had.
func (m *Machine) withdrawn(j *job, e Withdrawn, c *change) {
	for _, r := range j.regions {
		if r.controller == e.Callee && !r.dead {
			c.touch(r, e.Caller)
			c.touch(r, e.Callee)
			m.control(r, e.Caller)
			m.sweep(r, c)
		}
	}
}

// end ends a call and its leases.
func (m *Machine) end(k *call, c *change) {
	for _, l := range k.leases {
		c.touch(l.region, l.region.controller)
		c.touch(l.region, k.callee)
		l.region.end(l)
		m.sweep(l.region, c)
	}
	k.leases = nil
	delete(m.calls, k.id)
	for _, n := range []Node{k.caller, k.callee} {
		if o := m.nodes[n]; o != nil {
			delete(o.calls, k)
		}
	}
	if p := k.under; p != nil {
		if p.nested--; p.nested == 0 && p.parked != nil {
			m.unpark(p)
		}
	}
}

// drop takes a lease out of a call whose region is lost.
func (k *call) drop(l *leased) {
	k.leases = slices.DeleteFunc(k.leases, func(o *leased) bool { return o == l })
}
