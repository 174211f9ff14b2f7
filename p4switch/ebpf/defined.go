//go:build linux

package ebpf

import (
	"slices"

	"github.com/bifrost-rack/bifrost/p4switch/v1model"
	"github.com/cilium/ebpf/asm"
)

// The fields of a header that is not in the packet read as 0. They are not zeroed when the packet comes, but where the
// program may look at them: there the code asks whether the header is defined, unless it must be. A header is defined from when it
// is valid for the first time, or when its fields are zeroed; one that is not valid then counts as changed (state.dirty). Once it is
// defined it stays so.

// lazyHeaders are the headers that are zeroed so, by index. Those of stacks and unions, which move, are zeroed when a packet comes.
func lazyHeaders(p *v1model.Program) []bool {
	lazy := make([]bool, len(p.Headers))
	for _, h := range p.Headers {
		lazy[h.Index] = !h.Metadata && h.Union == nil && h.Type.Varbit < 0
	}
	for _, s := range p.Stacks {
		for _, h := range s.Headers {
			lazy[h.Index] = false
		}
	}
	return lazy
}

// define has a header's fields zeroed unless the header is defined. It changes a register.
func (g *gen) define(h *v1model.Header, r asm.Register) {
	if !g.st.lazy[h.Index] || g.sure.has(h.Index) {
		return
	}
	defined := g.label("defined")
	g.emit(
		asm.LoadMem(r, rState, int16(g.validAt(h)), asm.Byte), asm.JNE.Imm(r, 0, defined),
		asm.LoadMem(r, rState, int16(g.st.dirty+h.Index), asm.Byte), asm.JNE.Imm(r, 0, defined))
	pl := g.st.headers[h.Index]
	for i := 0; i < pl.size; i += 8 {
		g.storeImm(pl.base+i, 0, asm.DWord)
	}
	g.storeImm(g.st.dirty+h.Index, 1, asm.Byte)
	g.mark(defined)
}

// knows makes headers known to be defined in what f generates.
func (g *gen) knows(more bitset, f func()) {
	saved := g.sure
	g.sure = more
	f()
	g.sure = saved
}

// bitset is a set of small numbers. Sets are not changed once they are shared; nil is the empty one.
type bitset []uint64

func (s bitset) has(i int) bool { return i/64 < len(s) && s[i/64]>>(i%64)&1 != 0 }

// add, remove and addAll change a set, which has room for what is added.
func (s bitset) add(i int)    { s[i/64] |= 1 << (i % 64) }
func (s bitset) remove(i int) { s[i/64] &^= 1 << (i % 64) }
func (s bitset) addAll(more bitset) {
	for i := range more {
		s[i] |= more[i]
	}
}

// with is a set with one more.
func (s bitset) with(i int) bitset {
	if s.has(i) {
		return s
	}
	out := append(slices.Clone(s), make([]uint64, max(i/64+1-len(s), 0))...)
	out.add(i)
	return out
}

// and is what is in both.
func (s bitset) and(other bitset) bitset {
	out := slices.Clone(s[:min(len(s), len(other))])
	for i := range out {
		out[i] &= other[i]
	}
	return out
}

// looksAtBoth tells whether the lowest word of both operands is always computed for the operation's lowest word.
func looksAtBoth(e v1model.Binary) bool {
	k, isConst := e.Y.(v1model.Const)
	switch e.Op {
	case v1model.OpAnd:
		return !isConst || constWord(k.Value, 0) != 0
	case v1model.OpOr, v1model.OpXor, v1model.OpAdd, v1model.OpSub, v1model.OpMul:
		return true
	case v1model.OpShl, v1model.OpShr:
		n, isConst := v1model.SmallConst(e.Y)
		return isConst && n < 64
	case v1model.OpEqual, v1model.OpNotEqual, v1model.OpLess, v1model.OpLessEqual, v1model.OpGreater, v1model.OpGreaterEqual:
		return v1model.SpanOf(e.X).Join(v1model.SpanOf(e.Y)).Fits64()
	}
	return false
}

// definedByNumber are the headers that are defined when a number has been computed, if some were before.
func definedByNumber(e v1model.Expr, in bitset) bitset {
	switch e := e.(type) {
	case v1model.FieldValue:
		if e.Ref.Field != v1model.ValidField && e.Ref.Width() > 0 {
			return in.with(e.Ref.Header.Index)
		}
	case v1model.Unary:
		if v1model.KindOf(e.X) != v1model.KindBool {
			return definedByNumber(e.X, in)
		}
		t, f := definedByCond(e.X, in)
		return t.and(f)
	case v1model.Binary:
		if looksAtBoth(e) {
			return definedByNumber(e.Y, definedByNumber(e.X, in))
		}
	case v1model.Select:
		t, f := definedByCond(e.Cond, in)
		return definedByNumber(e.Then, t).and(definedByNumber(e.Else, f))
	}
	return in
}

