package store

import (
	"net/netip"

	"github.com/bifrost-rack/bifrost/dsm/packet"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// undo is what executions have changed and nobody has committed.
//
//	byID ─▶ execution ─▶ regions ─▶ changes ─▶ copies of pages, turned pages
//
// Control of a region leaves an execution only by commit, so at most one
// execution has changes in a region, and they are on top of everything else
// there. A request that would break that is refused.
type undo struct {
	limit, used uint64 // bytes: see Store.KeepUndo
	byID        map[control.ExecutionID]*execution
	marks       marks
	pages       spare
	// Counters.
	kept, commits, rollbacks, refused uint64
}

// execution is an execution that has changed something.
type execution struct {
	id      control.ExecutionID
	by      runner                // who runs it, or ran it last
	rolled  bool                  // by's run was rolled back, and no other has begun here
	regions []*region             // that it has changed, and some that it has not any more
	live    int                   // of the former
	allocs  map[allocKey]*changes // in those that it allocated
}

// runner is one incarnation of a node.
type runner struct {
	node        netip.Addr
	incarnation uint32
}

// allocKey is an operation's place in its execution, which a re-run repeats.
type allocKey struct {
	branch uint64
	index  uint32
}

func keyOf(r *Request) allocKey { return allocKey{r.Header.Branch, r.Header.Index} }

// changes is what one execution has done to one region.
type changes struct {
	region *region
	by     *execution
	cost   uint64 // what it is charged with
	freed  bool   // to be freed by the commit
	saved  pageSet
	pages  []page
	turned []uint64 // like shadow.there, the pages that were turned; nil while it does without

	own  bool // by has allocated the region: its old content is zeros
	key  allocKey
	size uint64 // asked for
	used bool   // this run has allocated it, not only an earlier one
}

// runs reports whether the request comes from whoever runs the execution: the first to
// send one after a rollback.
func (e *execution) runs(r *Request) bool {
	now := runner{r.Node, r.Header.Incarnation}
	if e.rolled {
		e.by, e.rolled = now, false
	}
	return e.by == now
}

// change returns the changes to note a request's own in; nil if it is final at
// once. A region that another execution has changed is refused: that must not
// happen, and would make one of the two impossible to undo. An execution that an
// earlier incarnation has run is to be rolled back first; the client asks again.
func (s *Store) change(r *Request, reg *region) (*changes, fault.Code) {
	c := reg.changes
	switch {
	case c == nil && !s.undo.concerns(r):
		return nil, fault.OK
	case c == nil:
		if status := s.undo.admit(r); status != fault.OK {
			return nil, status
		}
		return s.undo.open(r, reg), fault.OK
	case c.by.id != r.Header.Execution && s.mirrored(): // the commit may have reached the other copy only
		return nil, fault.Overloaded
	case c.by.id != r.Header.Execution:
		return nil, fault.Internal
	case !c.by.runs(r):
		return nil, fault.Overloaded
	}
	return c, fault.OK
}

// protect makes sure that n bytes at an offset can be brought back.
func (s *Store) protect(r *Request, reg *region, at, n uint64) fault.Code {
	c, status := s.change(r, reg)
	if c == nil || c.own {
		return status
	}
	status = s.keep(c, at, n)
	if !c.freed && len(c.pages) == 0 && c.turned == nil {
		s.settleChanges(reg) // nothing is changed
	}
	return status
}

// recall finds the region that an earlier run of the execution allocated in the
// same place. To use a place twice in one run is Nondeterminism, and so is
// another size.
func (s *Store) recall(r *Request) (*region, fault.Code) {
	var c *changes
	if e := s.undo.byID[r.Header.Execution]; e != nil {
		if !e.runs(r) {
			return nil, fault.Overloaded
		}
		c = e.allocs[keyOf(r)]
	}
	switch {
	case c == nil && r.Header.Flags&packet.FlagRecall != 0:
		return nil, fault.NotFound
	case c == nil:
		return nil, fault.OK
	case c.used || c.size != r.Header.Length:
		return nil, fault.Nondeterminism
	}
	c.used = true
	return c.region, fault.OK
}

// concerns reports whether what the request changes can be taken back.
func (u *undo) concerns(r *Request) bool {
	return r.Header.Execution != control.ExecutionID{} && u.limit > 0
}

// admit reports whether the request's execution may change one more region.
func (u *undo) admit(r *Request) fault.Code {
	cost := uint64(regionCost)
	if e := u.byID[r.Header.Execution]; e == nil {
		cost += executionCost
	} else if !e.runs(r) {
		return fault.Overloaded
	}
	return u.room(cost)
}

func (u *undo) room(cost uint64) fault.Code {
	if u.used+cost > u.limit {
		return fault.Overloaded
	}
	return fault.OK
}

// open begins the changes of an execution that admit has let in.
func (u *undo) open(r *Request, reg *region) *changes {
	e := u.byID[r.Header.Execution]
	if e == nil {
		e = &execution{id: r.Header.Execution, by: runner{r.Node, r.Header.Incarnation}}
		u.byID[e.id] = e
		u.used += executionCost
	}
	return u.attach(e, reg)
}

// attach makes an execution one that has changes in a region.
func (u *undo) attach(e *execution, reg *region) *changes {
	c := &changes{region: reg, by: e, cost: regionCost}
	u.used += c.cost
	reg.changes = c
	e.regions = append(e.regions, reg)
	e.live++
	return c
}

// own notes that the execution has allocated a region.
func (u *undo) own(r *Request, reg *region) {
	c := u.open(r, reg)
	c.own, c.used, c.key, c.size = true, true, keyOf(r), r.Header.Length
	c.by.keep(c)
}

// keep notes changes in a region that the execution has allocated.
func (e *execution) keep(c *changes) {
	if e.allocs == nil {
		e.allocs = make(map[allocKey]*changes)
	}
	e.allocs[c.key] = c
}

// settleChanges forgets the changes of a region: they are final, undone, or gone
// with it.
func (s *Store) settleChanges(reg *region) {
	turned := reg.changes != nil && reg.changes.turned != nil
	s.undo.settle(reg)
	if turned {
		s.rest(reg)
	}
}

// settle does what settleChanges says, without the shadow.
func (u *undo) settle(reg *region) {
	c := reg.changes
	if c == nil {
		return
	}
	for _, p := range c.pages {
		u.pages.put(p.old)
	}
	if c.own {
		delete(c.by.allocs, c.key)
	}
	u.used -= c.cost
	reg.changes = nil
	if last := len(c.by.regions) - 1; last >= 0 && c.by.regions[last] == reg {
		c.by.regions = c.by.regions[:last] // it does not grow with what is refused or taken back
	}
	if c.by.live--; c.by.live == 0 {
		delete(u.byID, c.by.id)
		u.used -= executionCost
	}
}
