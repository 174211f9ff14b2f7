package interp

import (
	"bytes"
	"fmt"
	"math/big"

	"github.com/bifrost-rack/bifrost/p4switch/v1model"
)

// pred yields a truth.
type pred func(*state) bool

// cond compiles an expression of booleans.
func (c *compiler) cond(e v1model.Expr) pred {
	switch e := e.(type) {
	case v1model.BoolConst:
		k := e.Value
		return func(*state) bool { return k }
	case v1model.Select:
		cond, x, y := c.cond(e.Cond), c.cond(e.Then), c.cond(e.Else)
		return func(s *state) bool {
			if cond(s) {
				return x(s)
			}
			return y(s)
		}
	case v1model.Unary:
		return c.condUnary(e)
	case v1model.Binary:
		return c.condBinary(e)
	}
	panic(fmt.Sprintf("interp: %T is no boolean", e))
}

func (c *compiler) condUnary(e v1model.Unary) pred {
	switch e.Op {
	case v1model.OpLogicalNot:
		x := c.cond(e.X)
		return func(s *state) bool { return !x(s) }
	case v1model.OpToBool:
		if v1model.SpanOf(e.X).Fits64() {
			x := c.num(e.X)
			return func(s *state) bool { return x(s) != 0 }
		}
		return c.compareBig(v1model.OpNotEqual, e.X, v1model.Const{Value: new(big.Int)})
	}
	if v1model.KindOf(e.X) == v1model.KindUnion {
		u, _ := c.union(e.X)
		return func(s *state) bool { i := u(s); return i >= 0 && c.unionHeader(s, i) >= 0 }
	}
	h, fixed := c.header(e.X)
	bases := c.lay.bases
	if fixed >= 0 {
		at := bases[fixed]
		return func(s *state) bool { return s.w[at] != 0 }
	}
	return func(s *state) bool { i := h(s); return i >= 0 && s.w[bases[i]] != 0 }
}

func (c *compiler) condBinary(e v1model.Binary) pred {
	switch e.Op {
	case v1model.OpLogicalAnd:
		x, y := c.cond(e.X), c.cond(e.Y)
		return func(s *state) bool { return x(s) && y(s) }
	case v1model.OpLogicalOr:
		x, y := c.cond(e.X), c.cond(e.Y)
		return func(s *state) bool { return x(s) || y(s) }
	}
	switch v1model.KindOf(e.X) {
	case v1model.KindBool:
		x, y, want := c.cond(e.X), c.cond(e.Y), e.Op == v1model.OpEqual
		return func(s *state) bool { return (x(s) == y(s)) == want }
	case v1model.KindHeader:
		return c.compareHeaders(e)
	case v1model.KindUnion:
		return c.compareUnions(e)
	}
	return c.compare(e.Op, e.X, e.Y)
}

// compare compares numbers in the fewest bits that hold both exactly.
func (c *compiler) compare(op v1model.Op, x, y v1model.Expr) pred {
	sx, sy := v1model.SpanOf(x), v1model.SpanOf(y)
	both := sx.Join(sy)
	switch {
	case isVarbit(x) || isVarbit(y):
		return c.compareBig(op, x, y)
	case both.Fits64():
		if k, ok := y.(v1model.Const); ok {
			return compareConst(op, c.num(x), low64(k.Value), both.Signed)
		}
		return compare64(op, c.num(x), c.num(y), both.Signed)
	case both.Bits <= 128:
		return compare128(op, c.wide(x), c.wide(y), both.Signed)
	}
	return c.compareBig(op, x, y)
}

func compareConst(op v1model.Op, x num, k uint64, signed bool) pred {
	switch op {
	case v1model.OpEqual:
		return func(s *state) bool { return x(s) == k }
	case v1model.OpNotEqual:
		return func(s *state) bool { return x(s) != k }
	}
	return compare64(op, x, func(*state) uint64 { return k }, signed)
}

