package v1model

func (l *loader) loadParser() error {
	if len(l.raw.Parsers) != 1 {
		return unsupported("%d parsers", len(l.raw.Parsers))
	}
	raw := &l.raw.Parsers[0]
	p := &Parser{Name: raw.Name}
	states := map[string]*State{}
	for i := range raw.States {
		s := &State{Name: raw.States[i].Name, Index: i}
		if err := add(&states, "state", s.Name, s); err != nil {
			return at(err, "parser")
		}
		p.States = append(p.States, s)
	}
	for i, s := range p.States {
		if err := l.state(s, &raw.States[i], states); err != nil {
			return at(err, "parser state %q", s.Name)
		}
	}
	if raw.Init != nil && len(p.States) > 0 {
		var err error
		if p.Start, err = find(states, "state", *raw.Init); err != nil {
			return at(err, "parser")
		}
	}
	l.prog.Parser = p
	return nil
}

func (l *loader) state(s *State, raw *rawState, states map[string]*State) error {
	for i, op := range raw.Ops {
		st, err := l.parserOp(op.Op, op.Params)
		if err != nil {
			return at(err, "operation %d (%s)", i, op.Op)
		}
		s.Body = append(s.Body, st)
	}
	for i := range raw.Key {
		k, err := l.keyPart(&raw.Key[i])
		if err != nil {
			return at(err, "key %d", i)
		}
		s.Key = append(s.Key, k)
	}
	for i := range raw.Transitions {
		if err := l.transition(s, &raw.Transitions[i], states); err != nil {
			return at(err, "transition %d", i)
		}
	}
	return nil
}

// keyPart loads a part of a transition key: a number of known width.
func (l *loader) keyPart(raw *rawValue) (KeyPart, error) {
	e, err := l.expr(raw)
	if err != nil {
		return KeyPart{}, err
	}
	if u, ok := e.(Unary); ok && u.Op == OpToBool { // a boolean field
		e = u.X
	}
	var f Field
	switch e := e.(type) {
	case Lookahead:
		f.Width = e.Width
	case FieldValue:
		f = e.Ref.Def()
	case FieldOf:
		f = e.Type.field(e.Field)
	default:
		return KeyPart{}, unsupported("computed transition key")
	}
	if f.Varbit {
		return KeyPart{}, unsupported("variable-length field in a transition key")
	}
	return KeyPart{e, f.Width}, nil
}

func (l *loader) transition(s *State, raw *rawTransition, states map[string]*State) error {
	var next *State
	if raw.Next != nil {
		var err error
		if next, err = find(states, "state", *raw.Next); err != nil {
			return err
		}
	}
	if raw.Type == "default" || raw.Value != nil && *raw.Value == "default" {
		s.Default = next
		return nil
	}
	if len(s.Key) == 0 {
		return malformed("value without a key")
	}
	c, err := l.loadCase(s, raw)
	c.Next = next
	s.Cases = append(s.Cases, c)
	return err
}

func (l *loader) loadCase(s *State, raw *rawTransition) (c Case, err error) {
	if raw.Value == nil {
		return c, malformed("no value")
	}
	switch raw.Type {
	case "hexstr", "":
		if c.Values, err = split(*raw.Value, s.Key); err == nil && raw.Mask != nil {
			c.Masks, err = split(*raw.Mask, s.Key)
		}
	case "parse_vset":
		if raw.Mask != nil {
			return c, unsupported("mask on a value set")
		}
		if c.Set, err = find(l.sets, "value set", *raw.Value); err == nil {
			err = checkSet(c.Set, s.Key)
		}
	default:
		err = unsupported("transition of type %q", raw.Type)
	}
	return c, err
}

func checkSet(set *ValueSet, key []KeyPart) error {
	width := 0
	for _, k := range key {
		width += k.Width
	}
	if width != set.Width {
		return malformed("value set %q of %d bits for a key of %d", set.Name, set.Width, width)
	}
	return nil
}

// split takes a value apart that holds all parts of the key, each padded to
// bytes.
func split(value string, key []KeyPart) ([][]byte, error) {
	total := 0
	for _, k := range key {
		total += (k.Width + 7) / 8
	}
	all, err := parseBytes(value, total)
	if err != nil {
		return nil, err
	}
	parts := make([][]byte, len(key))
	for i, k := range key {
		n := (k.Width + 7) / 8
		parts[i], all = all[:n:n], all[n:]
	}
	return parts, nil
}
