package store

import (
	"cmp"
	"net/netip"

	"github.com/bifrost-rack/bifrost/internal/control"
)

// A command about an execution names the run that it is for (control.Run), and is obeyed
// only for the changes of that run:
//
//	the store has changes of          commit of run R         rollback of run R
//	nobody                            nothing to do           nothing to do
//	R                                 made final              taken back
//	an earlier incarnation of R's     refused                 taken back
//	a later incarnation of R's       refused                 refused
//	another node                      nothing to do           nothing to do
//	R or an earlier one, rolled back  allocations are final   nothing to do
//
// Requests do not tell the runs of a durable main within one incarnation apart, nor
// what comes before and after a checkpoint. So the store remembers the last command
// about each durable main (marks): the changes that it has came after that command.

// verdict is what becomes of a command about a run.
type verdict uint8

const (
	settled verdict = iota // there is nothing to do
	obey
	refused
)

// judge decides about a command; back says that it is a rollback. The execution is not
// nil for obey.
func (u *undo) judge(run control.Run, back bool) (*execution, verdict) {
	if run.Main != 0 {
		if v := u.marks.pass(run, back); v != obey {
			return nil, v
		}
	}
	e := u.byRun[runKey{run.Execution, run.Node}]
	if e == nil && run.Main != 0 {
		e = u.moving[run.Execution] // whoever has run it, its allocations may be final
	}
	if e == nil {
		return nil, settled
	}
	same, older := e.by.node == run.Node, e.by.incarnation < run.Incarnation
	switch {
	case same && e.by.incarnation > run.Incarnation:
		return nil, refused
	case e.rolled && back:
		return nil, settled
	case e.rolled:
		return e, obey
	case older && !back:
		return nil, refused
	}
	return e, obey
}

// marks are the last commands about durable mains: at most Limits.Marks, of which the
// oldest goes.
type marks struct {
	last    map[markKey]mark
	order   []markKey // in which they came up
	dropped uint64
	most    int
}

// markKey is a durable main at one of the nodes that have run it.
type markKey struct {
	main control.ExecutionID
	node netip.Addr
}

// mark is one command about a durable main.
type mark struct {
	incarnation uint32
	run         uint64
	checkpoint  uint32
	back        bool // a rollback, which follows the commit of the same checkpoint
}

func (m mark) compare(o mark) int {
	back := func(m mark) int {
		if m.back {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(m.incarnation, o.incarnation), cmp.Compare(m.run, o.run), cmp.Compare(m.checkpoint, o.checkpoint), back(m)-back(o))
}

// pass says obey, and remembers the command, if it is later than all before.
func (m *marks) pass(run control.Run, back bool) verdict {
	key, now := markKey{run.Execution, run.Node}, mark{run.Incarnation, run.Main, run.Checkpoint, back}
	last, known := m.last[key]
	switch c := now.compare(last); {
	case known && c < 0:
		return refused
	case known && c == 0:
		return settled
	case !known:
		m.add(key)
	}
	m.last[key] = now
	return obey
}

func (m *marks) add(key markKey) {
	if m.last == nil {
		m.last = map[markKey]mark{}
	}
	if len(m.order) == m.most {
		delete(m.last, m.order[0])
		m.order = m.order[1:]
		m.dropped++
	}
	m.order = append(m.order, key)
}
