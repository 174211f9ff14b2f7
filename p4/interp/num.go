package interp

import (
	"fmt"
	"math/big"

	"github.com/bifrost-rack/bifrost/p4/v1model"
)

// num yields a number modulo 2^64. If the expression's span fits 64 bits, that
// is its exact value, read as the span's sign says.
type num func(*state) uint64

// num compiles an expression of numbers.
func (c *compiler) num(e v1model.Expr) num {
	switch e := e.(type) {
	case v1model.Const:
		k := low64(e.Value)
		return func(*state) uint64 { return k }
	case v1model.FieldValue, v1model.FieldOf:
		return c.numField(e)
	case v1model.Param:
		at := c.argAt[e.Index] + wordsFor(e.Width) - 1
		return func(s *state) uint64 { return s.args[at] }
	case v1model.Lookahead:
		return c.numLookahead(e)
	case v1model.Select:
		cond, x, y := c.cond(e.Cond), c.num(e.Then), c.num(e.Else)
		return func(s *state) uint64 {
			if cond(s) {
				return x(s)
			}
			return y(s)
		}
	case v1model.Unary:
		return c.numUnary(e)
	case v1model.Binary:
		return c.numBinary(e)
	}
	panic(fmt.Sprintf("interp: %T is no number", e))
}

// low64 is v modulo 2^64.
func low64(v *big.Int) uint64 {
	var w [1]uint64
	putBig(w[:], v, 64)
	return w[0]
}

func (c *compiler) numField(e v1model.Expr) num {
	if isVarbit(e) {
		return c.numBig(e)
	}
	find, fixed, sl, _ := c.place(e)
	at, width := fixed+sl.n-1, sl.width
	switch {
	case fixed < 0 && sl.signed && width <= 64:
		return func(s *state) uint64 {
			if at := find(s); at >= 0 {
				return signExtend(s.w[at], width)
			}
			return 0
		}
	case fixed < 0:
		low := sl.n - 1
		return func(s *state) uint64 {
			if at := find(s); at >= 0 {
				return s.w[at+low]
			}
			return 0
		}
	case sl.signed && width <= 64:
		return func(s *state) uint64 { return signExtend(s.w[at], width) }
	}
	return func(s *state) uint64 { return s.w[at] }
}

func isVarbit(e v1model.Expr) bool {
	switch e := e.(type) {
	case v1model.FieldValue:
		return e.Ref.Def().Varbit
	case v1model.FieldOf:
		return e.Field >= 0 && e.Type.Fields[e.Field].Varbit
	}
	return false
}

func (c *compiler) numLookahead(e v1model.Lookahead) num {
	offset, width := e.Offset, e.Width
	if width > 64 { // the low bits come last
		offset, width = offset+width-64, 64
	}
	tooShort := c.codes.packetTooShort
	return func(s *state) uint64 {
		rest := s.frame[s.pos:]
		if offset+width > len(rest)*8 {
			s.fail(tooShort)
			return 0
		}
		return loadBits(rest, offset, width)
	}
}

func (c *compiler) numUnary(e v1model.Unary) num {
	switch e.Op {
	case v1model.OpToData:
		x := c.cond(e.X)
		return func(s *state) uint64 {
			if x(s) {
				return 1
			}
			return 0
		}
	case v1model.OpSize:
		at := c.stackCount(e.X)
		return func(s *state) uint64 { return s.w[at] }
	case v1model.OpLastIndex:
		at := c.stackCount(e.X)
		return func(s *state) uint64 { return s.w[at] - 1 }
	}
	x := c.num(e.X)
	if e.Op == v1model.OpNot {
		return func(s *state) uint64 { return ^x(s) }
	}
	return func(s *state) uint64 { return -x(s) }
}

// stackCount is where the count of a stack's elements lies.
func (c *compiler) stackCount(e v1model.Expr) int {
	switch e := e.(type) {
	case v1model.StackValue:
		return c.lay.stacks[e.Stack.Index]
	case v1model.UnionStackValue:
		return c.lay.ustacks[e.Stack.Index]
	}
	panic(fmt.Sprintf("interp: %T is no stack", e))
}

// count compiles a number that is used as an index, an amount or a length:
// what is negative counts as 0, what is too large as the largest.
func (c *compiler) count(e v1model.Expr) num {
	sp := spanOf(e)
	switch {
	case !sp.signed && sp.as64():
		return c.num(e)
	case sp.as64():
		x := c.num(e)
		return func(s *state) uint64 { return uint64(max(int64(x(s)), 0)) }
	}
	x := c.big(e)
	return func(s *state) uint64 {
		var z big.Int
		x(s, &z)
		switch {
		case z.Sign() < 0:
			return 0
		case !z.IsUint64():
			return ^uint64(0)
		}
		return z.Uint64()
	}
}
