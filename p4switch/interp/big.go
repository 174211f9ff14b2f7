package interp

import (
	"fmt"
	"math/big"

	"github.com/bifrost-rack/bifrost/p4switch/v1model"
)

// bigNum yields a number exactly, in z.
type bigNum func(s *state, z *big.Int)

// maxShift bounds shifts to the left: what is shifted further cannot reach any
// field again.
const maxShift = v1model.MaxFieldBits

// big compiles an expression of numbers of any size: exact and slow.
func (c *compiler) big(e v1model.Expr) bigNum {
	if sp := v1model.SpanOf(e); sp.Fits64() && !isVarbit(e) {
		return bigNum64(c.num(e), sp.Signed)
	}
	return c.bigExact(e)
}

// bigExact is big for what num cannot compute, or asks for itself.
func (c *compiler) bigExact(e v1model.Expr) bigNum {
	switch e := e.(type) {
	case v1model.Const:
		return func(_ *state, z *big.Int) { z.Set(e.Value) }
	case v1model.FieldValue, v1model.FieldOf:
		return c.bigField(e)
	case v1model.Param:
		at, n := c.argAt[e.Index], wordsFor(e.Width)
		return func(s *state, z *big.Int) { getBig(z, s.args[at:at+n]) }
	case v1model.Lookahead:
		return c.bigLookahead(e)
	case v1model.Select:
		cond, x, y := c.cond(e.Cond), c.big(e.Then), c.big(e.Else)
		return func(s *state, z *big.Int) {
			if cond(s) {
				x(s, z)
			} else {
				y(s, z)
			}
		}
	case v1model.Unary:
		x := c.big(e.X)
		if e.Op == v1model.OpNot {
			return func(s *state, z *big.Int) { x(s, z); z.Not(z) }
		}
		return func(s *state, z *big.Int) { x(s, z); z.Neg(z) }
	case v1model.Binary:
		return c.bigBinary(e)
	}
	panic(fmt.Sprintf("interp: %T is no number", e))
}

func bigNum64(x num, signed bool) bigNum {
	if signed {
		return func(s *state, z *big.Int) { z.SetInt64(int64(x(s))) }
	}
	return func(s *state, z *big.Int) { z.SetUint64(x(s)) }
}

// numBig is what only big can compute, modulo 2^64.
func (c *compiler) numBig(e v1model.Expr) num {
	x := c.bigExact(e)
	return func(s *state) uint64 {
		var z big.Int
		x(s, &z)
		return low64(&z)
	}
}

func (c *compiler) bigField(e v1model.Expr) bigNum {
	find, _, sl, h := c.locate(e)
	if isVarbit(e) {
		return func(s *state, z *big.Int) {
			z.SetInt64(0)
			if i := h(s); i >= 0 {
				z.SetBytes(s.varbit[i])
			}
		}
	}
	return func(s *state, z *big.Int) {
		z.SetInt64(0)
		at := find(s)
		if at < 0 {
			return
		}
		getBig(z, s.w[at:at+sl.n])
		if sl.signed {
			wrapBig(z, sl.width)
		}
	}
}

func (c *compiler) bigLookahead(e v1model.Lookahead) bigNum {
	offset, width := e.Offset, e.Width
	tooShort := c.codes.packetTooShort
	return func(s *state, z *big.Int) {
		z.SetInt64(0)
		rest := s.frame[s.pos:]
		if offset+width > len(rest)*8 {
			s.fail(tooShort)
			return
		}
		w := make([]uint64, wordsFor(width))
		loadWords(w, rest, offset, width)
		getBig(z, w)
	}
}

func (c *compiler) bigBinary(e v1model.Binary) bigNum {
	x := c.big(e.X)
	switch e.Op {
	case v1model.OpShl, v1model.OpShr:
		return bigShift(e.Op, x, c.count(e.Y))
	case v1model.OpWrap:
		w := v1model.ConstWidth(e.Y)
		return func(s *state, z *big.Int) { x(s, z); wrapBig(z, w) }
	case v1model.OpSaturate:
		top := new(big.Int).Lsh(big.NewInt(1), uint(v1model.ConstWidth(e.Y)-1))
		return bigClamp(x, new(big.Int).Neg(top), new(big.Int).Sub(top, big.NewInt(1)))
	case v1model.OpSaturateUnsigned:
		top := new(big.Int).Lsh(big.NewInt(1), uint(v1model.ConstWidth(e.Y)))
		return bigClamp(x, new(big.Int), top.Sub(top, big.NewInt(1)))
	}
	y := c.big(e.Y)
	op := bigOp(e.Op)
	return func(s *state, z *big.Int) {
		var b big.Int
		x(s, z)
		y(s, &b)
		op(z, z, &b)
	}
}

func bigShift(op v1model.Op, x bigNum, n num) bigNum {
	if op == v1model.OpShr {
		return func(s *state, z *big.Int) { x(s, z); z.Rsh(z, uint(n(s))) }
	}
	return func(s *state, z *big.Int) {
		x(s, z)
		if k := n(s); k < maxShift {
			z.Lsh(z, uint(k))
		} else {
			z.SetInt64(0)
		}
	}
}

func bigClamp(x bigNum, low, high *big.Int) bigNum {
	return func(s *state, z *big.Int) {
		x(s, z)
		if z.Cmp(low) < 0 {
			z.Set(low)
		} else if z.Cmp(high) > 0 {
			z.Set(high)
		}
	}
}

// wrapBig reads z's low bits as a two's complement number.
func wrapBig(z *big.Int, width int) {
	var m big.Int
	m.Lsh(m.SetInt64(1), uint(width))
	z.Mod(z, &m)
	if z.Bit(width-1) == 1 {
		z.Sub(z, &m)
	}
}

// bigOp is an operator on big numbers; division by zero yields 0.
func bigOp(op v1model.Op) func(z, x, y *big.Int) *big.Int {
	switch op {
	case v1model.OpAdd:
		return (*big.Int).Add
	case v1model.OpSub:
		return (*big.Int).Sub
	case v1model.OpMul:
		return (*big.Int).Mul
	case v1model.OpAnd:
		return (*big.Int).And
	case v1model.OpOr:
		return (*big.Int).Or
	case v1model.OpXor:
		return (*big.Int).Xor
	case v1model.OpDiv:
		return func(z, x, y *big.Int) *big.Int {
			if y.Sign() == 0 {
				return z.SetInt64(0)
			}
			return z.Quo(x, y)
		}
	case v1model.OpMod:
		return func(z, x, y *big.Int) *big.Int {
			if y.Sign() == 0 {
				return z.SetInt64(0)
			}
			return z.Rem(x, y)
		}
	}
	panic(fmt.Sprintf("interp: operator %d is not of numbers", op))
}
