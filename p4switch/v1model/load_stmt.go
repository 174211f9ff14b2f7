package v1model

import (
	"slices"
	"strings"
)

// call is a primitive call being loaded: it hands out its arguments in order
// and remembers the first error.
type call struct {
	*loader
	raw  *rawPrimitive
	next int
	err  error
}

// primitives maps each primitive's name to the number of its parameters and
// what makes a statement of a call.
var primitives = map[string]struct {
	params int
	load   func(*call) Stmt
}{
	"assign":              {2, func(c *call) Stmt { return Assign{c.lvalue(), c.number()} }},
	"set":                 {2, func(c *call) Stmt { return Assign{c.lvalue(), c.number()} }},
	"assign_VL":           {2, func(c *call) Stmt { return AssignVarbit{c.varbit(), c.varbit()} }},
	"assign_header":       {2, loadCopy(KindHeader)},
	"assign_union":        {2, loadCopy(KindUnion)},
	"assign_header_stack": {2, loadCopy(KindStack)},
	"assign_union_stack":  {2, loadCopy(KindUnionStack)},
	"add_header":          {1, func(c *call) Stmt { return SetValid{c.header(), true} }},
	"remove_header":       {1, func(c *call) Stmt { return SetValid{c.header(), false} }},
	"push":                {2, func(c *call) Stmt { return Push{c.stack(), c.number()} }},
	"pop":                 {2, func(c *call) Stmt { return Pop{c.stack(), c.number()} }},

	"count":                               {2, func(c *call) Stmt { return CountPacket{c.counter(), c.number()} }},
	"execute_meter":                       {3, func(c *call) Stmt { return ExecuteMeter{c.meter(), c.number(), c.lvalue()} }},
	"register_read":                       {3, loadReadRegister},
	"register_write":                      {3, func(c *call) Stmt { return WriteRegister{c.register(), c.number(), c.number()} }},
	"modify_field_with_hash_based_offset": {4, loadHash},
	"modify_field_rng_uniform":            {3, func(c *call) Stmt { return Random{c.lvalue(), c.number(), c.number()} }},

	"mark_to_drop":                {1, func(c *call) Stmt { return c.drop() }},
	"generate_digest":             {2, loadSendDigest},
	"clone_ingress_pkt_to_egress": {2, func(c *call) Stmt { return Clone{c.number(), c.fieldList()} }},
	"clone_egress_pkt_to_egress":  {2, func(c *call) Stmt { return Clone{c.number(), c.fieldList()} }},
	"resubmit":                    {1, func(c *call) Stmt { return Resubmit{c.fieldList()} }},
	"recirculate":                 {1, func(c *call) Stmt { return Recirculate{c.fieldList()} }},
	"truncate":                    {1, func(c *call) Stmt { return Truncate{c.number()} }},
	"exit":                        {0, func(c *call) Stmt { return Exit{} }},

	// P4_14 had these, and bmv2 takes them still: compilers wrote them until 2018.
	"drop":                {0, func(c *call) Stmt { return c.dropPacket() }},
	"modify_field":        {2, func(c *call) Stmt { return Assign{c.lvalue(), c.number()} }},
	"add_to_field":        {2, loadChange(OpAdd)},
	"subtract_from_field": {2, loadChange(OpSub)},
	"add":                 {3, loadOperation(OpAdd)},
	"subtract":            {3, loadOperation(OpSub)},
	"bit_xor":             {3, loadOperation(OpXor)},
	"bit_or":              {3, loadOperation(OpOr)},
	"bit_and":             {3, loadOperation(OpAnd)},
	"shift_left":          {3, loadOperation(OpShl)},
	"shift_right":         {3, loadOperation(OpShr)},
	"copy_header":         {2, loadCopy(KindHeader)},

	"_jump":         {1, func(c *call) Stmt { return Jump{c.constant()} }},
	"_jump_if_zero": {2, func(c *call) Stmt { return JumpIfZero{c.number(), c.constant()} }},
	"assert":        {1, func(c *call) Stmt { return Assert{c.boolean(), c.raw.Source.Fragment} }},
	"assume":        {1, func(c *call) Stmt { return Assert{c.boolean(), c.raw.Source.Fragment} }},
	"log_msg":       {2, loadLog},
}

