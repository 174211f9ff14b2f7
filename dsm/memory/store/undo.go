package store

import (
	"bytes"
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/share"
)

// undo is what executions have changed and nobody has committed.
//
//	byID ─▶ execution ─▶ regions ─▶ changes ─▶ copies of pages, turned pages
//
// Control of a region leaves an execution only by commit, so at most one
// execution has changes in a region, and they are on top of everything else
// there. A request that would break that is refused.
type undo struct {
	limit  uint64       // bytes: see Store.KeepUndo
	shares *share.Nodes // what nodes are charged with of them
	owners *owners
	byRun  map[runKey]*execution
	marks  marks
	pages  spare
	// Counters.
	kept, commits, rollbacks, refused uint64
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
		e.by, e.rolled = now, false
	}
	return e.by == now
}

// of returns the execution that a request belongs to, nil if there is none.
func (u *undo) of(r *Request) *execution { return u.byRun[runKey{r.Header.Execution, r.Node}] }

// charge charges an execution with bytes.
func (u *undo) charge(e *execution, cost uint64) {
	e.cost += cost
	u.shares.Force(e.by.node, cost)
}

// credit takes back a charge.
func (u *undo) credit(e *execution, cost uint64) {
	e.cost -= cost
	u.shares.Release(e.by.node, cost)
}

// change returns the changes to note a request's own in; nil if it is final at once. A region
// that another execution has changed is refused, since one of the two could not be undone
// then: the node's commit may be on its way. So is one that an earlier incarnation has changed,
// which is to be rolled back first. The client asks again.
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
	case c.by.id != r.Header.Execution:
		return nil, fault.Overloaded
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
	if len(c.pages) == 0 && c.turned == nil {
		s.settleChanges(reg) // nothing is changed
	}
	return status
}

// again answers an allocation of a region that is there. An execution gets what an earlier run of it has allocated in the same
// place. To use a place twice in one run is Nondeterminism, and so is another size. On behalf of no execution, a node gets what a former
// incarnation of it has allocated so: if that has not heard the answer, the switch does not know the region as the node's yet, and
// the node could not free it. If the region has changed hands since, the switch knows.
func (s *Store) again(r *Request, reg *region) (status fault.Code, why uint8) {
	e, c := s.undo.of(r), reg.changes
	class, _ := dsmpacket.ClassFor(r.Header.Length)
	switch {
	case c == nil && !s.undo.concerns(r) && reg.owner == r.Node && reg.incarnation < r.Header.Incarnation && reg.class == class && s.granted(r) != nil:
		reg.incarnation = r.Header.Incarnation
		return fault.OK, 0
	case e == nil || c == nil || c.by != e || !c.own:
		return fault.NoSpace, dsmpacket.FlagSlot
	case !s.undo.runs(e, r):
		return fault.Overloaded, 0
	case c.key != keyOf(r) || c.used || c.size != r.Header.Length:
		return fault.Nondeterminism, 0
	}
	c.used = true
	return fault.OK, 0
}

// concerns reports whether what the request changes can be taken back.
func (u *undo) concerns(r *Request) bool {
	return r.Header.Execution != control.ExecutionID{} && u.limit > 0
}

// admit reports whether the request's execution may change one more region.
func (u *undo) admit(r *Request) fault.Code {
	cost := uint64(regionCost)
	if e := u.of(r); e == nil {
		cost += executionCost
	} else if !u.runs(e, r) {
		return fault.Overloaded
	}
	if u.shares.Crowded() && u.owners.seek(r) {
		r.AsksOwner = true
	}
	return u.room(r.Node, cost)
}

// full reports whether there is no room for so many bytes more.
func (u *undo) full(cost uint64) bool { return u.shares.Used()+cost > u.limit }

// room reports whether a node's executions may be charged with more.
func (u *undo) room(node netip.Addr, cost uint64) fault.Code {
	switch {
	case u.full(cost):
		return fault.Overloaded
	case u.owners != nil && cost > u.shares.Room(node):
		u.shares.Refuse(node)
		return fault.Overloaded
	}
	return fault.OK
}

// open begins the changes of an execution that admit has let in.
func (u *undo) open(r *Request, reg *region) *changes {
	e := u.of(r)
	if e == nil {
		e = &execution{id: r.Header.Execution, by: runner{r.Node, r.Header.Incarnation}}
		u.byRun[e.key()] = e
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
		u.drop(c.by)
	}
}

// drop forgets an execution without changes.
func (u *undo) drop(e *execution) {
	u.credit(e, executionCost)
	delete(u.byRun, e.key())
}

// Fence refuses a node's incarnations up to the given one from now on. It is
// idempotent, but only the first time returns what they had allocated by requests
// that they had not settled. If nobody is left to say what becomes of what their executions
// did, that is taken back.
func (s *Store) Fence(f control.Fence) (answer control.Fenced) {
	c, floor, records := s.clients.fence(f.Node, f.Incarnation)
	if floor > 0 {
		c.unsettled.Floor = floor
	}
	for i := range records {
		rec := &records[i]
		s.unsettled(&c.unsettled, rec)
		if rec.op == dsmpacket.OpAlloc && rec.status == fault.OK {
			c.made = append(c.made, rec.region)
		}
	}
	if c.incarnation == f.Incarnation {
		answer.Unsettled = c.unsettled
		c.made = slices.DeleteFunc(c.made, func(id dsmpacket.RegionID) bool { return s.regions.byID[id] == nil })
		for _, id := range c.made[:min(len(c.made), control.MaxRegions)] {
			answer.Regions = append(answer.Regions, s.regions.byID[id].told())
		}
		answer.More = len(c.made) > control.MaxRegions
	}
	if f.Forsaken {
		s.takeBackAll(f)
	}
	return answer
}

