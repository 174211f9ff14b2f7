package store

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// The node that runs an execution decides what becomes of its changes. When the node has failed, its
// next incarnation reads in its ledger what is done, and says so here:
//
//	next incarnation ─▶ may not read or write there ─▶ its commit or rollback of the run ─▶ may again
//	fence of a node that nobody brings back ─▶ taken back
//
// A commit or rollback names the run that it is for (control.Run), and is obeyed only for the changes
// of that run:
//
//	the store has changes of          commit of run R         rollback of run R
//	nobody                            nothing to do           nothing to do
//	R                                 made final              taken back
//	an earlier incarnation of R's     refused                 taken back
//	a later incarnation of R's        refused                 refused
//	R or an earlier one, rolled back  allocations go          nothing to do
//
// A rollback leaves what the execution has allocated, for its next run to find. What the run that is committed has not asked for again
// goes with the commit: nobody can know it.
//
// Requests do not tell the runs of a durable main within one incarnation apart, nor
// what comes before and after a checkpoint. So the store remembers the last word
// about each durable main (marks): the changes that it has came after that word.

// Commit makes final what a run of one of a node's executions has done, as an incarnation of the node
// says. It is idempotent. It is Stale if that incarnation is fenced or replaced, or if the changes are
// another run's; and BadRequest if the run is a later one than the incarnation.
func (s *Store) Commit(run control.Run, says uint32) fault.Code { return s.obey(run, says, false) }

// Rollback is Commit, but takes back what the run has done, or an earlier one.
func (s *Store) Rollback(run control.Run, says uint32) fault.Code { return s.obey(run, says, true) }

// obey carries out a commit, or a rollback.
func (s *Store) obey(run control.Run, says uint32, back bool) fault.Code {
	if s.ended(run.Node, says) {
		return fault.Stale
	}
	if run.Incarnation > says || run.Execution == (control.ExecutionID{}) {
		return fault.BadRequest
	}
	switch e, v := s.undo.judge(run, back); {
	case v == refused:
		s.undo.refused++
		return fault.Stale
	case v == settled: // it has been done before
	case back:
		s.undo.rollbacks++
		s.rollback(e)
		e.by.incarnation, e.rolled = run.Incarnation, true
	default:
		s.undo.commits++
		s.commit(e)
	}
	return fault.OK
}

// ended reports whether an incarnation of a node is fenced, or has been replaced.
func (s *Store) ended(node netip.Addr, incarnation uint32) bool {
	c := s.clients.byNode[node]
	return c != nil && (incarnation < c.incarnation || incarnation == c.incarnation && c.fenced)
}

// verdict is what becomes of a word about a run.
type verdict uint8

const (
	settled verdict = iota // there is nothing to do
	obeyed
	refused
)

// judge decides about a word; back says that it is a rollback. The execution is not
// nil if it is obeyed.
func (u *undo) judge(run control.Run, back bool) (*execution, verdict) {
	if run.Main != 0 {
		if v := u.marks.pass(run, back); v != obeyed {
			return nil, v
		}
	}
	e := u.byRun[runKey{run.Execution, run.Node}]
	switch {
	case e == nil:
		return nil, settled
	case e.by.incarnation > run.Incarnation:
		return nil, refused
	case e.rolled && back:
		return nil, settled
	case e.rolled:
		return e, obeyed
	case e.by.incarnation < run.Incarnation && !back:
		return nil, refused
	}
	return e, obeyed
}

func (s *Store) commit(e *execution) {
	for _, reg := range slices.Clone(e.regions) {
		switch c := reg.changes; {
		case c == nil || c.by != e: // gone, or given back unchanged
		case c.own && !c.used:
			s.release(reg)
		default:
			s.settleChanges(reg)
		}
	}
}

// rollback leaves of the execution the regions that it allocated, for its re-run
// to find.
func (s *Store) rollback(e *execution) {
	var own []*region
	for _, reg := range e.regions {
		switch c := reg.changes; {
		case c == nil || c.by != e: // gone, or given back unchanged
		case c.own:
			reg.note(reg.from, reg.to-reg.from)
			s.arena.zero(reg.block, reg.from, reg.to)
			reg.from, reg.to, c.used = 0, 0, false
			own = append(own, reg)
		default:
			c.restore()
			s.settleChanges(reg)
		}
	}
	e.regions = own
}

// Left lists what runs of one of a node's executions have allocated that were taken back, and the present run has not asked for again: regions
// from an id on, in its order, and at most so many. It reports whether there are more.
func (s *Store) Left(run control.Run, from dsmpacket.RegionID, most int) (left []dsmpacket.Left, more bool) {
	e := s.undo.byRun[runKey{run.Execution, run.Node}]
	if e == nil {
		return nil, false
	}
	for at, c := range e.allocs {
		if !c.used && c.region.id >= from {
			left = append(left, dsmpacket.Left{Branch: at.branch, Index: at.index, ID: c.region.id, Class: c.region.class})
		}
	}
	slices.SortFunc(left, func(a, b dsmpacket.Left) int { return cmp.Compare(a.ID, b.ID) })
	if len(left) > most {
		return left[:most], true
	}
	return left, false
}

// inDoubt reports whether the reader may not have what a region holds: an earlier incarnation of its
// node has changed the region, and the node has not said whether that stays. A machine with one copy
// may have been away when it was said, so it cannot go by what it has heard. Another node has been
// lent the region by the execution that has changed it, and that is not taken back before it has
// answered.
func inDoubt(reg *region, reader *Request) bool {
	c := reg.changes
	if c == nil || c.by.rolled {
		return false
	}
	by := c.by.by
	return by.node == reader.Node && by.incarnation < reader.Header.Incarnation
}

// takeBackAll takes back what the executions of a node's incarnations up to one did, and frees what
// they have allocated: there is nobody left who could run them again.
func (s *Store) takeBackAll(f control.Fence) {
	for _, key := range s.undo.inOrder() {
		e := s.undo.byRun[key]
		if key.node != f.Node || e.by.incarnation > f.Incarnation {
			continue
		}
		if !e.rolled {
			s.undo.rollbacks++
			s.rollback(e)
		}
		for _, reg := range slices.Clone(e.regions) {
			if reg.changes != nil && reg.changes.by == e {
				s.release(reg)
			}
		}
	}
}
