//go:build linux

package ebpf

import (
	"reflect"
	"slices"

	"github.com/bifrost-rack/bifrost/p4switch/v1model"
)

// A field of metadata is zero when a packet comes, as far as a program can tell: only the fields that it may read before it has
// written them are zeroed.

// needs finds these, for a program or a part of it.
type needs struct {
	first  []int // by header: the number of its first field
	fields int
	ends   bitset // what is read behind the pipeline
	nodes  map[v1model.Node]bitset
	did    map[*v1model.Action][]effect
	cells  int // Config.RegisterCells
}

// effect is what a statement reads, and what it always writes without reading it.
type effect struct{ reads, writes []int }

func newNeeds(p *v1model.Program, cells int) *needs {
	n := &needs{nodes: map[v1model.Node]bitset{}, did: map[*v1model.Action][]effect{}, cells: cells}
	for _, h := range p.Headers {
		n.first = append(n.first, n.fields)
		n.fields += len(h.Type.Fields)
	}
	n.ends = n.none()
	return n
}

func (n *needs) none() bitset { return make(bitset, (n.fields+63)/64) }

// number is a field's number, or false if it is not one of metadata.
func (n *needs) number(r v1model.FieldRef) (int, bool) {
	if !r.Valid() || !r.Header.Metadata || r.Field == v1model.ValidField {
		return 0, false
	}
	return n.first[r.Header.Index] + r.Field, true
}

// addRefs adds the fields that parts of a program refer to, whatever they do with them.
func (n *needs) addRefs(to bitset, parts ...any) {
	w := refs{seen: map[any]bool{}, f: func(r v1model.FieldRef) {
		if i, ok := n.number(r); ok {
			to.add(i)
		}
	}}
	for _, x := range parts {
		w.walk(reflect.ValueOf(x))
	}
}

// atStart are the fields that must be zero when a packet comes. Only ingress is looked at closely: what others refer to
// is needed. Fields that the executor writes at the beginning are not.
func (n *needs) atStart(p *v1model.Program) bitset {
	n.addRefs(n.ends, p.Egress, p.Deparser, p.Checksums, p.FieldLists, p.Std.EgressSpec, p.Std.MulticastGroup)
	out := n.none()
	out.addAll(n.node(p.Ingress.Start))
	written := func(fields ...v1model.FieldRef) {
		for _, r := range fields {
			if i, ok := n.number(r); ok && p.Uses(r) {
				out.remove(i)
			}
		}
	}
	written(p.Std.ParserError, p.Std.ChecksumError)
	n.addRefs(out, p.Parser)
	written(p.Std.IngressPort, p.Std.PacketLength, p.Std.IngressTimestamp)
	return out
}

// node is what is needed before a node of the pipeline.
func (n *needs) node(x v1model.Node) bitset {
	if x == nil {
		return n.ends
	}
	if have, ok := n.nodes[x]; ok {
		return have
	}
	out := n.none()
	switch x := x.(type) {
	case *v1model.Condition:
		out.addAll(n.node(x.True))
		out.addAll(n.node(x.False))
		n.addRefs(out, x.Expr)
	case *v1model.Call:
		out = n.action(x.Action, n.node(x.Next), n.ends)
	case *v1model.Table:
		n.table(x, out)
	}
	n.nodes[x] = out
	return out
}

func (n *needs) table(t *v1model.Table, out bitset) {
	after := func(i int) bitset { // behind its i-th action, or behind none
		switch {
		case t.ByHit:
			next := n.none()
			next.addAll(n.node(t.Hit))
			next.addAll(n.node(t.Miss))
			return next
		case i >= 0 && i < len(t.Next):
			return n.node(t.Next[i])
		}
		return n.node(t.BaseNext)
	}
	if t.IsCall() {
		out.addAll(n.action(t.Default.Action, after(slices.Index(t.Actions, t.Default.Action)), n.ends))
		return
	}
	out.addAll(after(-1))
	for i, a := range t.Actions {
		out.addAll(n.action(a, after(i), n.ends))
	}
	if t.Default != nil {
		out.addAll(n.action(t.Default.Action, after(slices.Index(t.Actions, t.Default.Action)), n.ends))
	}
	n.addRefs(out, t.Key)
	if t.Meter != nil {
		n.addRefs(out, t.Meter.Result)
	}
	if t.Profile != nil {
		n.addRefs(out, t.Profile.Selector)
	}
}

// action is what is needed before an action, if after is needed behind it, and exit where it ends the pipeline.
func (n *needs) action(a *v1model.Action, after, exit bitset) bitset {
	did, loops := n.effects(a), hasLoop(a)
	before := make([]bitset, len(a.Body)+1)
	before[len(a.Body)] = after
	for again := true; again; {
		again = false
		for i, s := range slices.Backward(a.Body) {
			need := n.none()
			to, jumps := v1model.JumpTarget(s)
			switch s.(type) {
			case v1model.Exit:
				need.addAll(exit)
			case v1model.Jump:
			default:
				need.addAll(before[i+1])
			}
			if jumps {
				need.addAll(before[to]) // of a loop, what is known of it so far
			}
			for _, f := range did[i].writes {
				need.remove(f)
			}
			for _, f := range did[i].reads {
				need.add(f)
			}
			again = again || loops && !slices.Equal(need, before[i])
			before[i] = need
		}
	}
	return before[0]
}

// hasLoop tells whether an action jumps back.
func hasLoop(a *v1model.Action) bool {
	for i, s := range a.Body {
		if to, ok := v1model.JumpTarget(s); ok && to <= i {
			return true
		}
	}
	return false
}

// effects are those of an action's statements.
func (n *needs) effects(a *v1model.Action) []effect {
	all, ok := n.did[a]
	if ok {
		return all
	}
	for _, s := range a.Body {
		var e effect
		var dsts []v1model.FieldRef
		if d, ok := s.(v1model.Drop); ok {
			dsts = []v1model.FieldRef{d.Spec, d.Group}
		} else if dst, whole := writes(s, n.cells); whole {
			dsts = []v1model.FieldRef{dst}
		}
		for _, dst := range dsts {
			if i, ok := n.number(dst); ok {
				e.writes = append(e.writes, i)
			}
		}
		found := n.none()
		n.addRefs(found, s)
		for i := range n.fields {
			if found.has(i) && !slices.Contains(e.writes, i) {
				e.reads = append(e.reads, i)
			}
		}
		all = append(all, e)
	}
	n.did[a] = all
	return all
}
