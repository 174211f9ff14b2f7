package interp

import (
	"math/big"

	"github.com/bifrost-rack/bifrost/p4switch/v1model"
)

// wide yields a number modulo 2^128; exact if the expression's span fits.
type wide func(*state) u128

// wide compiles an expression of numbers of up to 128 bits.
func (c *compiler) wide(e v1model.Expr) wide {
	if sp := v1model.SpanOf(e); sp.Fits64() {
		x := c.num(e)
		if sp.Signed {
			return func(s *state) u128 { return extend128(x(s), true) }
		}
		return func(s *state) u128 { return u128{0, x(s)} }
	}
	switch e := e.(type) {
	case v1model.Const:
		k := low128(e.Value)
		return func(*state) u128 { return k }
	case v1model.FieldValue, v1model.FieldOf:
		return c.wideField(e)
	case v1model.Lookahead:
		if e.Width <= 128 {
			return c.wideLookahead(e)
		}
	case v1model.Param:
		at := c.argAt[e.Index] + wordsFor(e.Width) - 2
		return func(s *state) u128 { return u128{s.args[at], s.args[at+1]} }
	case v1model.Select:
		cond, x, y := c.cond(e.Cond), c.wide(e.Then), c.wide(e.Else)
		return func(s *state) u128 {
			if cond(s) {
				return x(s)
			}
			return y(s)
		}
	case v1model.Unary:
		return c.wideUnary(e)
	case v1model.Binary:
		if wideOp(e) {
			return c.wideBinary(e)
		}
	}
	x := c.big(e)
	return func(s *state) u128 {
		var z big.Int
		x(s, &z)
		return low128(&z)
	}
}

func low128(v *big.Int) u128 {
	var w [2]uint64
	putBig(w[:], v, 128)
	return u128{w[0], w[1]}
}

func (c *compiler) wideField(e v1model.Expr) wide {
	if isVarbit(e) {
		x := c.big(e)
		return func(s *state) u128 {
			var z big.Int
			x(s, &z)
			return low128(&z)
		}
	}
	find, fixed, sl, _ := c.locate(e)
	skip, width := sl.n-2, sl.width
	signed := sl.signed && width < 128
	if fixed >= 0 && !signed {
		at := fixed + skip
		return func(s *state) u128 { return u128{s.w[at], s.w[at+1]} }
	}
	return func(s *state) u128 {
		at := find(s)
		if at < 0 {
			return u128{}
		}
		v := u128{s.w[at+skip], s.w[at+skip+1]}
		if signed {
			return signExtend128(v, width)
		}
		return v
	}
}

// wideLookahead reads 65 to 128 bits.
func (c *compiler) wideLookahead(e v1model.Lookahead) wide {
	offset, high, tooShort := e.Offset, e.Width-64, c.codes.packetTooShort
	return func(s *state) u128 {
		rest := s.frame[s.pos:]
		if offset+high+64 > len(rest)*8 {
			s.fail(tooShort)
			return u128{}
		}
		return u128{loadBits(rest, offset, high), loadBits(rest, offset+high, 64)}
	}
}

func (c *compiler) wideUnary(e v1model.Unary) wide {
	x := c.wide(e.X)
	if e.Op == v1model.OpNot {
		return func(s *state) u128 { v := x(s); return u128{^v.hi, ^v.lo} }
	}
	return func(s *state) u128 { return u128{}.sub(x(s)) }
}

// wideOp tells whether an operator can be computed in 128 bits.
func wideOp(e v1model.Binary) bool {
	switch e.Op {
	case v1model.OpShr, v1model.OpSaturate, v1model.OpSaturateUnsigned:
		return v1model.SpanOf(e.X).Bits <= 128
	case v1model.OpDiv, v1model.OpMod:
		return false
	}
	return true
}

func (c *compiler) wideBinary(e v1model.Binary) wide {
	x := c.wide(e.X)
	switch e.Op {
	case v1model.OpShl:
		n := c.count(e.Y)
		return func(s *state) u128 { return x(s).shl(n(s)) }
	case v1model.OpShr:
		n, signed := c.count(e.Y), v1model.SpanOf(e.X).Signed
		return func(s *state) u128 { return x(s).shr(n(s), signed) }
	case v1model.OpWrap:
		w := v1model.ConstWidth(e.Y)
		if w >= 128 {
			return x
		}
		return func(s *state) u128 { return signExtend128(x(s), w) }
	case v1model.OpSaturate:
		if v1model.ConstWidth(e.Y) > 128 {
			return x
		}
		top := mask128(v1model.ConstWidth(e.Y) - 1)
		return wideClamp(x, v1model.SpanOf(e.X).Signed, u128{^top.hi, ^top.lo}, top)
	case v1model.OpSaturateUnsigned:
		return wideClamp(x, v1model.SpanOf(e.X).Signed, u128{}, mask128(min(v1model.ConstWidth(e.Y), 128)))
	}
	return wideRing(e.Op, x, c.wide(e.Y))
}

func wideRing(op v1model.Op, x, y wide) wide {
	switch op {
	case v1model.OpAdd:
		return func(s *state) u128 { return x(s).add(y(s)) }
	case v1model.OpSub:
		return func(s *state) u128 { return x(s).sub(y(s)) }
	case v1model.OpMul:
		return func(s *state) u128 { return x(s).mul(y(s)) }
	case v1model.OpAnd:
		return func(s *state) u128 { a, b := x(s), y(s); return u128{a.hi & b.hi, a.lo & b.lo} }
	case v1model.OpOr:
		return func(s *state) u128 { a, b := x(s), y(s); return u128{a.hi | b.hi, a.lo | b.lo} }
	default:
		return func(s *state) u128 { a, b := x(s), y(s); return u128{a.hi ^ b.hi, a.lo ^ b.lo} }
	}
}

// wideClamp is numClamp for 128 bits.
func wideClamp(x wide, signed bool, low, high u128) wide {
	if signed && int64(high.hi) < 0 { // 128 unsigned bits
		high = mask128(127)
	}
	return func(s *state) u128 {
		v := x(s)
		if signed && v.less(low, true) {
			return low
		}
		if high.less(v, signed) {
			return high
		}
		return v
	}
}
