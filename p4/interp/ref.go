package interp

import (
	"fmt"

	"github.com/bifrost-rack/bifrost/p4/v1model"
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
	if k, ok := smallConst(index); ok {
		i := -1
		if k < len(of) {
			i = of[k]
		}
		return func(*state) int { return i }, i
	}
	at := c.count(index)
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

// place finds a field at run time: its first word, or -1.
type place func(*state) int

// place compiles an expression that is a field. If it is always the same one,
// fixed is its first word, else -1.
func (c *compiler) place(e v1model.Expr) (find place, fixed int, sl slot, h href) {
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