// unsettled adds a change that the node may not have got to all copies. What an
// execution has written is taken back everywhere, so it is left out.
func (s *Store) unsettled(all *control.Unsettled, rec *record) {
	reg := s.regions.byID[rec.region]
	free, alloc := rec.op == dsmpacket.OpFree, rec.op == dsmpacket.OpAlloc
	switch {
	case !s.mirrored() || rec.status != fault.OK || !free && (reg == nil || !alloc && reg.changes != nil):
	case len(all.Writes)+len(all.Frees)+len(all.Allocs) == control.MaxUnsettled:
		all.More = true
	case free:
		all.Frees = append(all.Frees, rec.region)
	case alloc:
		all.Allocs = append(all.Allocs, control.Unheard{ID: rec.region, Request: rec.id})
	default:
		all.Writes = append(all.Writes, control.Span{ID: rec.region, Offset: rec.at, Length: rec.length})
	}
}

// told is how the Gatekeeper is told of a region.
func (r *region) told() control.RegionID {
	id := control.RegionID{ID: r.id, Class: r.class, Owner: r.owner}
	if c := r.changes; c != nil && c.own {
		id.Execution = c.by.id
	}
	return id
}

// Forget frees all regions, and forgets all that is known of nodes, of executions and of
// other copies. No id is given again.
func (s *Store) Forget() {
	s.EndFill()
	for _, reg := range s.regions.byID {
		s.release(reg)
	}
	for _, e := range s.undo.byRun { // a filling was cut off between them and their regions
		s.undo.drop(e)
	}
	s.clients = newClients(s.cfg.Limits)
	s.undo.marks = marks{most: s.cfg.Limits.Marks}
	s.forgetBatches()
	s.filled = nil
	s.mirror, s.diverged = dsmpacket.Mirror{Members: 1}, 0
}

// Reclaim frees regions whose holder is gone. A region that does not live any
// more is no error.
func (s *Store) Reclaim(r control.Reclaim) (answer control.Reclaimed) {
	for _, id := range r.Regions {
		switch reg := s.regions.byID[id.ID]; {
		case reg == nil:
		case reg.class != id.Class && id.Class != control.AnyClass:
			s.undo.refused++
			answer.Refused = append(answer.Refused, id)
		default:
			s.release(reg)
		}
	}
	return answer
}

// List returns live regions in the order of their ids.
func (s *Store) List(q control.Regions) control.RegionList {
	limit := control.MaxRegions
	if q.Max > 0 {
		limit = min(limit, q.Max)
	}
	var ids []dsmpacket.RegionID
	for id := range s.regions.byID {
		if id >= q.From {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	var l control.RegionList
	for i, id := range ids {
		if i == limit {
			l.Next = id
			break
		}
		l.Regions = append(l.Regions, s.regions.byID[id].told())
	}
	return l
}

// UndoStats is what the undo holds now and has done so far.
type UndoStats struct {
	// Executions have something to commit or to roll back; it takes Bytes.
	Executions int
	Bytes      uint64
	// Pages have been kept; Commits and Rollbacks carried out, each of an
	// execution that there was something of. Refused counts words about other runs, and the
	// regions that commands named in vain (control.Reclaimed).
	Pages, Commits, Rollbacks, Refused uint64
	// Forgotten counts durable mains whose last word is not remembered any more, for
	// lack of room.
	Forgotten uint64
}

// KeepUndo sets how many bytes the undo of executions may take; at first it is 0.
// A write or allocation that would need more is Overloaded, which its client repeats for
// some time, as others may be committed meanwhile. With 0 none is kept, and what
// executions change from then on is final at once.
func (s *Store) KeepUndo(limit uint64) {
	s.undo.limit = limit
	s.undo.shares.SetFree(limit - min(limit, s.undo.shares.Used()))
}

// Undo returns the undo's numbers.
func (s *Store) Undo() UndoStats {
	u := &s.undo
	return UndoStats{Executions: len(u.byRun), Bytes: u.shares.Used(), Pages: u.kept, Commits: u.commits, Rollbacks: u.rollbacks, Refused: u.refused, Forgotten: u.marks.dropped}
}

// UndoOf is how many executions of a node have changed something that is neither committed nor taken back.
func (s *Store) UndoOf(node netip.Addr) (n int) {
	for k, e := range s.undo.byRun {
		if k.node == node && !e.rolled {
			n++
		}
	}
	return n
}

// inOrder returns the keys of all executions, by id, then node.
func (u *undo) inOrder() []runKey {
	return slices.SortedFunc(maps.Keys(u.byRun), func(a, b runKey) int {
		return cmp.Or(bytes.Compare(a.id[:], b.id[:]), a.node.Compare(b.node))
	})
}
