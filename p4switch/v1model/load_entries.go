package v1model

import (
	"bytes"
	"encoding/json"
)

func (l *loader) entries(t *Table, raw *rawTable) error {
	if len(raw.Entries) > 0 && t.Profile != nil {
		return unsupported("entries of a table with an action profile")
	}
	for i := range raw.Entries {
		e, err := l.entry(t, &raw.Entries[i])
		if err != nil {
			return at(err, "entry %d", i)
		}
		t.Entries = append(t.Entries, e)
	}
	return nil
}

func (l *loader) entry(t *Table, raw *rawEntry) (Entry, error) {
	e := Entry{Priority: raw.Priority}
	if len(raw.Match) != len(t.Key) {
		return e, malformed("%d match fields for a key of %d", len(raw.Match), len(t.Key))
	}
	for i, r := range raw.Match {
		k := &t.Key[i]
		if matchKinds[r.Kind] != k.Kind {
			return e, malformed("match kind %q for %q", r.Kind, k.Name)
		}
		n := k.Field.Bytes()
		var m Match
		var err error
		if k.Kind == MatchRange {
			if m.Value, err = parseBytes(r.Start, n); err == nil {
				m.High, err = parseBytes(r.End, n)
			}
		} else {
			var s string
			if err = json.Unmarshal(r.Key, &s); err == nil {
				m.Value, err = parseBytes(s, n)
			}
		}
		if err == nil && k.Kind == MatchTernary {
			m.Mask, err = parseBytes(r.Mask, n)
		}
		m.PrefixLen = r.PrefixLen
		if err == nil {
			err = checkMatch(k, &m)
		}
		if err == nil {
			m.canonical(k)
		}
		if err != nil {
			return e, at(err, "key %q", k.Name)
		}
		e.Match = append(e.Match, m)
	}
	var err error
	e.Call, err = l.actionCall(raw.Action.ID, raw.Action.Data)
	if err == nil && !hasAction(t, e.Call.Action) {
		err = malformed("action %q is not among the table's", e.Call.Action.Name)
	}
	return e, err
}

// canonical clears the bits of a value that do not count, as a program may leave
// them (0x1234 &&& 0xff00): keys are compared without them, and P4Runtime reads them
// as zero.
func (m *Match) canonical(k *Key) {
	switch k.Kind {
	case MatchTernary:
		for i := range m.Value {
			m.Value[i] &= m.Mask[i]
		}
	case MatchLPM:
		keep := m.PrefixLen + 8*len(m.Value) - k.Field.Width() // of the bits of Value
		for i := range m.Value {
			if n := keep - 8*i; n < 8 {
				m.Value[i] &^= byte(0xff >> max(n, 0))
			}
		}
	default: // exact, or a range: as it is
	}
}

func checkMatch(k *Key, m *Match) error {
	switch k.Kind {
	case MatchLPM:
		if m.PrefixLen < 0 || m.PrefixLen > k.Field.Width() {
			return malformed("prefix length %d", m.PrefixLen)
		}
	case MatchRange:
		if bytes.Compare(m.Value, m.High) > 0 {
			return malformed("empty range")
		}
	default: // any value and mask will do
	}
	return nil
}
