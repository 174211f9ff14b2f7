package v1model

import "encoding/json"

// parserOp loads one operation of a state.
func (l *loader) parserOp(op string, params []json.RawMessage) (Stmt, error) {
	want := map[string]int{"extract": 1, "extract_VL": 2, "set": 2, "verify": 2, "advance": 1, "shift": 1, "primitive": 1}
	n, ok := want[op]
	if !ok {
		return nil, unsupported("parser operation %q", op)
	}
	if len(params) != n {
		return nil, malformed("%d parameters instead of %d", len(params), n)
	}
	switch op {
	case "primitive":
		var p rawPrimitive
		if err := unmarshal(params[0], &p); err != nil {
			return nil, err
		}
		s, err := l.stmt(&p)
		if err != nil {
			return nil, at(err, "%s", p.Op)
		}
		return s, parserStmt(s)
	case "shift":
		return loadShift(params[0])
	}
	args := make([]rawValue, n)
	for i := range params {
		if err := unmarshal(params[i], &args[i]); err != nil {
			return nil, err
		}
	}
	switch op {
	case "set":
		return l.stmt(&rawPrimitive{Op: "set", Params: args})
	case "verify":
		c, err := l.cond(&args[0])
		if err != nil {
			return nil, err
		}
		code, err := l.data(&args[1])
		return Verify{c, code}, err
	case "advance":
		bits, err := l.data(&args[0])
		return Advance{bits}, err
	}
	return l.extract(args)
}

// parserStmt refuses statements that make no sense in a parser.
func parserStmt(s Stmt) error {
	switch s.(type) {
	case Jump, JumpIfZero, Exit, Clone, Resubmit, Recirculate, SendDigest:
		return unsupported("%T in a parser", s)
	}
	return nil
}