// definedByCond are those if a condition holds, and if it does not.
func definedByCond(e v1model.Expr, in bitset) (holds, fails bitset) {
	switch e := e.(type) {
	case v1model.Select:
		t, f := definedByCond(e.Cond, in)
		t1, f1 := definedByCond(e.Then, t)
		t2, f2 := definedByCond(e.Else, f)
		return t1.and(t2), f1.and(f2)
	case v1model.Unary:
		switch e.Op {
		case v1model.OpLogicalNot:
			t, f := definedByCond(e.X, in)
			return f, t
		case v1model.OpToBool:
			if x, ok := e.X.(v1model.Unary); ok && x.Op == v1model.OpToData {
				return definedByCond(x.X, in)
			}
			in = definedByNumber(e.X, in)
		case v1model.OpValid:
			if h, ok := e.X.(v1model.HeaderValue); ok {
				return in.with(h.Header.Index), in
			}
		}
	case v1model.Binary:
		switch {
		case e.Op == v1model.OpLogicalAnd:
			t, f := definedByCond(e.X, in)
			t2, f2 := definedByCond(e.Y, t)
			return t2, f.and(f2)
		case e.Op == v1model.OpLogicalOr:
			t, f := definedByCond(e.X, in)
			t2, f2 := definedByCond(e.Y, f)
			return t.and(t2), f2
		case v1model.KindOf(e.X) == v1model.KindData:
			in = definedByNumber(e, in)
		}
	}
	return in, in
}

// definedByAction are the headers that are defined before each of an action's statements, and behind it, if some are before it.
func definedByAction(a *v1model.Action, in bitset) (before []bitset, after bitset) {
	before = make([]bitset, len(a.Body)+1)
	if hasLoop(a) {
		for i := range before {
			before[i] = in
		}
		return before, in
	}
	reached := make([]bool, len(before))
	arrive := func(at int, s bitset) {
		if reached[at] {
			s = before[at].and(s)
		}
		before[at], reached[at] = s, true
	}
	arrive(0, in)
	for i, s := range a.Body {
		at := before[i]
		if !reached[i] {
			continue
		}
		switch s := s.(type) {
		case v1model.Exit:
			continue
		case v1model.Jump:
			arrive(s.Target, at)
			continue
		case v1model.JumpIfZero:
			var zero bitset
			at, zero = definedByCond(v1model.Unary{Op: v1model.OpToBool, X: s.Cond}, at)
			arrive(s.Target, zero)
		case v1model.Assign:
			at = definedByNumber(s.Dst, definedByNumber(s.Src, at))
		case v1model.WriteRegister:
			at = definedByNumber(s.Value, at)
		case v1model.SetValid:
			if h, ok := s.Header.(v1model.HeaderValue); ok && s.Valid {
				at = at.with(h.Header.Index)
			}
		}
		arrive(i+1, at)
	}
	return before, before[len(a.Body)]
}

// definedAt are the headers that are defined at each node of a pipeline.
func definedAt(p *v1model.Pipeline) map[v1model.Node]bitset {
	var order []v1model.Node // backwards
	seen := map[v1model.Node]bool{}
	var visit func(n v1model.Node)
	visit = func(n v1model.Node) {
		if n == nil || seen[n] {
			return
		}
		seen[n] = true
		for next := range ways(n, nil) {
			visit(next)
		}
		order = append(order, n)
	}
	visit(p.Start)
	at := map[v1model.Node]bitset{}
	if p.Start != nil {
		at[p.Start] = nil
	}
	for _, n := range slices.Backward(order) {
		for next, s := range ways(n, at[n]) {
			if have, ok := at[next]; ok {
				s = have.and(s)
			}
			at[next] = s
		}
	}
	return at
}

// ways are the nodes that a node leads to, with the headers that are defined there; one may come more than once.
func ways(n v1model.Node, in bitset) func(yield func(v1model.Node, bitset) bool) {
	return func(yield func(v1model.Node, bitset) bool) {
		switch n := n.(type) {
		case *v1model.Condition:
			t, f := definedByCond(n.Expr, in)
			_ = yield(n.True, t) && yield(n.False, f)
		case *v1model.Call:
			_, after := definedByAction(n.Action, in)
			yield(n.Next, after)
		case *v1model.Table:
			all := append([]v1model.Node{n.Hit, n.Miss, n.BaseNext}, n.Next...)
			for i, next := range all {
				s := in // of an action's own way, what it defines
				if i >= 3 {
					_, s = definedByAction(n.Actions[i-3], in)
				}
				if !yield(next, s) {
					return
				}
			}
		}
	}
}
