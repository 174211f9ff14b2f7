//go:build linux

package ebpf

import (
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
	"github.com/cilium/ebpf/asm"
)

// Stacks and unions consist of headers like others. Which element the parser fills
// next is known in each of its visits.

// header is the header that an expression yields, if that is known now.
func (g *gen) header(e v1model.Expr) (*v1model.Header, bool) {
	if hs := g.headers(e); len(hs) == 1 && v1model.KindOf(e) == v1model.KindHeader {
		return hs[0], true
	}
	g.lack("element of a header stack that is not known before, or a union")
	return nil, false
}

// headers are the headers of an expression that yields a header or a union; none
// if they are not known now.
func (g *gen) headers(e v1model.Expr) []*v1model.Header {
	switch e := e.(type) {
	case v1model.HeaderValue:
		return []*v1model.Header{e.Header}
	case v1model.UnionValue:
		return e.Union.Headers
	case v1model.Member:
		if hs := g.headers(e.Union); e.Member < len(hs) {
			return hs[e.Member : e.Member+1]
		}
	case v1model.Element:
		if k, ok := v1model.SmallConst(e.Index); ok {
			return g.elementHeaders(e.Stack, k)
		}
	case v1model.Last:
		if at, _ := stackAt(g.prog, e.Stack); g.parsing {
			return g.elementHeaders(e.Stack, int(g.next[at])-1)
		}
	}
	g.lack("element of a header stack that is not known before")
	return nil
}

// elementHeaders are the headers of an element of a stack.
func (g *gen) elementHeaders(stack v1model.Expr, i int) []*v1model.Header {
	if _, size := stackAt(g.prog, stack); i < 0 || i >= size {
		g.lack("element of a header stack that there is not")
		return nil
	}
	switch s := stack.(type) {
	case v1model.StackValue:
		return s.Stack.Headers[i : i+1]
	case v1model.UnionStackValue:
		return s.Stack.Unions[i].Headers
	}
	return nil
}

// sole makes the other headers of a header's union invalid.
func (g *gen) sole(h *v1model.Header) {
	if h.Union == nil {
		return
	}
	for _, other := range h.Union.Headers {
		if other != h {
			g.invalidate(other)
		}
	}
}

// elementsOf are the elements of a stack, each as the headers it consists of.
func (g *gen) elementsOf(stack v1model.Expr) (of [][]*v1model.Header) {
	_, size := stackAt(g.prog, stack)
	for i := range size {
		of = append(of, g.elementHeaders(stack, i))
	}
	return of
}

// copyStmt copies a header, a union, or a stack.
func (g *gen) copyStmt(s v1model.Copy) {
	switch v1model.KindOf(s.Dst) {
	case v1model.KindStack, v1model.KindUnionStack:
		g.next = stackCopied(g.prog, s, g.next)
		from := g.elementsOf(s.Src)
		for i, to := range g.elementsOf(s.Dst) {
			g.copyHeaders(to, from[i])
		}
		return
	default: // one header, or the headers of a union, below
	}
	to, from := g.headers(s.Dst), g.headers(s.Src)
	if len(to) == len(from) {
		g.copyHeaders(to, from)
	}
}

// stackCopied is how many elements of each stack have been extracted behind a statement that may copy one.
func stackCopied(p *v1model.Program, s v1model.Stmt, next counts) counts {
	if c, ok := s.(v1model.Copy); ok {
		if k := v1model.KindOf(c.Dst); k == v1model.KindStack || k == v1model.KindUnionStack {
			to, _ := stackAt(p, c.Dst)
			from, _ := stackAt(p, c.Src)
			next[to] = next[from]
		}
	}
	return next
}

// shift moves a stack's elements by a number of places, to the end if way is 1, to
// the front if it is -1. Those that fall out come in at the other end, invalid.
func (g *gen) shift(stack, count v1model.Expr, way int) {
	k, ok := v1model.SmallConst(count)
	if !ok || g.parsing {
		g.lack("push or pop of a number that is not constant, or in the parser")
		return
	}
	of := g.elementsOf(stack)
	for n := range of {
		i := n
		if way > 0 {
			i = len(of) - 1 - n // the last one moves first
		}
		if from := i - way*k; from >= 0 && from < len(of) {
			for n, h := range of[i] {
				g.swapHeaders(h, of[from][n])
			}
			continue
		}
		for _, h := range of[i] {
			g.invalidate(h)
		}
	}
}

