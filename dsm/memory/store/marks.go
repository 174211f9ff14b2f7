package store

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/bifrost-rack/bifrost/internal/control"
)

// marks are the last words about durable mains: at most Limits.Marks, of which the
// oldest goes, and at most nodeMarks of one node.
type marks struct {
	last    map[markKey]mark
	order   []markKey // in which they came up
	ofNode  map[netip.Addr]int
	dropped uint64
	most    int
}

// markKey is a durable main of a node.
type markKey struct {
	main control.ExecutionID
	node netip.Addr
}

// mark is one word about a durable main.
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

// pass says obeyed, and remembers the word, if it is later than all before.
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
	return obeyed
}

func (m *marks) add(key markKey) {
	if m.last == nil {
		m.last, m.ofNode = map[markKey]mark{}, map[netip.Addr]int{}
	}
	switch {
	case m.ofNode[key.node] == nodeMarks:
		m.drop(slices.IndexFunc(m.order, func(k markKey) bool { return k.node == key.node }))
	case len(m.order) == m.most:
		m.drop(0)
	}
	m.order = append(m.order, key)
	m.ofNode[key.node]++
}

// drop forgets the i-th oldest word.
func (m *marks) drop(i int) {
	key := m.order[i]
	delete(m.last, key)
	m.order = slices.Delete(m.order, i, i+1)
	m.dropped++
	if m.ofNode[key.node]--; m.ofNode[key.node] == 0 {
		delete(m.ofNode, key.node)
	}
}

// nodeMarks is how many durable mains of one node are remembered: a node that has spoken for more
// loses the oldest word of its own.
const nodeMarks = 64
