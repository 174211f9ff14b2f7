package v1model

func (l *loader) loadCounters() error {
	for i, raw := range l.raw.Counters {
		c := &Counter{Name: raw.Name, Index: i, Size: raw.Size, Direct: raw.Direct}
		if err := checkSize(&raw); err != nil {
			return at(err, "counter %q", raw.Name)
		}
		if err := add(&l.counters, "counter", c.Name, c); err != nil {
			return err
		}
		l.prog.Counters = append(l.prog.Counters, c)
	}
	return nil
}

func checkSize(raw *rawArray) error {
	switch {
	case raw.Direct && raw.Size >= 0:
		return nil
	case raw.Size < 0:
		return malformed("size %d", raw.Size)
	case raw.Size > MaxCells:
		return unsupported("%d cells, more than %d", raw.Size, MaxCells)
	}
	return nil
}

func (l *loader) loadMeters() error {
	for i, raw := range l.raw.Meters {
		m := &Meter{Name: raw.Name, Index: i, Size: raw.Size, Bytes: raw.Type == "bytes", Direct: raw.Direct}
		err := checkSize(&raw)
		switch {
		case err != nil:
		case raw.Type != "bytes" && raw.Type != "packets":
			err = malformed("type %q", raw.Type)
		case raw.Rates != 2:
			err = unsupported("meter with %d rates", raw.Rates)
		case raw.Direct:
			m.Result, err = l.numberField(raw.Result)
		}
		if err != nil {
			return at(err, "meter %q", raw.Name)
		}
		if err := add(&l.meters, "meter", m.Name, m); err != nil {
			return err
		}
		l.prog.Meters = append(l.prog.Meters, m)
	}
	return nil
}

func (l *loader) loadRegisters() error {
	for i, raw := range l.raw.Registers {
		r := &Register{Name: raw.Name, Index: i, Size: raw.Size, Width: raw.Width}
		err := checkSize(&raw)
		switch {
		case err != nil:
		case raw.Width < 1 || raw.Width > MaxFieldBits:
			err = malformed("width %d", raw.Width)
		case raw.Size*raw.Width > MaxRegisterBits:
			err = unsupported("%d cells of %d bits", raw.Size, raw.Width)
		}
		if err != nil {
			return at(err, "register %q", raw.Name)
		}
		if err := add(&l.registers, "register", r.Name, r); err != nil {
			return err
		}
		l.prog.Registers = append(l.prog.Registers, r)
	}
	return nil
}

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

func (l *loader) loadDigests() error {
	for _, raw := range l.raw.LearnLists {
		d := &Digest{Name: raw.Name, ID: raw.ID}
		for i := range raw.Elements {
			in, err := l.input(&raw.Elements[i])
			if err == nil && (in.Header != nil || in.Field.Valid() && in.Field.Def().Varbit) {
				err = unsupported("element that is not a number")
			}
			if err != nil {
				return at(at(err, "element %d", i), "digest %q", raw.Name)
			}
			d.Elements = append(d.Elements, in)
		}
		if err := add(&l.digests, "learn list", d.ID, d); err != nil {
			return err
		}
		l.prog.Digests = append(l.prog.Digests, d)
	}
	return nil
}

func (l *loader) loadFieldLists() error {
	for _, raw := range l.raw.FieldLists {
		f := &FieldList{Name: raw.Name, ID: raw.ID}
		for i := range raw.Elements {
			in, err := l.input(&raw.Elements[i])
			if err == nil && !in.Field.Valid() {
				err = unsupported("element that is not a field")
			}
			if err != nil {
				return at(at(err, "element %d", i), "field list %q", raw.Name)
			}
			f.Fields = append(f.Fields, in.Field)
		}
		if err := add(&l.lists, "field list", f.ID, f); err != nil {
			return err
		}
		l.prog.FieldLists = append(l.prog.FieldLists, f)
	}
	return nil
}

func (l *loader) loadValueSets() error {
	for i, raw := range l.raw.ValueSets {
		s := &ValueSet{Name: raw.Name, Index: i, Width: raw.Width, Size: raw.Size}
		if raw.Width < 1 || raw.Width > MaxFieldBits {
			return at(malformed("width %d", raw.Width), "value set %q", raw.Name)
		}
		if err := add(&l.sets, "value set", s.Name, s); err != nil {
			return err
		}
		l.prog.ValueSets = append(l.prog.ValueSets, s)
	}
	return nil
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
