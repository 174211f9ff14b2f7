package v1model

func (l *loader) loadUnions() error {
	for _, raw := range l.raw.UnionTypes {
		t := &UnionType{Name: raw.Name}
		for _, m := range raw.Headers {
			if len(m) != 2 {
				return at(malformed("member with %d elements", len(m)), "union type %q", raw.Name)
			}
			ht, err := find(l.types, "header type", m[1])
			if err != nil {
				return at(err, "union type %q", raw.Name)
			}
			t.Members = append(t.Members, UnionMember{m[0], ht})
		}
		// p4c repeats a type for each stack of it.
		if l.unionTypes[t.Name] == nil {
			_ = add(&l.unionTypes, "union type", t.Name, t)
			l.prog.UnionTypes = append(l.prog.UnionTypes, t)
		}
	}
	for i, raw := range l.raw.Unions {
		if raw.ID != i {
			return malformed("union %q has the id %d, not %d", raw.Name, raw.ID, i)
		}
		u, err := l.loadUnion(&raw)
		if err != nil {
			return at(err, "union %q", raw.Name)
		}
		u.Index = i
		if err := add(&l.unions, "union", u.Name, u); err != nil {
			return err
		}
		l.prog.Unions = append(l.prog.Unions, u)
	}
	return nil
}

func (l *loader) loadUnion(raw *rawUnion) (*Union, error) {
	t, err := find(l.unionTypes, "union type", raw.Type)
	if err != nil {
		return nil, err
	}
	u := &Union{Name: raw.Name, Type: t}
	if u.Headers, err = l.headersByID(raw.Headers); err != nil {
		return nil, err
	}
	if len(u.Headers) != len(t.Members) {
		return nil, malformed("%d headers for %d members", len(u.Headers), len(t.Members))
	}
	for i, h := range u.Headers {
		if h.Type != t.Members[i].Type {
			return nil, malformed("member %q is a %q", h.Name, h.Type.Name)
		}
		if h.Union != nil {
			return nil, malformed("header %q is in two unions", h.Name)
		}
		h.Union = u
	}
	return u, nil
}

func (l *loader) loadUnionStacks() error {
	for i, raw := range l.raw.UnionStacks {
		t, err := find(l.unionTypes, "union type", raw.Type)
		if err != nil {
			return at(err, "union stack %q", raw.Name)
		}
		s := &UnionStack{Name: raw.Name, Index: i, Type: t}
		if len(raw.Unions) == 0 {
			return at(malformed("no unions"), "union stack %q", raw.Name)
		}
		for _, id := range raw.Unions {
			if id < 0 || id >= len(l.prog.Unions) || l.prog.Unions[id].Type != t {
				return at(malformed("no %q union with the id %d", t.Name, id), "union stack %q", raw.Name)
			}
			s.Unions = append(s.Unions, l.prog.Unions[id])
		}
		if err := add(&l.unionStacks, "union stack", s.Name, s); err != nil {
			return err
		}
		l.prog.UnionStacks = append(l.prog.UnionStacks, s)
	}
	return nil
}
