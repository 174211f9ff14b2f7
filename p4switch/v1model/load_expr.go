package v1model

import (
	"bytes"
	"encoding/json"
)

// rawOp is the value of an expression: an operator with operands or, where p4c
// wraps twice, another value.
type rawOp struct {
	Type  *string         `json:"type"`
	Op    string          `json:"op"`
	Left  json.RawMessage `json:"left"`
	Right json.RawMessage `json:"right"`
	Cond  json.RawMessage `json:"cond"`
}

// expr loads an expression of any kind.
func (l *loader) expr(raw *rawValue) (Expr, error) { return l.exprAt(raw, 0) }

// data loads an expression and makes a number of it.
func (l *loader) data(raw *rawValue) (Expr, error) { return l.kind(raw, KindData, 0) }

// cond loads an expression and makes a boolean of it.
func (l *loader) cond(raw *rawValue) (Expr, error) { return l.kind(raw, KindBool, 0) }

// kind loads an expression of the kind wanted, converting between numbers and
// booleans, which share their fields.
func (l *loader) kind(raw *rawValue, want Kind, depth int) (Expr, error) {
	e, err := l.exprAt(raw, depth)
	if err != nil {
		return nil, err
	}
	return convert(e, want)
}

func convert(e Expr, want Kind) (Expr, error) {
	switch got := KindOf(e); {
	case want == got || want == 0:
		return e, nil
	case want == KindData && got == KindBool:
		return Unary{OpToData, e}, nil
	case want == KindBool && got == KindData:
		return Unary{OpToBool, e}, nil
	default:
		return nil, malformed("a %v where a %v belongs", got, want)
	}
}

func (l *loader) exprAt(raw *rawValue, depth int) (Expr, error) {
	if depth > MaxDepth {
		return nil, unsupported("expression nested deeper than %d", MaxDepth)
	}
	switch raw.Type {
	case "expression":
		return l.operator(raw.Value, depth+1)
	case "field":
		return l.fieldExpr(raw.Value, depth+1)
	case "stack_field":
		return l.stackField(raw.Value)
	case "union_stack_field":
		return l.unionStackField(raw.Value)
	case "lookahead":
		return lookahead(raw.Value)
	case "bool":
		var b bool
		err := unmarshal(raw.Value, &b)
		return BoolConst{b}, err
	case "local", "runtime_data":
		return l.param(raw.Value)
	}
	var name string
	if err := unmarshal(raw.Value, &name); err != nil {
		return nil, at(err, "value of type %q", raw.Type)
	}
	switch raw.Type {
	case "hexstr":
		v, err := parseHex(name)
		return Const{v}, err
	case "header", "header_stack", "header_union", "header_union_stack":
		return l.aggregate(name)
	}
	return nil, unsupported("value of type %q", raw.Type)
}

// aggregate resolves a header, stack, union or stack of unions. p4c does not
// always say rightly which of them it is; their names do not collide.
func (l *loader) aggregate(name string) (Expr, error) {
	if _, ok := l.headers[name]; ok {
		h, err := l.wholeHeader(name)
		return HeaderValue{h}, err
	}
	if s, ok := l.stacks[name]; ok {
		return StackValue{s}, nil
	}
	if u, ok := l.unions[name]; ok {
		return UnionValue{u}, nil
	}
	if s, ok := l.unionStacks[name]; ok {
		return UnionStackValue{s}, nil
	}
	return nil, malformed("no header, stack or union %q", name)
}

// fieldExpr resolves ["header", "field"]; the header may also be computed.
func (l *loader) fieldExpr(raw json.RawMessage, depth int) (Expr, error) {
	var parts []json.RawMessage
	if err := unmarshal(raw, &parts); err != nil {
		return nil, err
	}
	var name string
	if len(parts) != 2 || unmarshal(parts[1], &name) != nil {
		return nil, malformed("field reference %s", raw)
	}
	if bytes.HasPrefix(parts[0], []byte("{")) {
		h, err := l.operator(parts[0], depth)
		if err != nil {
			return nil, err
		}
		return fieldOf(h, name)
	}
	var header string
	if err := unmarshal(parts[0], &header); err != nil {
		return nil, err
	}
	r, err := l.field(header, name)
	return FieldValue{r}, err
}

// fieldOf is a field of a computed header by its name.
func fieldOf(h Expr, name string) (Expr, error) {
	t := typeOf(h)
	if t == nil {
		return nil, malformed("field %q of a %v", name, KindOf(h))
	}
	i, ok := t.Field(name)
	if !ok {
		return nil, malformed("no field %q in header type %q", name, t.Name)
	}
	return FieldOf{h, t, i}, nil
}

func (l *loader) stackField(raw json.RawMessage) (Expr, error) {
	var v []string
	if err := unmarshal(raw, &v); err != nil {
		return nil, err
	}
	if len(v) != 2 {
		return nil, malformed("stack field with %d elements", len(v))
	}
	s, err := find(l.stacks, "stack", v[0])
	if err != nil {
		return nil, err
	}
	last := Last{StackValue{s}}
	if _, ok := s.Type.Field(v[1]); !ok && v[1] == "last" {
		return last, nil // p4c's way to say the header itself
	}
	return fieldOf(last, v[1])
}

func (l *loader) unionStackField(raw json.RawMessage) (Expr, error) {
	var v []string
	if err := unmarshal(raw, &v); err != nil {
		return nil, err
	}
	if len(v) != 3 {
		return nil, malformed("union stack field with %d elements", len(v))
	}
	s, err := find(l.unionStacks, "union stack", v[0])
	if err != nil {
		return nil, err
	}
	m, ok := s.Type.member(v[1])
	if !ok {
		return nil, malformed("no member %q in union type %q", v[1], s.Type.Name)
	}
	return fieldOf(Member{Last{UnionStackValue{s}}, m}, v[2])
}

func lookahead(raw json.RawMessage) (Expr, error) {
	var v []int
	if err := unmarshal(raw, &v); err != nil {
		return nil, err
	}
	if len(v) != 2 || v[0] < 0 || v[1] < 1 || v[0] > MaxFieldBits || v[1] > MaxFieldBits {
		return nil, malformed("lookahead %v", v)
	}
	return Lookahead{v[0], v[1]}, nil
}

func (l *loader) param(raw json.RawMessage) (Expr, error) {
	var i int
	if err := unmarshal(raw, &i); err != nil {
		return nil, err
	}
	if i < 0 || i >= len(l.params) {
		return nil, malformed("parameter %d of %d", i, len(l.params))
	}
	return Param{i, l.params[i].Width}, nil
}
