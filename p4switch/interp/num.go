package interp

import (
	"fmt"
	"math/big"

	"github.com/bifrost-rack/bifrost/p4switch/v1model"
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
	find, fixed, sl, _ := c.locate(e)
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

// count compiles a number that is used as an amount or a length: what is negative
// counts as 0, what is too large as the largest.
func (c *compiler) count(e v1model.Expr) num { return c.unsigned(e, 0) }

// index compiles a number that is used as an index: what is negative is beyond, as
// what is too large.
func (c *compiler) index(e v1model.Expr) num { return c.unsigned(e, ^uint64(0)) }

// unsigned compiles a number; negative is what stands for all that are negative.
func (c *compiler) unsigned(e v1model.Expr, negative uint64) num {
	sp := v1model.SpanOf(e)
	switch {
	case !sp.Signed && sp.Fits64():
		return c.num(e)
	case sp.Fits64():
		x := c.num(e)
		return func(s *state) uint64 {
			if v := x(s); int64(v) >= 0 {
				return v
			}
			return negative
		}
	}
	x := c.big(e)
	return func(s *state) uint64 {
		var z big.Int
		x(s, &z)
		switch {
		case z.Sign() < 0:
			return negative
		case !z.IsUint64():
			return ^uint64(0)
		}
		return z.Uint64()
	}
}

// numBinary compiles an operator. Sums, products, bitwise operators and shifts
// to the left are right modulo 2^64 whatever the operands; the others need
// exact operands.
func (c *compiler) numBinary(e v1model.Binary) num {
	switch e.Op {
	case v1model.OpAdd, v1model.OpSub, v1model.OpMul, v1model.OpAnd, v1model.OpOr, v1model.OpXor:
		if k, ok := e.Y.(v1model.Const); ok {
			return numConst(e.Op, c.num(e.X), low64(k.Value))
		}
		return numRing(e.Op, c.num(e.X), c.num(e.Y))
	case v1model.OpShl:
		x, n := c.num(e.X), c.count(e.Y)
		return func(s *state) uint64 { return x(s) << n(s) }
	case v1model.OpWrap:
		x, w := c.num(e.X), v1model.ConstWidth(e.Y)
		if w >= 64 {
			return x
		}
		return func(s *state) uint64 { return signExtend(x(s), w) }
	}
	x := v1model.SpanOf(e.X)
	if !x.Fits64() {
		return c.numInexact(e)
	}
	switch e.Op {
	case v1model.OpShr:
		return numShr(c.num(e.X), c.count(e.Y), x.Signed)
	case v1model.OpSaturateUnsigned:
		return numClamp(c.num(e.X), x.Signed, 0, mask64(v1model.ConstWidth(e.Y)))
	case v1model.OpSaturate:
		if v1model.ConstWidth(e.Y) > 64 {
			return c.num(e.X)
		}
		top := mask64(v1model.ConstWidth(e.Y) - 1)
		return numClamp(c.num(e.X), x.Signed, ^top, top)
	}
	if y := v1model.SpanOf(e.Y); x.Signed || y.Signed || !y.Fits64() {
		return c.numBig(e)
	}
	return numDivide(e.Op, c.num(e.X), c.num(e.Y))
}

// numInexact compiles an operator whose left operand does not fit 64 bits.
func (c *compiler) numInexact(e v1model.Binary) num {
	if wideOp(e) {
		f := c.wideBinary(e)
		return func(s *state) uint64 { return f(s).lo }
	}
	return c.numBig(e)
}

func numRing(op v1model.Op, x, y num) num {
	switch op {
	case v1model.OpAdd:
		return func(s *state) uint64 { return x(s) + y(s) }
	case v1model.OpSub:
		return func(s *state) uint64 { return x(s) - y(s) }
	case v1model.OpMul:
		return func(s *state) uint64 { return x(s) * y(s) }
	case v1model.OpAnd:
		return func(s *state) uint64 { return x(s) & y(s) }
	case v1model.OpOr:
		return func(s *state) uint64 { return x(s) | y(s) }
	default:
		return func(s *state) uint64 { return x(s) ^ y(s) }
	}
}

func numConst(op v1model.Op, x num, k uint64) num {
	switch op {
	case v1model.OpAdd:
		return func(s *state) uint64 { return x(s) + k }
	case v1model.OpSub:
		return func(s *state) uint64 { return x(s) - k }
	case v1model.OpMul:
		return func(s *state) uint64 { return x(s) * k }
	case v1model.OpAnd:
		return func(s *state) uint64 { return x(s) & k }
	case v1model.OpOr:
		return func(s *state) uint64 { return x(s) | k }
	default:
		return func(s *state) uint64 { return x(s) ^ k }
	}
}

func numShr(x, n num, signed bool) num {
	if signed {
		return func(s *state) uint64 { return uint64(int64(x(s)) >> n(s)) }
	}
	return func(s *state) uint64 { return x(s) >> n(s) }
}

// numClamp brings a number between low and high. If the number is unsigned, so
// is high, and low does not matter.
func numClamp(x num, signed bool, low, high uint64) num {
	if !signed {
		return func(s *state) uint64 { return min(x(s), high) }
	}
	if int64(high) < 0 { // 64 unsigned bits
		high = 1<<63 - 1
	}
	return func(s *state) uint64 { return uint64(min(max(int64(x(s)), int64(low)), int64(high))) }
}

// numDivide divides unsigned numbers. Division by zero, which P4 leaves
// undefined, yields 0.
func numDivide(op v1model.Op, x, y num) num {
	if op == v1model.OpDiv {
		return func(s *state) uint64 {
			if d := y(s); d != 0 {
				return x(s) / d
			}
			return 0
		}
	}
	return func(s *state) uint64 {
		if d := y(s); d != 0 {
			return x(s) % d
		}
		return 0
	}
}
