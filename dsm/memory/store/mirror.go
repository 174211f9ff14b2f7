package store

import (
	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// A store is one of its machine's copies. The copies get the same changes, each in an
// order of its own, and stay equal because of what clients and Gatekeeper promise:
// changes that overlap follow each other, and commands reach every copy. Only the first
// copy chooses slots: AllocAt has the second one make the same region.

// Become makes the store a copy of its machine, in a new mirror epoch. A store that was
// another copy before forgets everything. One that is being filled cannot become the copy
// that it will be: that is Stale, and so is an epoch below the present one. A new epoch
// ends the filling of another copy.
func (s *Store) Become(m control.Mirror) error {
	if m.Members < 1 || m.Members > dsmpacket.MaxMembers || m.Copy >= m.Members {
		return fault.New(fault.BadRequest, "mirror", "copy %d of %d", m.Copy, m.Members)
	}
	if m.Epoch < s.mirror.Epoch {
		return fault.New(fault.Stale, "mirror", "epoch %d is older than this copy's epoch %d", m.Epoch, s.mirror.Epoch)
	}
	switch {
	case m.Incarnation != s.mirror.Incarnation:
		s.Forget()
	case s.filled != nil:
		return fault.New(fault.Stale, "mirror", "copy %d has not been filled", m.Incarnation)
	case m.Epoch != s.mirror.Epoch:
		s.diverged = 0
		s.EndFill()
		for _, c := range s.clients.byNode {
			c.unsettled = control.Unsettled{} // the machine has other copies, which are equal
		}
	}
	s.lost = m.Lost
	s.mirror = dsmpacket.Mirror{Epoch: m.Epoch, Incarnation: m.Incarnation, Copy: m.Copy, Members: m.Members}
	return nil
}

// Mirror says which copy of its machine the store is.
func (s *Store) Mirror() dsmpacket.Mirror { return s.mirror }

// Diverged is how often clients have said in this mirror epoch that the copies disagree
// about a request.
func (s *Store) Diverged() uint64 { return s.diverged }

// mirrored reports whether the machine has another copy.
func (s *Store) mirrored() bool { return s.mirror.Members > 1 }

// AllocAt makes the region that the machine's first copy has made for a request, with the
// same id. It is idempotent. NoSpace means that this copy has no room for it;
// Overloaded, that it has none now; BadRequest, that the copies disagree.
func (s *Store) AllocAt(q control.AllocAt) error {
	class, ok := dsmpacket.ClassFor(q.Size)
	if !ok || !q.ID.Valid() {
		return fault.New(fault.BadRequest, "alloc at", "no region of %d bytes can be %s", q.Size, q.ID)
	}
	r := &Request{Node: q.Node, To: dsmpacket.Make(s.cfg.Prefix, s.cfg.Machine, 0).With(dsmpacket.OpAlloc), Header: dsmpacket.Header{
		Kind: dsmpacket.Request, Request: q.Request, Floor: q.Floor, Execution: q.Execution, Branch: q.Branch, Index: q.Index,
		Incarnation: q.Incarnation, Length: q.Size,
	}}
	c, st := s.clients.admit(r.Node, r.Header.Incarnation, r.Header.Floor)
	switch {
	case st == noRecord:
		return fault.New(fault.Overloaded, "alloc at", "no room for the record of another client")
	case st == stale:
		return fault.New(fault.Stale, "alloc at", "incarnation %d of %s is fenced", q.Incarnation, q.Node)
	case q.Request < c.window.floor:
		return nil // a late copy: the client has had its answer
	case !s.clients.reserve(&c.window, q.Request):
		return fault.New(fault.Overloaded, "alloc at", "no room for the record of another request")
	}
	if rec := c.window.find(q.Request); rec != nil {
		if rec.op != dsmpacket.OpAlloc || rec.status != fault.OK || rec.region != q.ID {
			return fault.New(fault.BadRequest, "alloc at", "request %d of %s had another outcome at this copy", q.Request, q.Node)
		}
		return nil
	}
	reg, status := s.recall(r)
	if reg == nil && status == fault.OK {
		reg, status = s.allocateAt(r, class, q.ID)
	}
	switch {
	case status != fault.OK:
		return fault.New(status, "alloc at", "this copy cannot make region %s of %d bytes", q.ID, q.Size)
	case reg.id != q.ID:
		return fault.New(fault.BadRequest, "alloc at", "an earlier run of the operation got %s at this copy, not %s", reg.id, q.ID)
	}
	c.window.put(record{id: q.Request, op: dsmpacket.OpAlloc, length: q.Size, region: reg.id, class: reg.class})
	return nil
}

// allocateAt makes a region in a slot that another copy has chosen.
func (s *Store) allocateAt(r *Request, class uint8, id dsmpacket.RegionID) (*region, fault.Code) {
	if s.lives(id) {
		return nil, fault.BadRequest
	}
	return s.make(r, class, func() (dsmpacket.RegionID, bool) { return s.slots.give(id.Slot(), id.Generation()), true })
}
