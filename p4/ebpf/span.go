//go:build linux

package ebpf

import "github.com/bifrost-rack/bifrost/p4/v1model"

// span bounds a number: 0 to 2^bits-1, or if signed -2^(bits-1) to
// 2^(bits-1)-1. Numbers are exact in the model and have 64 bits here, so
// operators that look at more than the low bits need to know.
type span struct {
	bits   int
	signed bool
}

// unbounded is the width of what cannot be bounded.
const unbounded = 1 << 20

func (p span) exact() bool { return p.bits <= 64 }

// asInt is how many bits hold every value as a signed number.
func (p span) asInt() int {
	if p.signed {
		return p.bits
	}
	return p.bits + 1
}

func join(a, b span) span {
	if !a.signed && !b.signed {
		return span{bits: max(a.bits, b.bits)}
	}
	return span{max(a.asInt(), b.asInt()), true}
}

func spanOf(e v1model.Expr) span {
	switch e := e.(type) {
	case v1model.Const:
		if e.Value.Sign() < 0 {
			return span{e.Value.BitLen() + 1, true}
		}
		return span{bits: max(e.Value.BitLen(), 1)}
	case v1model.FieldValue:
		d := e.Ref.Def()
		return span{d.Width, d.Signed}
	case v1model.FieldOf:
		if e.Field == v1model.ValidField {
			return span{bits: 1}
		}
		d := e.Type.Fields[e.Field]
		return span{d.Width, d.Signed}
	case v1model.Param:
		return span{bits: e.Width}
	case v1model.Lookahead:
		return span{bits: e.Width}
	case v1model.Select:
		return join(spanOf(e.Then), spanOf(e.Else))
	case v1model.Unary:
		return unarySpan(e)
	case v1model.Binary:
		p := binarySpan(e)
		p.bits = min(p.bits, unbounded)
		return p
	}
	return span{unbounded, true}
}

func unarySpan(e v1model.Unary) span {
	switch e.Op {
	case v1model.OpToData:
		return span{bits: 1}
	case v1model.OpNot:
		return span{spanOf(e.X).asInt(), true}
	case v1model.OpNeg:
		return span{spanOf(e.X).asInt() + 1, true}
	case v1model.OpSize, v1model.OpLastIndex:
		return span{16, true}
	}
	return span{unbounded, true}
}

func binarySpan(e v1model.Binary) span {
	x := spanOf(e.X)
	switch e.Op {
	case v1model.OpWrap, v1model.OpSaturate:
		k, _ := smallConst(e.Y)
		return span{max(k, 1), true}
	case v1model.OpSaturateUnsigned:
		k, _ := smallConst(e.Y)
		return span{bits: max(k, 1)}
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
		if x.signed || y.signed {
			return span{x.asInt() + y.asInt(), true}
		}
		return span{bits: x.bits + y.bits}
	case v1model.OpDiv, v1model.OpMod:
		if x.signed || y.signed {
			return span{x.asInt() + 1, true}
		}
		return x
	case v1model.OpAnd:
		return andSpan(x, y)
	}
	return join(x, y) // OpOr, OpXor
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

// smallConst is a constant that is a sensible number of bits, or false.
func smallConst(e v1model.Expr) (int, bool) {
	k, ok := e.(v1model.Const)
	if !ok || k.Value.Sign() < 0 || k.Value.BitLen() > 16 {
		return 0, false
	}
	return int(k.Value.Int64()), true
}