// swapHeaders swaps two headers of the same type with their validity.
func (g *gen) swapHeaders(a, b *v1model.Header) {
	swap := func(a, b int, size asm.Size) {
		g.emit(
			asm.LoadMem(asm.R0, rState, int16(a), size), asm.LoadMem(asm.R1, rState, int16(b), size),
			asm.StoreMem(rState, int16(a), asm.R1, size), asm.StoreMem(rState, int16(b), asm.R0, size))
	}
	for i := 0; i < g.st.headers[a.Index].size; i += 8 {
		swap(g.st.headers[a.Index].base+i, g.st.headers[b.Index].base+i, asm.DWord)
	}
	swap(g.validAt(a), g.validAt(b), asm.Byte)
	g.touch(a)
	g.touch(b)
}

// copyHeaders copies headers to others of the same types.
func (g *gen) copyHeaders(to, from []*v1model.Header) {
	for i := range to {
		if to[i] != from[i] {
			g.copyHeader(to[i], from[i])
		}
	}
}

// copyHeader copies a header; of one that is not valid, only that it is not.
func (g *gen) copyHeader(to, from *v1model.Header) {
	if to.Metadata || from.Metadata {
		g.lack("copy of a struct")
		return
	}
	invalid, end := g.label("invalid"), g.label("copied")
	g.emit(asm.LoadMem(asm.R0, rState, int16(g.validAt(from)), asm.Byte))
	g.emit(asm.JEq.Imm(asm.R0, 0, invalid))
	g.copyState(g.st.headers[to.Index].base, g.st.headers[from.Index].base, g.st.headers[to.Index].size)
	g.storeImm(g.validAt(to), 1, asm.Byte)
	g.touch(to)
	g.jump(end)
	g.mark(invalid)
	g.invalidate(to)
	g.mark(end)
}

// invalidate makes a header invalid. Its fields can still be read, if it is defined. R0 is changed.
func (g *gen) invalidate(h *v1model.Header) {
	if g.st.lazy[h.Index] {
		g.emit(
			asm.LoadMem(asm.R0, rState, int16(g.validAt(h)), asm.Byte), asm.LoadMem(asm.R1, rState, int16(g.st.dirty+h.Index), asm.Byte),
			asm.Or.Reg(asm.R0, asm.R1), asm.StoreMem(rState, int16(g.st.dirty+h.Index), asm.R0, asm.Byte))
	}
	g.storeImm(g.validAt(h), 0, asm.Byte)
}

func (g *gen) zeroHeader(h *v1model.Header) {
	g.set(asm.R0, 0)
	pl := g.st.headers[h.Index]
	for i := 0; i < pl.size; i += 8 {
		g.store(pl.base+i, asm.R0)
	}
}

// elementAt is a stack of headers and the index of one that is not known before; of
// other expressions, nil.
func elementAt(e v1model.Expr) (of []*v1model.Header, index v1model.Expr) {
	el, ok := e.(v1model.Element)
	if !ok {
		return nil, nil
	}
	s, ok := el.Stack.(v1model.StackValue)
	if _, known := v1model.SmallConst(el.Index); !ok || known {
		return nil, nil
	}
	return s.Stack.Headers, el.Index
}

// eachElement does something to the header whose index is in the register of a
// depth, and something else if there is no such header.
func (g *gen) eachElement(of []*v1model.Header, d int, none func(), f func(*v1model.Header)) {
	end := g.label("element")
	labels := make([]string, len(of))
	for i := range of {
		labels[i] = g.label("index")
		g.emit(asm.JEq.Imm(g.reg(d), int32(i), labels[i]))
	}
	none()
	g.jump(end)
	for i, h := range of {
		g.mark(labels[i])
		f(h)
		g.jump(end)
	}
	g.mark(end)
}
