package interp

import (
	"fmt"

	"github.com/bifrost-rack/bifrost/p4switch/v1model"
)

// href finds a header at run time: its index, or -1 if there is none. A program
// that reads beyond a stack reads zeroes; what it writes there is lost.
type href func(*state) int

// header compiles an expression that yields a header. If it is always the same
// one, fixed is its index, else -1.
func (c *compiler) header(e v1model.Expr) (find href, fixed int) {
	switch e := e.(type) {
	case v1model.HeaderValue:
		i := e.Header.Index
		return func(*state) int { return i }, i
	case v1model.Element:
		s, ok := e.Stack.(v1model.StackValue)
		if !ok {
			break
		}
		return c.element(headerIndexes(s.Stack.Headers), e.Index)
	case v1model.Last:
		s, ok := e.Stack.(v1model.StackValue)
		if !ok {
			break
		}
		return last(headerIndexes(s.Stack.Headers), c.lay.stacks[s.Stack.Index]), -1
	case v1model.Member:
		u, fixed := c.union(e.Union)
		members := c.members(e.Member)
		if fixed >= 0 {
			i := members[fixed]
			return func(*state) int { return i }, i
		}
		return func(s *state) int {
			if i := u(s); i >= 0 {
				return members[i]
			}
			return -1
		}, -1
	case v1model.Select:
		cond := c.cond(e.Cond)
		x, _ := c.header(e.Then)
		y, _ := c.header(e.Else)
		return func(s *state) int {
			if cond(s) {
				return x(s)
			}
			return y(s)
		}, -1
	}
	panic(fmt.Sprintf("interp: %T is no header", e))
}

// union compiles an expression that yields a union; as header.
func (c *compiler) union(e v1model.Expr) (find href, fixed int) {
	switch e := e.(type) {
	case v1model.UnionValue:
		i := e.Union.Index
		return func(*state) int { return i }, i
	case v1model.Element:
		s := e.Stack.(v1model.UnionStackValue)
		return c.element(unionIndexes(s.Stack.Unions), e.Index)
	case v1model.Last:
		s := e.Stack.(v1model.UnionStackValue)
		return last(unionIndexes(s.Stack.Unions), c.lay.ustacks[s.Stack.Index]), -1
	}
	panic(fmt.Sprintf("interp: %T is no union", e))
}

// members are the indexes of each union's header at a place in its type.
func (c *compiler) members(place int) []int {
	m := make([]int, len(c.prog.Unions))
	for i, u := range c.prog.Unions {
		m[i] = -1
		if place < len(u.Headers) {
			m[i] = u.Headers[place].Index
		}
	}
	return m
}

func (c *compiler) element(of []int, index v1model.Expr) (href, int) {
	if k, ok := v1model.SmallConst(index); ok {
		i := -1
		if k < len(of) {
			i = of[k]
		}
		return func(*state) int { return i }, i
	}
	at := c.index(index)
	return func(s *state) int {
		if i := at(s); i < uint64(len(of)) {
			return of[i]
		}
		return -1
	}, -1
}

func last(of []int, count int) href {
	return func(s *state) int {
		if n := s.w[count]; n > 0 {
			return of[n-1]
		}
		return -1
	}
}

func headerIndexes(hs []*v1model.Header) []int {
	is := make([]int, len(hs))
	for i, h := range hs {
		is[i] = h.Index
	}
	return is
}

func unionIndexes(us []*v1model.Union) []int {
	is := make([]int, len(us))
	for i, u := range us {
		is[i] = u.Index
	}
	return is
}

// locator finds a field at run time: its first word, or -1.
type locator func(*state) int

// locate compiles an expression that is a field. If it is always the same one,
// fixed is its first word, else -1.
func (c *compiler) locate(e v1model.Expr) (find locator, fixed int, sl slot, h href) {
	switch e := e.(type) {
	case v1model.FieldValue:
		sl = c.lay.slot(e.Ref)
		i := e.Ref.Header.Index
		return func(*state) int { return sl.at }, sl.at, sl, func(*state) int { return i }
	case v1model.FieldOf:
		sl = c.lay.types[e.Type].slot(e.Field)
		h, fixed = c.header(e.Header)
		bases := c.lay.bases
		if fixed >= 0 {
			sl.at += bases[fixed]
			return func(*state) int { return sl.at }, sl.at, sl, h
		}
		offset := sl.at
		return func(s *state) int {
			if i := h(s); i >= 0 {
				return bases[i] + offset
			}
			return -1
		}, -1, sl, h
	}
	panic(fmt.Sprintf("interp: %T is no field", e))
}

