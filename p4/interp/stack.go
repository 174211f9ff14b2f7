package interp

import (
	"fmt"

	"github.com/bifrost-rack/bifrost/p4/v1model"
)

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

// push compiles push_front: the elements move towards the end, invalid ones
// come in at the front.
func (c *compiler) push(st v1model.Push) step {
	of, at := c.elements(st.Stack)
	count := c.count(st.Count)
	return func(s *state) {
		n := int(min(count(s), uint64(len(of))))
		for i := len(of) - 1; i >= n; i-- {
			c.copyElement(s, of[i], of[i-n])
		}
		for _, e := range of[:n] {
			c.invalidate(s, e)
		}
		s.w[at] = min(s.w[at]+uint64(n), uint64(len(of)))
	}
}

// pop compiles pop_front: the elements move towards the front, invalid ones
// come in at the end.
func (c *compiler) pop(st v1model.Pop) step {
	of, at := c.elements(st.Stack)
	count := c.count(st.Count)
	return func(s *state) {
		n := int(min(count(s), uint64(len(of))))
		for i := range of[:len(of)-n] {
			c.copyElement(s, of[i], of[i+n])
		}
		for _, e := range of[len(of)-n:] {
			c.invalidate(s, e)
		}
		s.w[at] -= min(s.w[at], uint64(n))
	}
}
