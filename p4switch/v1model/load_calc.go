package v1model

func (l *loader) loadCalculations() error {
	for i, raw := range l.raw.Calculations {
		c, err := l.calculation(raw.Algo, raw.Input)
		if err != nil {
			return at(err, "calculation %q", raw.Name)
		}
		c.Name, c.Index = raw.Name, i
		if err := add(&l.calculations, "calculation", c.Name, c); err != nil {
			return err
		}
		l.prog.Calculations = append(l.prog.Calculations, c)
	}
	return nil
}

func (l *loader) calculation(algo string, raw []rawValue) (*Calculation, error) {
	c := &Calculation{Algorithm: algorithms[algo]}
	if c.Algorithm == 0 {
		return nil, unsupported("hash algorithm %q", algo)
	}
	for i := range raw {
		if raw[i].Type == "payload" {
			c.Payload = true
			continue
		}
		in, err := l.input(&raw[i])
		if err != nil {
			return nil, at(err, "input %d", i)
		}
		c.Input = append(c.Input, in)
	}
	return c, nil
}

// input loads a field, header or constant of a list.
func (l *loader) input(raw *rawValue) (Input, error) {
	if raw.Type == "hexstr" {
		return constInput(raw)
	}
	e, err := l.expr(raw)
	if err != nil {
		return Input{}, err
	}
	switch e := e.(type) {
	case HeaderValue:
		return Input{Header: e.Header}, nil
	case FieldValue:
		return Input{Field: e.Ref}, nil
	case Unary: // a boolean field
		if f, ok := e.X.(FieldValue); ok && e.Op == OpToBool {
			return Input{Field: f.Ref}, nil
		}
	}
	return Input{}, unsupported("computed value in a list")
}

func constInput(raw *rawValue) (Input, error) {
	var s string
	if err := unmarshal(raw.Value, &s); err != nil {
		return Input{}, err
	}
	v, err := parseHex(s)
	if err != nil {
		return Input{}, err
	}
	bits := raw.Bitwidth
	if bits == 0 { // p4c leaves it out in digests
		bits = max(v.BitLen(), 1)
	}
	if bits < 0 || bits > MaxFieldBits {
		return Input{}, malformed("constant of %d bits", bits)
	}
	return Input{Const: wrap(v, bits), Bits: bits}, nil
}

func (l *loader) loadChecksums() error {
	for i := range l.raw.Checksums {
		raw := &l.raw.Checksums[i]
		c, err := l.checksum(raw)
		if err != nil {
			return at(err, "checksum %q", raw.Name)
		}
		l.prog.Checksums = append(l.prog.Checksums, c)
	}
	return nil
}

func (l *loader) checksum(raw *rawChecksum) (*Checksum, error) {
	if raw.Type != "generic" {
		return nil, unsupported("checksum of type %q", raw.Type)
	}
	c := &Checksum{
		Name:   raw.Name,
		Verify: raw.Verify == nil || *raw.Verify,
		Update: raw.Update == nil || *raw.Update,
	}
	var err error
	if c.Target, err = l.numberField(raw.Target); err != nil {
		return nil, err
	}
	if c.Calculation, err = find(l.calculations, "calculation", raw.Calculation); err != nil {
		return nil, err
	}
	if !isNull(raw.Cond) {
		if c.Cond, err = l.operand(raw.Cond, KindBool, 0); err != nil {
			return nil, at(err, "condition")
		}
	}
	return c, nil
}
