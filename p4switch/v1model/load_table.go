package v1model

import "encoding/json"

func (l *loader) profile(raw *rawProfile) error {
	p := &ActionProfile{Name: raw.Name, Index: len(l.prog.Profiles), MaxSize: raw.MaxSize}
	if raw.Selector != nil {
		c, err := l.calculation(raw.Selector.Algo, raw.Selector.Input)
		if err != nil {
			return at(err, "selector")
		}
		p.Selector = c
	}
	if l.profiles[p.Name] != nil {
		return nil // shared by both pipelines
	}
	l.prog.Profiles = append(l.prog.Profiles, p)
	return add(&l.profiles, "action profile", p.Name, p)
}

var matchKinds = map[string]MatchKind{
	"exact": MatchExact, "lpm": MatchLPM, "ternary": MatchTernary, "range": MatchRange,
}

func (l *loader) table(raw *rawTable) (*Table, error) {
	t := &Table{
		Name: raw.Name, Kind: matchKinds[raw.MatchType], MaxSize: raw.MaxSize,
		Counters: raw.Counters, Timeout: raw.Timeout, Const: raw.Entries != nil,
	}
	if t.Kind == 0 {
		return nil, unsupported("match type %q", raw.MatchType)
	}
	if raw.MaxSize < 0 {
		return nil, malformed("size %d", raw.MaxSize)
	}
	if err := l.tableActions(t, raw); err != nil {
		return nil, err
	}
	for i := range raw.Key {
		k, err := l.key(&raw.Key[i])
		if err != nil {
			return nil, at(err, "key %d", i)
		}
		t.Key = append(t.Key, k)
	}
	if err := checkKinds(t); err != nil {
		return nil, err
	}
	if raw.Meter != nil {
		m, err := find(l.meters, "meter", *raw.Meter)
		if err == nil && !m.Direct {
			err = malformed("meter %q is not direct", *raw.Meter)
		}
		if err != nil {
			return nil, err
		}
		t.Meter = m
	}
	if err := l.defaultEntry(t, raw); err != nil {
		return nil, at(err, "default entry")
	}
	return t, l.entries(t, raw)
}

func (l *loader) tableActions(t *Table, raw *rawTable) error {
	for _, id := range raw.Actions {
		a, err := find(l.actions, "action with the id", id)
		if err != nil {
			return err
		}
		t.Actions = append(t.Actions, a)
	}
	switch raw.Type {
	case "simple":
	case "indirect", "indirect_ws":
		if raw.Profile == "" {
			return unsupported("action profile without a name, as compilers wrote it before 2017: compile the program anew with p4c")
		}
		p, err := find(l.profiles, "action profile", raw.Profile)
		if err != nil {
			return err
		}
		if raw.Type == "indirect_ws" && p.Selector == nil {
			return malformed("action profile %q has no selector", p.Name)
		}
		p.Tables = append(p.Tables, t)
		t.Profile = p
	default:
		return unsupported("table of type %q", raw.Type)
	}
	return nil
}

func (l *loader) key(raw *rawKey) (Key, error) {
	k := Key{Name: raw.Name, Kind: matchKinds[raw.Kind]}
	if k.Kind == 0 {
		return k, unsupported("match kind %q", raw.Kind)
	}
	pair := make([]string, len(raw.Target))
	for i, part := range raw.Target {
		if err := json.Unmarshal(part, &pair[i]); err != nil {
			return k, unsupported("computed key %s", part)
		}
	}
	var err error
	if k.Field, err = l.numberField(pair); err != nil {
		return k, err
	}
	if k.Name == "" {
		k.Name = k.Field.String()
	}
	if raw.Mask != nil {
		k.Mask, err = parseBytes(*raw.Mask, k.Field.Bytes())
	}
	return k, err
}

// checkKinds makes sure that the table's kind can decide for its key's kinds.
func checkKinds(t *Table) error {
	lpm := 0
	for _, k := range t.Key {
		if k.Kind == MatchLPM {
			lpm++
		}
		if k.Kind > t.Kind {
			return malformed("%q is matched otherwise than its table", k.Name)
		}
	}
	if lpm > 1 && t.Kind == MatchLPM {
		return unsupported("two LPM fields in one table")
	}
	return nil
}

func (l *loader) defaultEntry(t *Table, raw *rawTable) error {
	d := raw.Default
	if d == nil {
		return nil
	}
	c, err := l.actionCall(d.Action, d.Data)
	if err != nil {
		return err
	}
	t.Default = &c
	t.ConstAction, t.ConstEntry = d.Const, d.EntryConst
	if !hasAction(t, c.Action) {
		return malformed("action %q is not among the table's", c.Action.Name)
	}
	return nil
}

func hasAction(t *Table, a *Action) bool {
	for _, have := range t.Actions {
		if have == a {
			return true
		}
	}
	return false
}
