package v1model

// arg is the next argument, of the kind wanted, or nil after an error.
func (c *call) arg(want Kind) Expr {
	raw := c.raw.Params[c.next]
	c.next++
	if c.err != nil {
		return nil
	}
	e, err := c.kind(&raw, want, 0)
	if err != nil {
		c.err = at(err, "parameter %d", c.next)
		return nil
	}
	return e
}

func (c *call) number() Expr  { return c.arg(KindData) }
func (c *call) boolean() Expr { return c.arg(KindBool) }

func (c *call) fail(err error) { c.err = at(err, "parameter %d", c.next) }

// lvalue is a field that a number can be written to.
func (c *call) lvalue() Expr {
	e := c.arg(0)
	if c.err != nil {
		return nil
	}
	// p4c also reads a boolean destination as a boolean.
	if u, ok := e.(Unary); ok && (u.Op == OpToBool || u.Op == OpToData) {
		e = u.X
		if u, ok := e.(Unary); ok && u.Op == OpToBool {
			e = u.X
		}
	}
	var f Field
	switch e := e.(type) {
	case FieldValue:
		f = e.Ref.Def()
	case FieldOf:
		f = e.Type.field(e.Field)
	default:
		c.fail(malformed("a %v that cannot be written", KindOf(e)))
		return nil
	}
	switch {
	case f.Varbit:
		c.fail(malformed("variable-length field where a number belongs"))
	case f.Name == "$valid$":
		c.fail(malformed("assignment to a header's validity"))
	}
	return e
}

// varbit is a variable-length field.
func (c *call) varbit() Expr {
	e := c.arg(0)
	if c.err != nil {
		return nil
	}
	switch e := e.(type) {
	case FieldValue:
		if e.Ref.Def().Varbit {
			return e
		}
	case FieldOf:
		if e.Type.field(e.Field).Varbit {
			return e
		}
	}
	c.fail(malformed("not a variable-length field"))
	return nil
}

// header is the header that becomes valid or invalid, which does not use its fields.
func (c *call) header() Expr {
	c.unused = true
	e := c.arg(KindHeader)
	c.unused = false
	if h, ok := e.(HeaderValue); ok && h.Header.Metadata {
		c.fail(malformed("validity of metadata %q", h.Header.Name))
	}
	return e
}

func (c *call) stack() Expr {
	e := c.arg(0)
	if c.err == nil && KindOf(e) != KindStack && KindOf(e) != KindUnionStack {
		c.fail(malformed("a %v instead of a stack", KindOf(e)))
	}
	return e
}

// constant is a small number known now.
func (c *call) constant() int {
	e := c.number()
	if c.err != nil {
		return 0
	}
	k, ok := e.(Const)
	if !ok || k.Value.Sign() < 0 || k.Value.BitLen() > 31 {
		c.fail(unsupported("argument that is not a small constant"))
		return 0
	}
	return int(k.Value.Int64())
}

// dropPacket finds the fields of standard metadata that drop sets.
func (c *call) dropPacket() Stmt {
	spec, ok := c.standardField("standard_metadata", "egress_spec")
	if !ok {
		c.err = unsupported("program without the field standard_metadata.egress_spec: not v1model")
		return nil
	}
	group, _ := c.standardField("intrinsic_metadata", "mcast_grp")
	return Drop{spec, group}
}

// drop finds the fields that mark_to_drop sets. Its argument is standard
// metadata or, if an action takes that as a parameter, a copy of it.
func (c *call) drop() Stmt {
	name := c.named("header")
	if c.err != nil {
		return nil
	}
	h, err := find(c.headers, "header", name)
	if err != nil {
		c.fail(err)
		return nil
	}
	spec, ok := h.Type.Field("egress_spec")
	if !ok || h.Type.Fields[spec].Width > 64 || h.Type.Fields[spec].Varbit {
		c.fail(malformed("%q instead of standard metadata", name))
		return nil
	}
	d := Drop{Spec: FieldRef{h, spec}}
	if group, ok := h.Type.Field("mcast_grp"); ok {
		d.Group = FieldRef{h, group}
	}
	return d
}
