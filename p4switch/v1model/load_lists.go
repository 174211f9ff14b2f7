package v1model

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
