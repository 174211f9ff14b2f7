package store

import (
	"github.com/bifrost-rack/bifrost/dsm/packet"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// alloc makes a region of the size asked for, rounded up to a size class, or
// finds the one that an earlier run of the execution got.
func (s *Store) alloc(r *Request, rec *record) {
	class, ok := packet.ClassFor(r.Header.Length)
	if !ok {
		rec.status = fault.BadRequest
		return
	}
	reg, status := s.recall(r)
	if reg == nil && status == fault.OK {
		reg, status = s.allocate(r, class)
	}
	if rec.status = status; status == fault.OK {
		rec.length, rec.address, rec.class = r.Header.Length, reg.base, reg.class
	}
}

// allocate makes a region at an address of its own.
func (s *Store) allocate(r *Request, class uint8) (*region, fault.Code) {
	if !s.held.may(r.Node, class, s.cfg.Quota) {
		return nil, fault.NoSpace
	}
	return s.make(r, class, func() (uint64, bool) { return s.space.take(class) })
}

// make makes a region at the address that choose gives.
func (s *Store) make(r *Request, class uint8, choose func() (uint64, bool)) (*region, fault.Code) {
	undone := s.undo.concerns(r)
	if undone {
		if status := s.undo.admit(r); status != fault.OK {
			return nil, status
		}
	}
	block, ok := s.arena.take(class)
	for !ok && len(s.shadows.list) > 0 {
		s.unshade(s.shadows.list[0])
		block, ok = s.arena.take(class)
	}
	if !ok {
		return nil, fault.NoSpace
	}
	base, ok := choose()
	if !ok {
		s.arena.give(block, class, 0, 0)
		return nil, fault.NoSpace
	}
	reg := &region{base: base, block: block, class: class, owner: r.Node, data: s.arena.bytes(block, class)}
	s.regions.add(reg)
	s.held.charge(reg.owner, class)
	if s.fill != nil {
		s.fill.watch(reg)
	}
	if undone {
		s.undo.own(r, reg)
	}
	return reg, fault.OK
}

// find returns the live region that holds the n bytes at p, and where in it.
func (s *Store) find(p packet.Pointer, n uint64) (*region, uint64, fault.Code) {
	reg := s.regions.find(p.Offset())
	if reg == nil || reg.changes != nil && reg.changes.freed {
		return nil, 0, s.absent(p)
	}
	at := p.Offset() - reg.base
	if n > uint64(len(reg.data))-at {
		return nil, 0, fault.BadRequest
	}
	return reg, at, fault.OK
}

// read answers with the region's own bytes. Reads change nothing, so they are
// not recorded: one that comes twice is carried out twice.
func (s *Store) read(r *Request) Answer {
	n := r.Header.Length
	if n > uint64(s.cfg.MaxData) {
		return refuse(r, fault.BadRequest)
	}
	n *= 1 + uint64(r.Header.More)
	reg, at, status := s.find(r.To, n)
	if status != fault.OK {
		return refuse(r, status)
	}
	a := answer(r, fault.OK, r.Header.Length)
	a.Data = reg.view(at, n)
	return a
}

// write puts the datagram's data where its address says.
func (s *Store) write(r *Request) (uint64, fault.Code) {
	n := r.Header.Length
	if n != uint64(r.size()) { //nolint:gosec // not negative
		return 0, fault.BadRequest
	}
	reg, at, status := s.find(r.To, n)
	if status != fault.OK {
		return 0, status
	}
	if status := s.protect(r, reg, at, n); status != fault.OK {
		return 0, status
	}
	if r.Receive == nil {
		reg.put(at, r.Data)
		return n, fault.OK
	}
	if !reg.receive(at, n, r.Receive) {
		return 0, fault.Overloaded
	}
	return n, fault.OK
}

// free ends the region whose first byte is asked for: for an execution when it
// is committed, unless it takes its own allocation back that it has not seen the
// end of.
func (s *Store) free(r *Request) (flags uint8, status fault.Code) {
	reg, at, status := s.find(r.To, 0)
	switch {
	case status != fault.OK:
		return 0, status
	case at != 0:
		return 0, fault.BadRequest
	}
	c, status := s.change(r, reg)
	if status != fault.OK {
		return 0, status
	}
	if c == nil || c.own && c.key == keyOf(r) {
		s.release(reg)
		return 0, fault.OK
	}
	c.freed = true
	return packet.FlagDeferred, fault.OK
}

func (s *Store) release(reg *region) {
	reg.unnote()
	s.undo.settle(reg)
	s.dropShadow(reg)
	s.regions.remove(reg)
	if reg.owner.IsValid() {
		s.held.release(reg.owner, reg.class)
	}
	s.arena.give(reg.block, reg.class, reg.from, reg.to)
}

// settle tells an earlier request's fate, and makes it final if this is the only copy,
// or no copy has carried the request out: what has not come by now never will be.
func (s *Store) settle(r *Request, c *client) Answer {
	if r.Header.Flags&packet.FlagDiverged == 0 {
		return s.tell(r, c)
	}
	s.diverged++
	a := s.tell(r, c)
	a.Header.Flags |= packet.FlagNoted
	return a
}

// tell does what settle says.
func (s *Store) tell(r *Request, c *client) Answer {
	id := r.Header.Length
	if id < c.window.floor || id >= r.Header.Request {
		return refuse(r, fault.BadRequest)
	}
	if rec := c.window.find(id); rec != nil && !rec.dead {
		a := answer(r, rec.status, rec.length)
		a.Header.Flags = packet.FlagApplied | rec.flags
		return a
	}
	if s.regions.find(r.To.Offset()) == nil && s.absent(r.To) == fault.Unavailable {
		return refuse(r, fault.Unavailable) // there is nothing that a late copy could change
	}
	if s.mirrored() && r.Header.Flags&packet.FlagFinal == 0 {
		return answer(r, fault.OK, 0)
	}
	if !s.clients.reserve(&c.window, id) {
		return refuse(r, fault.Overloaded)
	}
	c.window.put(record{id: id, dead: true})
	a := answer(r, fault.OK, 0)
	a.Header.Flags = packet.FlagFinal
	return a
}
