package p4rtclient

import (
	"fmt"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
)

// decode returns a table entry by names, its fields and parameters in the order
// of their declarations, whatever order and form the switch has chosen.
func (p *Program) decode(e *p4v1.TableEntry) (Entry, error) {
	t := p.tablesByID[e.GetTableId()]
	if t == nil {
		return Entry{}, fmt.Errorf("the switch has an entry of table %#x, which the program does not have", e.GetTableId())
	}
	out := Entry{Table: t.name}
	for _, f := range t.fields {
		m, err := f.decodeMatch(e.GetMatch())
		if err == nil {
			_, err = f.fit(m)
		}
		if err != nil {
			return Entry{}, fmt.Errorf("entry of table %s, field %s: %w", t.name, f.name, err)
		}
		out.Match = append(out.Match, m)
	}
	given := e.GetAction().GetAction()
	a := t.byID[given.GetActionId()]
	if a == nil {
		return Entry{}, fmt.Errorf("entry of table %s: action %#x is none of the table's", t.name, given.GetActionId())
	}
	out.Action = a.name
	for _, f := range a.params {
		v := Value("\x00")
		for _, g := range given.GetParams() {
			if g.GetParamId() == f.id {
				v = Bytes(g.GetValue())
			}
		}
		out.Params = append(out.Params, Param{f.name, v})
	}
	return out, nil
}

// Normal checks an entry against the program and returns it in the form in which
// Read does: fields and parameters in the order of their declarations, all there.
func (p *Program) Normal(e Entry) (Entry, error) {
	var wire p4v1.TableEntry
	if err := p.encode(&wire, &e, true); err != nil {
		return Entry{}, err
	}
	return p.decode(&wire)
}

func (f field) decodeMatch(ms []*p4v1.FieldMatch) (Match, error) {
	for _, m := range ms {
		if m.GetFieldId() != f.id {
			continue
		}
		v, prefix := m.GetFieldMatchType().(*p4v1.FieldMatch_Lpm)
		switch {
		case m.GetExact() != nil && !f.lpm:
			return Match{Field: f.name, Value: Bytes(m.GetExact().GetValue())}, nil
		case prefix && f.lpm:
			return Match{Field: f.name, Value: Bytes(v.Lpm.GetValue()), PrefixLen: int(v.Lpm.GetPrefixLen())}, nil
		}
		return Match{}, fmt.Errorf("match %T", m.GetFieldMatchType())
	}
	return Match{Field: f.name, Value: "\x00"}, nil
}

// decodeMetadata returns packet metadata in the order of declaration.
func decodeMetadata(fields []field, ms []*p4v1.PacketMetadata) ([]uint64, error) {
	out := make([]uint64, len(fields))
	for i, f := range fields {
		for _, m := range ms {
			if m.GetMetadataId() != f.id {
				continue
			}
			v, ok := Bytes(m.GetValue()).Uint64()
			if !ok {
				return nil, fmt.Errorf("packet_in.%s has %d bytes", f.name, len(m.GetValue()))
			}
			out[i] = v
		}
	}
	return out, nil
}

// encodeMetadata is the reverse for PacketOut.
func encodeMetadata(fields []field, values []uint64) ([]*p4v1.PacketMetadata, error) {
	if len(values) != len(fields) {
		return nil, fmt.Errorf("packet_out has %d fields, not %d", len(fields), len(values))
	}
	out := make([]*p4v1.PacketMetadata, len(fields))
	for i, f := range fields {
		v, err := Uint(values[i]).fit(f.width)
		if err != nil {
			return nil, fmt.Errorf("packet_out.%s: %w", f.name, err)
		}
		out[i] = &p4v1.PacketMetadata{MetadataId: f.id, Value: []byte(v)}
	}
	return out, nil
}
