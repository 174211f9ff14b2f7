package v1model

import (
	"encoding/json"
	"math/big"
)

// operator loads an operator with its operands, depth levels down.
func (l *loader) operator(raw json.RawMessage, depth int) (Expr, error) {
	var op rawOp
	if err := unmarshal(raw, &op); err != nil {
		return nil, err
	}
	if op.Type != nil {
		var v rawValue
		if err := unmarshal(raw, &v); err != nil {
			return nil, err
		}
		return l.exprAt(&v, depth)
	}
	e, err := l.apply(&op, depth)
	if err != nil {
		return nil, at(err, "operator %q", op.Op)
	}
	return e, nil
}

func (l *loader) apply(op *rawOp, depth int) (Expr, error) {
	switch op.Op {
	case "?":
		return l.ternary(op, depth)
	case "access_field", "access_union_header":
		return l.access(op, depth)
	case "dereference_header_stack", "dereference_stack", "dereference_union_stack":
		return l.element(op, depth)
	}
	if isNull(op.Left) {
		return l.unary(op, depth)
	}
	return l.binary(op, depth)
}

// operand loads one side of an operator.
func (l *loader) operand(raw json.RawMessage, want Kind, depth int) (Expr, error) {
	var v rawValue
	if err := unmarshal(raw, &v); err != nil {
		return nil, err
	}
	return l.kind(&v, want, depth)
}

func (l *loader) unary(op *rawOp, depth int) (Expr, error) {
	code, ok := unaryNames[op.Op]
	if !ok {
		if _, binary := binaryNames[op.Op]; !binary {
			return nil, unsupported("operator %q", op.Op)
		}
		if op.Op != "+" {
			return nil, malformed("left operand missing")
		}
		return l.operand(op.Right, KindData, depth)
	}
	x, err := l.operand(op.Right, unaryOps[code].operand, depth)
	if err != nil {
		return nil, err
	}
	switch k := KindOf(x); code {
	case OpValid:
		if k != KindHeader && k != KindUnion {
			return nil, malformed("validity of a %v", k)
		}
	case OpLastIndex, OpSize:
		if k != KindStack && k != KindUnionStack {
			return nil, malformed("index of a %v", k)
		}
	}
	return Unary{code, x}, nil
}

func (l *loader) binary(op *rawOp, depth int) (Expr, error) {
	if code, ok := unaryNames[op.Op]; ok && code != OpNeg {
		// One operand, given on the left.
		op.Left, op.Right = nil, op.Left
		return l.unary(op, depth)
	}
	code, ok := binaryNames[op.Op]
	if !ok {
		return nil, unsupported("operator %q", op.Op)
	}
	want := binaryOps[code].operand
	x, err := l.operand(op.Left, want, depth)
	if err != nil {
		return nil, at(err, "left")
	}
	y, err := l.operand(op.Right, want, depth)
	if err != nil {
		return nil, at(err, "right")
	}
	switch code {
	case OpEqual, OpNotEqual:
		return compare(code, x, y)
	case OpWrap, OpSaturate, OpSaturateUnsigned:
		if w, ok := y.(Const); !ok || w.Value.Sign() <= 0 || w.Value.Cmp(big.NewInt(MaxFieldBits)) > 0 {
			return nil, unsupported("cast to a width that is not constant")
		}
	}
	return Binary{code, x, y}, nil
}

// compare checks that both sides of == or != can be compared.
func compare(code Op, x, y Expr) (Expr, error) {
	kx, ky := KindOf(x), KindOf(y)
	if kx != ky && (kx == KindData || kx == KindBool) {
		var err error
		if y, err = convert(y, kx); err != nil {
			return nil, err
		}
		ky = kx
	}
	if kx != ky {
		return nil, malformed("comparison of a %v with a %v", kx, ky)
	}
	if kx == KindStack || kx == KindUnionStack {
		return nil, unsupported("comparison of stacks")
	}
	return Binary{code, x, y}, nil
}

func (l *loader) ternary(op *rawOp, depth int) (Expr, error) {
	c, err := l.operand(op.Cond, KindBool, depth)
	if err != nil {
		return nil, at(err, "condition")
	}
	x, err := l.operand(op.Left, 0, depth)
	if err != nil {
		return nil, at(err, "then")
	}
	y, err := l.operand(op.Right, KindOf(x), depth)
	if err != nil {
		return nil, at(err, "else")
	}
	switch KindOf(x) {
	case KindData, KindBool:
	case KindHeader:
		if typeOf(x) != typeOf(y) {
			return nil, malformed("choice between different headers")
		}
	default:
		return nil, unsupported("choice between %vs", KindOf(x))
	}
	return Select{c, x, y}, nil
}

// access loads a field of a computed header or a header of a computed union.
func (l *loader) access(op *rawOp, depth int) (Expr, error) {
	x, err := l.operand(op.Left, 0, depth)
	if err != nil {
		return nil, err
	}
	var i int
	if err := unmarshal(op.Right, &i); err != nil {
		return nil, err
	}
	if op.Op == "access_union_header" {
		t := unionTypeOf(x)
		if KindOf(x) != KindUnion || t == nil || i < 0 || i >= len(t.Members) {
			return nil, malformed("member %d of a %v", i, KindOf(x))
		}
		return Member{x, i}, nil
	}
	t := typeOf(x)
	if t == nil || i < 0 || i > len(t.Fields) {
		return nil, malformed("field %d of a %v", i, KindOf(x))
	}
	if i == len(t.Fields) { // the hidden field comes last
		i = ValidField
	}
	return FieldOf{x, t, i}, nil
}

func (l *loader) element(op *rawOp, depth int) (Expr, error) {
	s, err := l.operand(op.Left, 0, depth)
	if err != nil {
		return nil, err
	}
	if k := KindOf(s); k != KindStack && k != KindUnionStack {
		return nil, malformed("element of a %v", k)
	}
	i, err := l.operand(op.Right, KindData, depth)
	return Element{s, i}, err
}
