package v1model

// Span bounds an expression's value: 0 to 2^Bits-1, or if signed -2^(Bits-1) to
// 2^(Bits-1)-1. Numbers are exact in the model and have 64 bits in the executors, so
// operators that look at more than the low bits need to know.
type Span struct {
	Bits   int
	Signed bool
}

// unbounded is the width of what an analysis cannot bound, and the largest one that it tells: nothing
// in a program is wider than MaxFieldBits.
const unbounded = 1 << 20

// Fits64 tells whether every value is exact in 64 bits, read as Signed says.
func (p Span) Fits64() bool { return p.Bits <= 64 }

// AsInt is the number of bits that hold every value as a signed number.
func (p Span) AsInt() int {
	if p.Signed {
		return p.Bits
	}
	return p.Bits + 1
}

// Join spans the values of both.
func (p Span) Join(o Span) Span {
	if !p.Signed && !o.Signed {
		return Span{Bits: max(p.Bits, o.Bits)}
	}
	return Span{max(p.AsInt(), o.AsInt()), true}
}

func (p Span) clamp() Span {
	p.Bits = min(p.Bits, unbounded)
	return p
}

// SpanOf bounds an expression's value.
func SpanOf(e Expr) Span {
	switch e := e.(type) {
	case Const:
		if e.Value.Sign() < 0 {
			return Span{e.Value.BitLen() + 1, true}
		}
		return Span{Bits: max(e.Value.BitLen(), 1)}
	case FieldValue:
		return fieldSpan(e.Ref.Def())
	case FieldOf:
		if e.Field == ValidField {
			return Span{Bits: 1}
		}
		return fieldSpan(e.Type.Fields[e.Field])
	case Param:
		return Span{Bits: e.Width}
	case Lookahead:
		return Span{Bits: e.Width}
	case Select:
		return SpanOf(e.Then).Join(SpanOf(e.Else))
	case Unary:
		return unarySpan(e)
	case Binary:
		return binarySpan(e).clamp()
	}
	return Span{Bits: unbounded, Signed: true}
}

func fieldSpan(f Field) Span {
	if f.Varbit {
		return Span{Bits: max(f.MaxWidth, 1)}
	}
	return Span{f.Width, f.Signed}
}

func unarySpan(e Unary) Span {
	switch e.Op {
	case OpToData:
		return Span{Bits: 1}
	case OpSize:
		return Span{Bits: 32}
	case OpLastIndex:
		return Span{32, true}
	case OpNot:
		return Span{SpanOf(e.X).AsInt(), true}.clamp()
	default: // OpNeg
		return Span{SpanOf(e.X).AsInt() + 1, true}.clamp()
	}
}

func binarySpan(e Binary) Span {
	x := SpanOf(e.X)
	switch e.Op {
	case OpWrap, OpSaturate:
		return Span{ConstWidth(e.Y), true}
	case OpSaturateUnsigned:
		return Span{Bits: ConstWidth(e.Y)}
	case OpShl:
		if k, ok := SmallConst(e.Y); ok {
			return Span{x.Bits + k, x.Signed}
		}
		return Span{unbounded, x.Signed}
	case OpShr:
		if k, ok := SmallConst(e.Y); ok {
			return Span{max(x.Bits-k, 1), x.Signed}
		}
		return x
	}
	y := SpanOf(e.Y)
	switch e.Op {
	case OpAdd:
		p := x.Join(y)
		return Span{p.Bits + 1, p.Signed}
	case OpSub:
		return Span{max(x.AsInt(), y.AsInt()) + 1, true}
	case OpMul:
		return mulSpan(x, y)
	case OpDiv, OpMod:
		if x.Signed || y.Signed {
			return Span{x.AsInt() + 1, true}
		}
		return x
	case OpAnd:
		return andSpan(x, y)
	default: // OpOr, OpXor
		return x.Join(y)
	}
}

func mulSpan(x, y Span) Span {
	if x.Signed || y.Signed {
		return Span{x.AsInt() + y.AsInt(), true}
	}
	return Span{Bits: x.Bits + y.Bits}
}

func andSpan(x, y Span) Span {
	switch {
	case x.Signed && y.Signed:
		return x.Join(y)
	case x.Signed:
		return y
	case y.Signed:
		return x
	}
	return Span{Bits: min(x.Bits, y.Bits)}
}

// ConstWidth is the width of a cast, which the loader made sure is constant.
func ConstWidth(e Expr) int {
	k, _ := SmallConst(e)
	return max(k, 1)
}

// SmallConst is a constant that can be a width, a shift or an index, or false.
func SmallConst(e Expr) (int, bool) {
	k, ok := e.(Const)
	if !ok || k.Value.Sign() < 0 || k.Value.BitLen() > 20 {
		return 0, false
	}
	return int(k.Value.Int64()), true
}