func compare64(op v1model.Op, x, y num, signed bool) pred {
	switch op {
	case v1model.OpEqual:
		return func(s *state) bool { return x(s) == y(s) }
	case v1model.OpNotEqual:
		return func(s *state) bool { return x(s) != y(s) }
	case v1model.OpGreater:
		return compare64(v1model.OpLess, y, x, signed)
	case v1model.OpGreaterEqual:
		return compare64(v1model.OpLessEqual, y, x, signed)
	}
	switch {
	case signed && op == v1model.OpLess:
		return func(s *state) bool { return int64(x(s)) < int64(y(s)) }
	case signed:
		return func(s *state) bool { return int64(x(s)) <= int64(y(s)) }
	case op == v1model.OpLess:
		return func(s *state) bool { return x(s) < y(s) }
	default:
		return func(s *state) bool { return x(s) <= y(s) }
	}
}

func compare128(op v1model.Op, x, y wide, signed bool) pred {
	switch op {
	case v1model.OpEqual:
		return func(s *state) bool { return x(s) == y(s) }
	case v1model.OpNotEqual:
		return func(s *state) bool { return x(s) != y(s) }
	case v1model.OpLess:
		return func(s *state) bool { return x(s).less(y(s), signed) }
	case v1model.OpLessEqual:
		return func(s *state) bool { return !y(s).less(x(s), signed) }
	case v1model.OpGreater:
		return func(s *state) bool { return y(s).less(x(s), signed) }
	default:
		return func(s *state) bool { return !x(s).less(y(s), signed) }
	}
}

func (c *compiler) compareBig(op v1model.Op, x, y v1model.Expr) pred {
	fx, fy := c.big(x), c.big(y)
	holds := map[v1model.Op]func(int) bool{
		v1model.OpEqual:        func(r int) bool { return r == 0 },
		v1model.OpNotEqual:     func(r int) bool { return r != 0 },
		v1model.OpLess:         func(r int) bool { return r < 0 },
		v1model.OpLessEqual:    func(r int) bool { return r <= 0 },
		v1model.OpGreater:      func(r int) bool { return r > 0 },
		v1model.OpGreaterEqual: func(r int) bool { return r >= 0 },
	}[op]
	return func(s *state) bool {
		var a, b big.Int
		fx(s, &a)
		fy(s, &b)
		return holds(a.Cmp(&b))
	}
}

func (c *compiler) compareHeaders(e v1model.Binary) pred {
	x, _ := c.header(e.X)
	y, _ := c.header(e.Y)
	want := e.Op == v1model.OpEqual
	return func(s *state) bool { return c.equalHeaders(s, x(s), y(s)) == want }
}

// equalHeaders tells whether two headers are both valid and equal.
func (c *compiler) equalHeaders(s *state, x, y int) bool {
	if x < 0 || y < 0 || c.lay.heads[x] != c.lay.heads[y] {
		return false
	}
	n := c.lay.heads[x].words
	a, b := s.w[c.lay.bases[x]:][:n], s.w[c.lay.bases[y]:][:n]
	if a[0] == 0 {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return bytes.Equal(s.varbit[x], s.varbit[y])
}

func (c *compiler) compareUnions(e v1model.Binary) pred {
	x, _ := c.union(e.X)
	y, _ := c.union(e.Y)
	want := e.Op == v1model.OpEqual
	return func(s *state) bool {
		a, b := x(s), y(s)
		equal := a >= 0 && b >= 0 && c.equalHeaders(s, c.unionHeader(s, a), c.unionHeader(s, b))
		return equal == want
	}
}

// unionHeader is the index of a union's valid header, or -1.
func (c *compiler) unionHeader(s *state, union int) int {
	for _, h := range c.prog.Unions[union].Headers {
		if s.w[c.lay.bases[h.Index]] != 0 {
			return h.Index
		}
	}
	return -1
}
