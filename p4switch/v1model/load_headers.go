package v1model

import "encoding/json"

func (l *loader) loadHeaderTypes() error {
	for i := range l.raw.HeaderTypes {
		raw := &l.raw.HeaderTypes[i]
		t, err := loadHeaderType(raw)
		if err != nil {
			return at(err, "header type %q", raw.Name)
		}
		if err := add(&l.types, "header type", t.Name, t); err != nil {
			return err
		}
		l.prog.HeaderTypes = append(l.prog.HeaderTypes, t)
	}
	return nil
}

func loadHeaderType(raw *rawHeaderType) (*HeaderType, error) {
	t := &HeaderType{Name: raw.Name, Varbit: -1}
	if !isNull(raw.LengthExp) {
		return nil, unsupported("length_exp of a header type (P4_14's variable-length header)")
	}
	for i, parts := range raw.Fields {
		f, err := loadField(parts)
		if err != nil {
			return nil, at(err, "field %d", i)
		}
		if f.Varbit {
			if t.Varbit >= 0 {
				return nil, unsupported("two variable-length fields in one header")
			}
			t.Varbit = i
		}
		f.Offset = t.Bits
		t.Bits += f.Width
		t.Fields = append(t.Fields, f)
		if err := add(&t.index, "field", f.Name, i); err != nil {
			return nil, err
		}
	}
	if t.Bits%8 != 0 {
		return nil, malformed("%d bits are not whole bytes", t.Bits)
	}
	if t.Bits > MaxFieldBits || raw.MaxLength < 0 || raw.MaxLength > MaxFieldBits/8 {
		return nil, unsupported("header of more than %d bits", MaxFieldBits)
	}
	if t.Varbit >= 0 {
		room := raw.MaxLength*8 - t.Bits
		if room < 0 {
			return nil, malformed("max_length %d is less than the fixed fields", raw.MaxLength)
		}
		t.Fields[t.Varbit].MaxWidth = room
	}
	return t, nil
}

// loadField reads [name, width or "*", signed?, saturating?].
func loadField(parts []json.RawMessage) (Field, error) {
	var f Field
	if len(parts) < 2 || len(parts) > 4 {
		return f, malformed("%d elements", len(parts))
	}
	if err := json.Unmarshal(parts[0], &f.Name); err != nil {
		return f, malformed("name: %v", err)
	}
	var star string
	if json.Unmarshal(parts[1], &star) == nil && star == "*" {
		f.Varbit = true
	} else if err := json.Unmarshal(parts[1], &f.Width); err != nil {
		return f, malformed("width: %v", err)
	} else if f.Width < 1 {
		return f, malformed("width %d", f.Width)
	} else if f.Width > MaxFieldBits {
		return f, unsupported("field of %d bits", f.Width)
	}
	if len(parts) > 2 {
		// p4c writes false for most, 0 for a boolean of a struct.
		f.Signed = string(parts[2]) == "true"
	}
	if len(parts) > 3 && string(parts[3]) == "true" {
		return f, unsupported("saturating field %q", f.Name)
	}
	return f, nil
}

func (l *loader) loadHeaders() error {
	if len(l.raw.Headers) > MaxHeaders {
		return unsupported("%d headers", len(l.raw.Headers))
	}
	for i, raw := range l.raw.Headers {
		if raw.ID != i {
			return malformed("header %q has the id %d, not %d", raw.Name, raw.ID, i)
		}
		t, err := find(l.types, "header type", raw.Type)
		if err != nil {
			return at(err, "header %q", raw.Name)
		}
		h := &Header{Name: raw.Name, Index: i, Type: t, Metadata: raw.Metadata, used: make([]bool, len(t.Fields))}
		if err := add(&l.headers, "header", h.Name, h); err != nil {
			return err
		}
		l.prog.Headers = append(l.prog.Headers, h)
	}
	return nil
}

func (l *loader) loadStacks() error {
	for i, raw := range l.raw.Stacks {
		s := &Stack{Name: raw.Name, Index: i, Type: l.types[raw.Type]}
		if s.Type == nil {
			return at(malformed("no header type %q", raw.Type), "stack %q", raw.Name)
		}
		var err error
		if s.Headers, err = l.headersByID(raw.Headers); err != nil {
			return at(err, "stack %q", raw.Name)
		}
		for _, h := range s.Headers {
			if h.Type != s.Type {
				return at(malformed("element %q is a %q", h.Name, h.Type.Name), "stack %q", raw.Name)
			}
		}
		if err := add(&l.stacks, "stack", s.Name, s); err != nil {
			return err
		}
		l.prog.Stacks = append(l.prog.Stacks, s)
	}
	return nil
}

// headersByID resolves the ids of a stack's or union's headers.
func (l *loader) headersByID(ids []int) ([]*Header, error) {
	if len(ids) == 0 {
		return nil, malformed("no headers")
	}
	hs := make([]*Header, len(ids))
	for i, id := range ids {
		if id < 0 || id >= len(l.prog.Headers) {
			return nil, malformed("no header with the id %d", id)
		}
		hs[i] = l.prog.Headers[id]
		if hs[i].Metadata {
			return nil, malformed("metadata %q as an element", hs[i].Name)
		}
	}
	return hs, nil
}
