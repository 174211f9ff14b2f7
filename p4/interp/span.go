package interp

import "github.com/bifrost-rack/bifrost/p4/v1model"

// span bounds an expression's value: 0 to 2^bits-1, or if signed -2^(bits-1) to
// 2^(bits-1)-1.
type span struct {
	bits   int
	signed bool
}

// unbounded is the width of what an analysis cannot bound.
const unbounded = 1 << 30

// as64 tells whether every value is exact in 64 bits, read as signed says.
func (p span) as64() bool { return p.bits <= 64 }

// asInt is the number of bits that hold every value as a signed number.
func (p span) asInt() int {
	if p.signed {
		return p.bits
	}
	return p.bits + 1
}

// join spans the values of both.
func join(a, b span) span {
	if !a.signed && !b.signed {
		return span{bits: max(a.bits, b.bits)}
	}
	return span{max(a.asInt(), b.asInt()), true}
}

func (p span) clamp() span {
	p.bits = min(p.bits, unbounded)
	return p
}

// spanOf bounds an expression's value.
func spanOf(e v1model.Expr) span {
	switch e := e.(type) {
	case v1model.Const:
		if e.Value.Sign() < 0 {
			return span{e.Value.BitLen() + 1, true}
		}
		return span{bits: max(e.Value.BitLen(), 1)}
	case v1model.FieldValue:
		return fieldSpan(e.Ref.Def())
	case v1model.FieldOf:
		if e.Field == v1model.ValidField {
			return span{bits: 1}
		}
		return fieldSpan(e.Type.Fields[e.Field])
	case v1model.Param:
		return span{bits: e.Width}
	case v1model.Lookahead:
		return span{bits: e.Width}
	case v1model.Select:
		return join(spanOf(e.Then), spanOf(e.Else))
	case v1model.Unary:
		return unarySpan(e)
	case v1model.Binary:
		return binarySpan(e).clamp()
	}
	return span{bits: unbounded, signed: true}
}

func fieldSpan(f v1model.Field) span {
	if f.Varbit {
		return span{bits: max(f.MaxWidth, 1)}
	}
	return span{f.Width, f.Signed}
}

func unarySpan(e v1model.Unary) span {
	switch e.Op {
	case v1model.OpToData:
		return span{bits: 1}
	case v1model.OpSize:
		return span{bits: 32}
	case v1model.OpLastIndex:
		return span{32, true}
	case v1model.OpNot:
		return span{spanOf(e.X).asInt(), true}.clamp()
	default: // OpNeg
		return span{spanOf(e.X).asInt() + 1, true}.clamp()
	}
}

func binarySpan(e v1model.Binary) span {
	x := spanOf(e.X)
	switch e.Op {
	case v1model.OpWrap, v1model.OpSaturate:
		return span{constWidth(e.Y), true}
	case v1model.OpSaturateUnsigned:
		return span{bits: constWidth(e.Y)}
	case v1model.OpShl:
		if k, ok := smallConst(e.Y); ok {
			return span{x.bits + k, x.signed}
		}
		return span{unbounded, x.signed}
	case v1model.OpShr:
		if k, ok := smallConst(e.Y); ok {
			return span{max(x.bits-k, 1), x.signed}
		}
		return x
	}
	y := spanOf(e.Y)
	switch e.Op {
	case v1model.OpAdd:
		p := join(x, y)
		return span{p.bits + 1, p.signed}
	case v1model.OpSub:
		return span{max(x.asInt(), y.asInt()) + 1, true}
	case v1model.OpMul:
		return mulSpan(x, y)
	case v1model.OpDiv, v1model.OpMod:
		if x.signed || y.signed {
			return span{x.asInt() + 1, true}
		}
		return x
	case v1model.OpAnd:
		return andSpan(x, y)
	default: // OpOr, OpXor
		return join(x, y)
	}
}

func mulSpan(x, y span) span {
	if x.signed || y.signed {
		return span{x.asInt() + y.asInt(), true}
	}
	return span{bits: x.bits + y.bits}
}

func andSpan(x, y span) span {
	switch {
	case x.signed && y.signed:
		return join(x, y)
	case x.signed:
		return y
	case y.signed:
		return x
	}
	return span{bits: min(x.bits, y.bits)}
}

// constWidth is the width of a cast, which the loader made sure is constant.
func constWidth(e v1model.Expr) int {
	k, _ := smallConst(e)
	return max(k, 1)
}

// smallConst is a constant that is a sensible number of bits, or false.
func smallConst(e v1model.Expr) (int, bool) {
	k, ok := e.(v1model.Const)
	if !ok || k.Value.Sign() < 0 || k.Value.BitLen() > 20 {
		return 0, false
	}
	return int(k.Value.Int64()), true
}