// copyStmt compiles the copy of a header, union or stack.
func (c *compiler) copyStmt(st v1model.Copy) step {
	switch dst := st.Dst.(type) {
	case v1model.StackValue:
		src := st.Src.(v1model.StackValue)
		return c.copyStack(
			groupHeaders(dst.Stack.Headers), groupHeaders(src.Stack.Headers),
			c.lay.stacks[dst.Stack.Index], c.lay.stacks[src.Stack.Index])
	case v1model.UnionStackValue:
		src := st.Src.(v1model.UnionStackValue)
		return c.copyStack(
			groupUnions(dst.Stack.Unions), groupUnions(src.Stack.Unions),
			c.lay.ustacks[dst.Stack.Index], c.lay.ustacks[src.Stack.Index])
	}
	if v1model.KindOf(st.Dst) == v1model.KindUnion {
		dst, _ := c.union(st.Dst)
		src, _ := c.union(st.Src)
		return func(s *state) {
			if i, j := dst(s), src(s); i >= 0 && j >= 0 {
				c.copyUnion(s, headerIndexes(c.prog.Unions[i].Headers), headerIndexes(c.prog.Unions[j].Headers))
			}
		}
	}
	dst, _ := c.header(st.Dst)
	src, _ := c.header(st.Src)
	return func(s *state) {
		j := src(s)
		if i := dst(s); i >= 0 {
			c.copyHeader(s, i, j)
		}
	}
}

// copyUnion copies the valid header of one union to the other.
func (c *compiler) copyUnion(s *state, dst, src []int) {
	if dst[0] == src[0] {
		return
	}
	valid := -1
	for k, j := range src {
		if s.w[c.lay.bases[j]] != 0 {
			valid = k
		}
	}
	c.invalidate(s, dst)
	if valid >= 0 {
		c.copyHeader(s, dst[valid], src[valid])
	}
}

// groupHeaders and groupUnions are a stack's elements, each as the headers it
// consists of.
func groupHeaders(hs []*v1model.Header) [][]int {
	g := make([][]int, len(hs))
	for i, h := range hs {
		g[i] = []int{h.Index}
	}
	return g
}

func groupUnions(us []*v1model.Union) [][]int {
	g := make([][]int, len(us))
	for i, u := range us {
		g[i] = headerIndexes(u.Headers)
	}
	return g
}

func (c *compiler) copyStack(dst, src [][]int, to, from int) step {
	return func(s *state) {
		if to == from {
			return
		}
		s.w[to] = s.w[from]
		for i := range dst {
			c.copyElement(s, dst[i], src[i])
		}
	}
}

// copyElement copies a stack's element.
func (c *compiler) copyElement(s *state, dst, src []int) {
	if len(dst) == 1 {
		c.copyHeader(s, dst[0], src[0])
		return
	}
	c.copyUnion(s, dst, src)
}

// swapElements swaps two of a stack's elements.
func (c *compiler) swapElements(s *state, a, b []int) {
	for k := range a {
		c.swapHeaders(s, a[k], b[k])
	}
}

func (c *compiler) invalidate(s *state, element []int) {
	for _, i := range element {
		c.makeInvalid(s, i)
	}
}

// elements are a stack's elements and where its count lies.
func (c *compiler) elements(e v1model.Expr) ([][]int, int) {
	switch e := e.(type) {
	case v1model.StackValue:
		return groupHeaders(e.Stack.Headers), c.lay.stacks[e.Stack.Index]
	case v1model.UnionStackValue:
		return groupUnions(e.Stack.Unions), c.lay.ustacks[e.Stack.Index]
	}
	panic(fmt.Sprintf("interp: %T is no stack", e))
}

// push compiles push_front: the elements move towards the end, and those that fall out
// there come in at the front, invalid.
func (c *compiler) push(st v1model.Push) step {
	of, at := c.elements(st.Stack)
	count := c.count(st.Count)
	return func(s *state) {
		n := int(min(count(s), uint64(len(of))))
		for i := len(of) - 1; i >= n; i-- {
			c.swapElements(s, of[i], of[i-n])
		}
		for _, e := range of[:n] {
			c.invalidate(s, e)
		}
		s.w[at] = min(s.w[at]+uint64(n), uint64(len(of)))
	}
}

// pop compiles pop_front: the elements move towards the front, and those that fall out
// there come in at the end, invalid.
func (c *compiler) pop(st v1model.Pop) step {
	of, at := c.elements(st.Stack)
	count := c.count(st.Count)
	return func(s *state) {
		n := int(min(count(s), uint64(len(of))))
		for i := range of[:len(of)-n] {
			c.swapElements(s, of[i], of[i+n])
		}
		for _, e := range of[len(of)-n:] {
			c.invalidate(s, e)
		}
		s.w[at] -= min(s.w[at], uint64(n))
	}
}
