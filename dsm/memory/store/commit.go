package store

import (
	"bytes"
	"cmp"
	"maps"
	"slices"

	"github.com/bifrost-rack/bifrost/internal/control"
)

// UndoStats is what the undo holds now and has done so far.
type UndoStats struct {
	// Executions have something to commit or to roll back; it takes Bytes.
	Executions int
	Bytes      uint64
	// Pages have been kept; Commits and Rollbacks carried out, each of an
	// execution that there was something of. Refused counts the runs and regions
	// that commands named in vain: see control.Settled and control.Reclaimed.
	Pages, Commits, Rollbacks, Refused uint64
	// Forgotten counts durable mains whose last command is not remembered any more, for
	// lack of room.
	Forgotten uint64
}

// KeepUndo sets how many bytes the undo of executions may take; at first it is 0.
// A write, free or
// allocation that would need more is Overloaded, which its client repeats for
// some time, as others may be committed meanwhile. With 0 none is kept, and what
// executions change from then on is final at once.
func (s *Store) KeepUndo(limit uint64) { s.undo.limit = limit }

// Undo returns the undo's numbers.
func (s *Store) Undo() UndoStats {
	u := &s.undo
	return UndoStats{Executions: len(u.byRun), Bytes: u.used, Pages: u.kept, Commits: u.commits, Rollbacks: u.rollbacks, Refused: u.refused, Forgotten: u.marks.dropped}
}

// Commit makes final what runs of executions have done. It is idempotent.
func (s *Store) Commit(c control.Commit) (answer control.Settled) {
	for _, run := range c.Runs {
		e, v := s.undo.judge(run, false)
		switch v {
		case obey:
			s.undo.commits++
			s.commit(e)
		case refused:
			s.undo.refused++
			answer.Refused = append(answer.Refused, run)
		}
	}
	return answer
}

func (s *Store) commit(e *execution) {
	for _, reg := range e.regions {
		switch c := reg.changes; {
		case c == nil || c.by != e: // gone, or given back unchanged
		case c.freed:
			s.release(reg)
		default:
			s.settleChanges(reg)
		}
	}
}

// Rollback takes back what runs of executions have done. It is idempotent.
func (s *Store) Rollback(r control.Rollback) (answer control.Settled) {
	for _, run := range r.Runs {
		e, v := s.undo.judge(run, true)
		switch v {
		case obey:
			s.undo.rollbacks++
			s.rollback(e)
			s.undo.rolledBack(e, run)
		case refused:
			s.undo.refused++
			answer.Refused = append(answer.Refused, run)
		}
	}
	return answer
}

// rolledBack notes that a run was rolled back, whose execution may be left with regions that
// it has allocated.
func (u *undo) rolledBack(e *execution, run control.Run) {
	e.by.incarnation, e.rolled = run.Incarnation, true
	if run.Main == 0 || u.byRun[e.key()] != e {
		return
	}
	if other := u.moving[e.id]; other != nil {
		u.stays(other)
	}
	e.moves, u.moving[e.id] = true, e
}

// inOrder returns the keys of all executions, by id, then node.
func (u *undo) inOrder() []runKey {
	return slices.SortedFunc(maps.Keys(u.byRun), func(a, b runKey) int {
		return cmp.Or(bytes.Compare(a.id[:], b.id[:]), a.node.Compare(b.node))
	})
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
			reg.from, reg.to, c.freed, c.used = 0, 0, false, false
			own = append(own, reg)
		default:
			c.restore()
			s.settleChanges(reg)
		}
	}
	e.regions = own
}

// Executions lists the executions that there is something of to commit or to
// roll back, in the order of their ids, as many as one datagram holds.
func (s *Store) Executions(q control.Executions) (l control.ExecutionList) {
	limit := control.MaxExecutions
	if q.Max > 0 {
		limit = min(limit, q.Max)
	}
	for _, key := range s.undo.inOrder() {
		if bytes.Compare(key.id[:], q.From[:]) < 0 {
			continue
		}
		// An id of several nodes is not divided: the next list begins with an id.
		if n := len(l.Runs); n >= limit && l.Runs[n-1].Execution != key.id {
			l.Next = key.id
			break
		}
		l.Runs = append(l.Runs, control.Run{Execution: key.id, Node: key.node, Incarnation: s.undo.byRun[key].by.incarnation})
	}
	return l
}
