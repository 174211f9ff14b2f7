package v1model

import (
	"encoding/json"
	"math/big"
)

// extract loads extract and extract_VL.
func (l *loader) extract(args []rawValue) (Stmt, error) {
	x, t, err := l.extractTarget(&args[0])
	if err != nil {
		return nil, err
	}
	if len(args) == 1 {
		if t.Varbit >= 0 {
			return nil, malformed("header of variable length extracted without a length")
		}
		return x, nil
	}
	if t.Varbit < 0 {
		return nil, malformed("header of fixed length extracted with a length")
	}
	x.VarbitBits, err = l.data(&args[1])
	return x, err
}

func (l *loader) extractTarget(raw *rawValue) (Extract, *HeaderType, error) {
	switch raw.Type {
	case "regular":
		var name string
		if err := unmarshal(raw.Value, &name); err != nil {
			return Extract{}, nil, err
		}
		h, err := find(l.headers, "header", name)
		if err != nil {
			return Extract{}, nil, err
		}
		if h.Metadata {
			return Extract{}, nil, malformed("extraction to metadata %q", name)
		}
		return Extract{Header: h}, h.Type, nil
	case "stack":
		var name string
		if err := unmarshal(raw.Value, &name); err != nil {
			return Extract{}, nil, err
		}
		s, err := find(l.stacks, "stack", name)
		if err != nil {
			return Extract{}, nil, err
		}
		return Extract{Next: StackValue{s}}, s.Type, nil
	case "union_stack":
		return l.extractToUnion(raw.Value)
	}
	return Extract{}, nil, unsupported("extraction to %q", raw.Type)
}

func (l *loader) extractToUnion(raw json.RawMessage) (Extract, *HeaderType, error) {
	var v []string
	if err := unmarshal(raw, &v); err != nil {
		return Extract{}, nil, err
	}
	if len(v) != 2 {
		return Extract{}, nil, malformed("union stack reference with %d elements", len(v))
	}
	s, err := find(l.unionStacks, "union stack", v[0])
	if err != nil {
		return Extract{}, nil, err
	}
	m, ok := s.Type.member(v[1])
	if !ok {
		return Extract{}, nil, malformed("no member %q in union type %q", v[1], s.Type.Name)
	}
	return Extract{Next: UnionStackValue{s}, Member: m}, s.Type.Members[m].Type, nil
}

// loadShift loads shift, advance's old form, which counts bytes.
func loadShift(raw json.RawMessage) (Stmt, error) {
	var n int32
	if err := unmarshal(raw, &n); err != nil {
		return nil, err
	}
	if n < 0 {
		return nil, malformed("shift by %d", n)
	}
	return Advance{Const{big.NewInt(int64(n) * 8)}}, nil
}
