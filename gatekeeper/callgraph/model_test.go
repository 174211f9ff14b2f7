package callgraph

import (
	"cmp"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// model is the graph told in the simplest way: a slice of views, searched from
// end to end. Queue holds the ids of unfinished calls in the order in which
// their services have got them.
type model struct {
	calls    []*View
	queue    []rpcpacket.ID
	sequence uint64
	heard    map[rpcpacket.ID]time.Time // when a call was last sent
}

func (m *model) find(id rpcpacket.ID) *View {
	for _, v := range m.calls {
		if v.ID == id {
			return v
		}
	}
	return nil
}

func (m *model) where(keep func(*View) bool) (all []View) {
	for _, v := range m.calls {
		if keep(v) {
			c := *v
			c.Behind = m.behind(v)
			all = append(all, c)
		}
	}
	return all
}

func finished(v *View) bool { return !v.Times[B2].IsZero() }

// running is what a serial service runs.
func (m *model) running(callee Node, service string) *View {
	for _, id := range m.queue {
		if v := m.find(id); v.Callee == callee && v.Service == service {
			return v
		}
	}
	return nil
}

func (m *model) behind(v *View) rpcpacket.ID {
	if head := m.running(v.Callee, v.Service); v.Serial && !finished(v) && head != v {
		return head.ID
	}
	return rpcpacket.ID{}
}

// deadlocked follows every wait from a new call on: does it come back?
func (m *model) deadlocked(c Call) bool {
	if !c.Serial || c.Oneway {
		return false
	}
	seen := map[rpcpacket.ID]bool{}
	var reaches func(v *View) bool
	reaches = func(v *View) bool {
		if v == nil || seen[v.ID] {
			return false
		}
		seen[v.ID] = true
		if v.ID == c.Parent {
			return true
		}
		for _, o := range m.calls {
			child := o.Parent == v.ID && !finished(o) && !o.Oneway
			if (child || o.ID == m.behind(v)) && reaches(o) {
				return true
			}
		}
		return false
	}
	return !c.Parent.IsZero() && reaches(m.running(c.Callee, c.Service))
}

func (m *model) sent(c Call, at time.Time) {
	m.sequence++
	m.calls = append(m.calls, &View{Call: c, Times: [4]time.Time{at}, Sequence: m.sequence})
	m.queue = append(m.queue, c.ID)
}

func (m *model) delivered(id rpcpacket.ID, callee Node, at time.Time) bool {
	v := m.find(id)
	if v == nil || finished(v) {
		return false
	}
	if v.Callee != callee {
		v.Callee = callee
		v.Attempts++
		m.unqueue(id)
		m.queue = append(m.queue, id)
	}
	v.Times[B1] = at
	v.Stage = B1
	return true
}

func (m *model) unqueue(id rpcpacket.ID) {
	m.queue = slices.DeleteFunc(m.queue, func(q rpcpacket.ID) bool { return q == id })
}

func (m *model) finished(id rpcpacket.ID, at time.Time) bool {
	v := m.find(id)
	if v == nil || finished(v) {
		return false
	}
	v.Times[B2] = at
	v.Stage = B2
	m.unqueue(id)
	if v.Oneway || v.Orphan {
		m.remove(id)
	}
	return true
}

func (m *model) remove(id rpcpacket.ID) {
	m.unqueue(id)
	m.calls = slices.DeleteFunc(m.calls, func(v *View) bool { return v.ID == id })
}

func (m *model) serves(n Node) []View {
	return m.where(func(v *View) bool { return v.Callee == n && !finished(v) })
}

func (m *model) gone(n Node) []View {
	cut := m.serves(n)
	for _, v := range cut {
		m.remove(v.ID)
	}
	for _, v := range slices.Clone(m.calls) {
		if v.Caller == n {
			v.Orphan = true
			if finished(v) {
				m.remove(v.ID)
			}
		}
	}
	return cut
}

// moved renames a node. Where both names have calls, their order is that of Sent.
func (m *model) moved(from, to Node) {
	takes := func(n Node) bool {
		return slices.ContainsFunc(m.calls, func(v *View) bool { return v.Caller == n || v.Callee == n })
	}
	merge := from != to && takes(from) && takes(to)
	for _, v := range m.calls {
		if v.Caller == from {
			v.Caller = to
		}
		if v.Callee == from {
			v.Callee = to
		}
	}
	if !merge {
		return
	}
	at := func(id rpcpacket.ID) *View { return m.find(id) }
	var places []int
	var ids []rpcpacket.ID
	for k, id := range m.queue {
		if at(id).Callee == to {
			places, ids = append(places, k), append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b rpcpacket.ID) int { return cmp.Compare(at(a).Sequence, at(b).Sequence) })
	for k, place := range places {
		m.queue[place] = ids[k]
	}
}

func (m *model) carrying(p dsmpacket.Pointer) []View {
	all := m.where(func(v *View) bool { return slices.Contains(v.Pointers, p) })
	slices.Reverse(all)
	return all
}

func (m *model) chain(id rpcpacket.ID) (all []View) {
	for v := m.find(id); v != nil && !slices.ContainsFunc(all, func(o View) bool { return o.ID == v.ID }); v = m.find(v.Parent) {
		all = append(all, m.where(func(o *View) bool { return o == v })...)
	}
	return all
}

// descendant reports whether v is made, directly or not, by an unfinished
// descendant of an execution.
func (m *model) descendant(v *View, of rpcpacket.ID) bool {
	for seen := map[rpcpacket.ID]bool{}; v != nil && !finished(v) && !seen[v.ID]; v = m.find(v.Parent) {
		if v.Oneway {
			return false
		}
		if v.Parent == of {
			return true
		}
		seen[v.ID] = true
	}
	return false
}

// domain is found by adding nodes until nothing changes.
func (m *model) domain(failed []Node) Domain {
	in := map[Node]bool{}
	for _, n := range failed {
		in[n] = true
	}
	for before := -1; before != len(in); {
		before = len(in)
		for _, v := range m.calls {
			shares := v.Policy == rpcpacket.PolicyFateShare || v.Policy == rpcpacket.PolicyTainted
			if finished(v) || v.Oneway || !shares || !in[v.Callee] && (!in[v.Caller]) {
				continue
			}
			in[v.Callee] = true
			if !v.Orphan {
				in[v.Caller] = true
			}
			for _, o := range m.calls {
				if v.Policy == rpcpacket.PolicyTainted && m.descendant(o, v.ID) {
					in[o.Callee] = true
				}
			}
		}
	}
	d := Domain{
		Rerun: m.where(func(v *View) bool { return !finished(v) && in[v.Callee] && v.Policy != rpcpacket.PolicyNone }),
		Cut:   m.where(func(v *View) bool { return !finished(v) && in[v.Callee] && v.Policy == rpcpacket.PolicyNone }),
		Out:   m.where(func(v *View) bool { return !finished(v) && in[v.Caller] && !in[v.Callee] }),
	}
	slices.Reverse(d.Rerun)
	waiting := map[rpcpacket.ID]bool{}
	for _, v := range append(slices.Clone(d.Rerun), d.Cut...) {
		for up := &v; up != nil && !up.Oneway; {
			up = m.find(up.Parent)
			if up == nil || finished(up) || waiting[up.ID] {
				break
			}
			waiting[up.ID] = true
		}
	}
	d.Waiting = m.where(func(v *View) bool { return waiting[v.ID] && !in[v.Callee] })
	for n := range in {
		d.Nodes = append(d.Nodes, n)
	}
	return d
}
