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