// body loads the statements of an action or, without jumps, of a deparser.
func (l *loader) body(raw []rawPrimitive, jumps bool) ([]Stmt, error) {
	raw = withoutNoOps(raw)
	body := make([]Stmt, 0, len(raw))
	for i := range raw {
		s, err := l.stmt(&raw[i])
		if err == nil {
			err = checkJump(s, i, len(raw), jumps)
		}
		if err != nil {
			return nil, at(err, "statement %d (%s)", i, raw[i].Op)
		}
		body = append(body, s)
	}
	return body, nil
}

// withoutNoOps leaves out what does nothing in P4_14, which has no jumps.
func withoutNoOps(raw []rawPrimitive) []rawPrimitive {
	noOp := func(p rawPrimitive) bool { return p.Op == "no_op" }
	if !slices.ContainsFunc(raw, noOp) || slices.ContainsFunc(raw, func(p rawPrimitive) bool { return strings.HasPrefix(p.Op, "_jump") }) {
		return raw
	}
	return slices.DeleteFunc(slices.Clone(raw), noOp)
}

// loadChange makes a statement that applies op to a field and a number.
func loadChange(op Op) func(*call) Stmt {
	return func(c *call) Stmt {
		field := c.lvalue()
		return Assign{field, Binary{op, field, c.number()}}
	}
}

// loadOperation makes a statement that applies op to two numbers.
func loadOperation(op Op) func(*call) Stmt {
	return func(c *call) Stmt { return Assign{c.lvalue(), Binary{op, c.number(), c.number()}} }
}

// checkJump refuses jumps out of the body.
func checkJump(s Stmt, from, size int, allowed bool) error {
	target, ok := JumpTarget(s)
	switch {
	case !ok:
		return nil
	case !allowed:
		return unsupported("jump")
	case target < 0 || target > size:
		return malformed("jump from statement %d to %d of %d", from, target, size)
	}
	return nil
}

func (l *loader) stmt(raw *rawPrimitive) (Stmt, error) {
	p, ok := primitives[raw.Op]
	if !ok {
		return nil, unsupported("primitive %q", raw.Op)
	}
	if len(raw.Params) != p.params {
		return nil, malformed("%d parameters instead of %d", len(raw.Params), p.params)
	}
	c := &call{loader: l, raw: raw}
	s := p.load(c)
	return s, c.err
}

func loadCopy(want Kind) func(*call) Stmt {
	return func(c *call) Stmt {
		dst, src := c.arg(want), c.arg(want)
		if c.err == nil && !sameLayout(dst, src) {
			c.err = malformed("copy between different types")
		}
		return Copy{dst, src}
	}
}

// sameLayout tells whether one can be copied to the other.
func sameLayout(a, b Expr) bool {
	if sa, ok := a.(StackValue); ok {
		sb, ok := b.(StackValue)
		return ok && sa.Stack.Type == sb.Stack.Type && len(sa.Stack.Headers) == len(sb.Stack.Headers)
	}
	if sa, ok := a.(UnionStackValue); ok {
		sb, ok := b.(UnionStackValue)
		return ok && sa.Stack.Type == sb.Stack.Type && len(sa.Stack.Unions) == len(sb.Stack.Unions)
	}
	if KindOf(a) == KindUnion {
		return unionTypeOf(a) == unionTypeOf(b)
	}
	return typeOf(a) == typeOf(b)
}

func loadReadRegister(c *call) Stmt {
	dst := c.lvalue()
	return ReadRegister{c.register(), c.number(), dst}
}

func loadHash(c *call) Stmt {
	dst, base := c.lvalue(), c.number()
	return Hash{c.calculation(), dst, base, c.number()}
}

func loadSendDigest(c *call) Stmt {
	c.number() // the receiver, which v1model ignores
	id := c.constant()
	if c.err != nil {
		return nil
	}
	d, err := find(c.digests, "learn list", id)
	c.err = err
	return SendDigest{d}
}
