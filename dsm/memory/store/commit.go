package store

import (
	"bytes"
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
	return UndoStats{Executions: len(u.byID), Bytes: u.used, Pages: u.kept, Commits: u.commits, Rollbacks: u.rollbacks, Refused: u.refused, Forgotten: u.marks.dropped}
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
			e.by, e.rolled = runner{run.Node, run.Incarnation}, true
		case refused:
			s.undo.refused++
			answer.Refused = append(answer.Refused, run)
		}
	}
	return answer
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
	ids := slices.SortedFunc(maps.Keys(s.undo.byID), func(a, b control.ExecutionID) int { return bytes.Compare(a[:], b[:]) })
	for _, id := range ids {
		if bytes.Compare(id[:], q.From[:]) < 0 {
			continue
		}
		if len(l.Runs) == limit {
			l.Next = id
			break
		}
		by := s.undo.byID[id].by
		l.Runs = append(l.Runs, control.Run{Execution: id, Node: by.node, Incarnation: by.incarnation})
	}
	return l
}
