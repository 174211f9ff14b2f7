package interp

import "github.com/bifrost-rack/bifrost/p4/v1model"

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
		x, w := c.num(e.X), constWidth(e.Y)
		if w >= 64 {
			return x
		}
		return func(s *state) uint64 { return signExtend(x(s), w) }
	}
	x := spanOf(e.X)
	if !x.as64() {
		return c.numInexact(e)
	}
	switch e.Op {
	case v1model.OpShr:
		return numShr(c.num(e.X), c.count(e.Y), x.signed)
	case v1model.OpSaturateUnsigned:
		return numClamp(c.num(e.X), x.signed, 0, mask64(constWidth(e.Y)))
	case v1model.OpSaturate:
		if constWidth(e.Y) > 64 {
			return c.num(e.X)
		}
		top := mask64(constWidth(e.Y) - 1)
		return numClamp(c.num(e.X), x.signed, ^top, top)
	}
	if y := spanOf(e.Y); x.signed || y.signed || !y.as64() {
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
