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
	quota       uint64 // of one node; 0 is no bound
	byNode      map[netip.Addr]uint64
	byRun       map[runKey]*execution
	moving      map[control.ExecutionID]*execution // those that move
	marks       marks
	pages       spare
	// Counters.
	kept, commits, rollbacks, refused, overQuota uint64
}

// runKey identifies an execution: by its id, and by the node that runs it, which alone
// is sure. A node that names another one's execution has an execution of its own.
type runKey struct {
	id   control.ExecutionID
	node netip.Addr
}

// execution is an execution that has changed something.
type execution struct {
	id      control.ExecutionID
	by      runner                // who runs it, or ran it last
	rolled  bool                  // by's run was rolled back, and no other has begun here
	moves   bool                  // rolled, and a durable main: any node may run it again
	cost    uint64                // what it and its changes are charged with
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

func (e *execution) key() runKey { return runKey{e.id, e.by.node} }

// runs reports whether the request comes from whoever runs an execution: the node's first
// incarnation to send one after a rollback.
func (u *undo) runs(e *execution, r *Request) bool {
	now := runner{r.Node, r.Header.Incarnation}
	if e.rolled && e.by.node == now.node {
		u.stays(e)
		e.by, e.rolled = now, false
	}
	return e.by == now
}

// of returns the execution that a node's requests under an id belong to, nil if there is
// none: of that node, or a durable main that was rolled back elsewhere, which is that
// node's from now on.
func (u *undo) of(id control.ExecutionID, node netip.Addr) *execution {
	if e := u.byRun[runKey{id, node}]; e != nil || len(u.moving) == 0 {
		return e
	}
	e := u.moving[id]
	if e == nil {
		return nil
	}
	u.stays(e)
	u.remove(e)
	e.by.node = node
	u.add(e)
	return e
}

// stays keeps a durable main at its node.
func (u *undo) stays(e *execution) {
	if e.moves {
		e.moves = false
		delete(u.moving, e.id)
	}
}

// add makes an execution one that is known; remove undoes it.
func (u *undo) add(e *execution) {
	u.byRun[e.key()] = e
	u.byNode[e.by.node] += e.cost
	if e.moves {
		u.moving[e.id] = e
	}
}

func (u *undo) remove(e *execution) {
	delete(u.byRun, e.key())
	u.stays(e)
	if u.byNode[e.by.node] -= e.cost; u.byNode[e.by.node] == 0 {
		delete(u.byNode, e.by.node)
	}
}

// charge charges an execution that is known with bytes.
func (u *undo) charge(e *execution, cost uint64) {
	u.used += cost
	e.cost += cost
	u.byNode[e.by.node] += cost
}

// credit takes back a charge.
func (u *undo) credit(e *execution, cost uint64) { u.charge(e, -cost) }

// change returns the changes to note a request's own in; nil if it is final at
// once. A region that another execution has changed is refused: that must not
// happen, and would make one of the two impossible to undo. An execution that an
// earlier incarnation has run is to be rolled back first; the client asks again.
func (s *Store) change(r *Request, reg *region) (*changes, fault.Code) {
	if len(s.undo.moving) > 0 {
		s.undo.of(r.Header.Execution, r.Node) // it may have run elsewhere
	}
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
	case !s.undo.runs(c.by, r):
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
	if e := s.undo.of(r.Header.Execution, r.Node); e != nil {
		if !s.undo.runs(e, r) {
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
	if e := u.of(r.Header.Execution, r.Node); e == nil {
		cost += executionCost
	} else if !u.runs(e, r) {
		return fault.Overloaded
	}
	return u.room(r.Node, cost)
}

// room reports whether a node's executions may be charged with more.
func (u *undo) room(node netip.Addr, cost uint64) fault.Code {
	if u.used+cost > u.limit {
		return fault.Overloaded
	}
	if u.quota > 0 && u.byNode[node]+cost > u.quota {
		u.overQuota++
		return fault.Overloaded
	}
	return fault.OK
}

// open begins the changes of an execution that admit has let in.
func (u *undo) open(r *Request, reg *region) *changes {
	e := u.of(r.Header.Execution, r.Node)
	if e == nil {
		e = &execution{id: r.Header.Execution, by: runner{r.Node, r.Header.Incarnation}}
		u.add(e)
		u.charge(e, executionCost)
	}
	return u.attach(e, reg)
}

// attach makes an execution one that has changes in a region.
func (u *undo) attach(e *execution, reg *region) *changes {
	c := &changes{region: reg, by: e, cost: regionCost}
	u.charge(e, c.cost)
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
	u.credit(c.by, c.cost)
	reg.changes = nil
	if last := len(c.by.regions) - 1; last >= 0 && c.by.regions[last] == reg {
		c.by.regions = c.by.regions[:last] // it does not grow with what is refused or taken back
	}
	if c.by.live--; c.by.live == 0 {
		u.credit(c.by, executionCost)
		u.remove(c.by)
	}
}
