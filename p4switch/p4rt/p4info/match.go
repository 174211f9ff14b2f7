package p4info

import (
	"bytes"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// MatchKey checks the controller's match fields against the key that fields
// describes (section "Match Format") and gives the key in the data plane's
// words. It brings the messages' byte strings into canonical form.
func MatchKey(fields []Field, ms []*p4v1.FieldMatch) ([]datapath.Match, error) {
	key := make([]datapath.Match, len(fields))
	for i := range key {
		key[i].Wildcard = true
	}
	for _, m := range ms {
		i := fieldIndex(fields, m.GetFieldId())
		if i < 0 {
			return nil, status.Errorf(codes.InvalidArgument, "no match field has the id %d", m.GetFieldId())
		}
		if !key[i].Wildcard {
			return nil, status.Errorf(codes.InvalidArgument, "match field %q is given twice", fields[i].Name)
		}
		d, err := fields[i].match(m)
		if err != nil {
			return nil, within(err, "match field %q", fields[i].Name)
		}
		key[i] = d
	}
	for i, f := range fields {
		if f.Kind == Exact && key[i].Wildcard {
			return nil, status.Errorf(codes.InvalidArgument, "exact match field %q is missing", f.Name)
		}
	}
	return key, nil
}

func fieldIndex(fields []Field, id uint32) int {
	for i := range fields {
		if fields[i].ID == id {
			return i
		}
	}
	return -1
}

// match converts one field; the caller turns the error into INVALID_ARGUMENT.
func (f *Field) match(m *p4v1.FieldMatch) (datapath.Match, error) {
	switch v := m.GetFieldMatchType().(type) {
	case *p4v1.FieldMatch_Exact_:
		if f.Kind == Exact {
			return f.value(&v.Exact.Value)
		}
	case *p4v1.FieldMatch_Optional_:
		if f.Kind == Optional {
			return f.value(&v.Optional.Value)
		}
	case *p4v1.FieldMatch_Lpm:
		if f.Kind == LPM {
			return f.prefix(v.Lpm)
		}
	case *p4v1.FieldMatch_Ternary_:
		if f.Kind == Ternary {
			return f.ternary(v.Ternary)
		}
	case *p4v1.FieldMatch_Range_:
		if f.Kind == Range {
			return f.interval(v.Range)
		}
	}
	return datapath.Match{}, status.Errorf(codes.InvalidArgument, "match of the form %T does not fit the field's kind", m.GetFieldMatchType())
}

// number checks *b, brings it into canonical form and widens it.
func (f *Field) number(b *[]byte) ([]byte, error) {
	if f.Strings != nil {
		if f.Kind != Exact && f.Kind != Optional {
			return nil, status.Errorf(codes.InvalidArgument, "type %q is translated to strings, which have no masks, prefixes and ranges: make the key exact or optional", f.Strings.name)
		}
		return f.Strings.Bytes(*b)
	}
	if err := CheckWidth(*b, f.Width); err != nil {
		return nil, err
	}
	if c := Canonical(*b); len(c) < len(*b) { // others may be reading what is canonical
		*b = c
	}
	return Widen(*b, f.Width), nil
}

func (f *Field) value(b *[]byte) (datapath.Match, error) {
	v, err := f.number(b)
	return datapath.Match{Value: v}, err
}

func (f *Field) prefix(m *p4v1.FieldMatch_LPM) (datapath.Match, error) {
	v, err := f.number(&m.Value)
	if err != nil {
		return datapath.Match{}, err
	}
	n := int(m.GetPrefixLen())
	if n <= 0 || n > f.Width {
		return datapath.Match{}, status.Errorf(codes.InvalidArgument, "prefix length %d is not in 1..%d (leave the field out to match all)", n, f.Width)
	}
	if !trailingZeros(v, f.Width-n) {
		return datapath.Match{}, status.Errorf(codes.InvalidArgument, "value %#x has bits beyond its prefix length %d", v, n)
	}
	return datapath.Match{Value: v, PrefixLen: n}, nil
}

func (f *Field) ternary(m *p4v1.FieldMatch_Ternary) (datapath.Match, error) {
	v, err := f.number(&m.Value)
	if err != nil {
		return datapath.Match{}, err
	}
	mask, err := f.number(&m.Mask)
	if err != nil {
		return datapath.Match{}, err
	}
	if allZero(mask) {
		return datapath.Match{}, status.Error(codes.InvalidArgument, "mask is zero (leave the field out to match all)")
	}
	for i := range v {
		if v[i]&^mask[i] != 0 {
			return datapath.Match{}, status.Errorf(codes.InvalidArgument, "value %#x has bits outside its mask %#x", v, mask)
		}
	}
	return datapath.Match{Value: v, Mask: mask}, nil
}

func (f *Field) interval(m *p4v1.FieldMatch_Range) (datapath.Match, error) {
	low, err := f.number(&m.Low)
	if err != nil {
		return datapath.Match{}, err
	}
	high, err := f.number(&m.High)
	if err != nil {
		return datapath.Match{}, err
	}
	if bytes.Compare(low, high) > 0 {
		return datapath.Match{}, status.Errorf(codes.InvalidArgument, "range %#x..%#x is empty", low, high)
	}
	if allZero(low) && bytes.Equal(high, allOnes(f.Width)) {
		return datapath.Match{}, status.Error(codes.InvalidArgument, "range covers all values (leave the field out to match all)")
	}
	return datapath.Match{Value: low, High: high}, nil
}

// MatchFields is the inverse of MatchKey, for entries that the program brings
// along. Matches that cover everything are left out, as P4Runtime wants it.
func MatchFields(fields []Field, key []datapath.Match) []*p4v1.FieldMatch {
	var ms []*p4v1.FieldMatch
	for i := range min(len(fields), len(key)) {
		if m := fields[i].message(key[i]); m != nil {
			ms = append(ms, m)
		}
	}
	return ms
}

func (f *Field) message(k datapath.Match) *p4v1.FieldMatch {
	m := &p4v1.FieldMatch{FieldId: f.ID}
	v := Canonical(append([]byte{0}, k.Value...))
	if f.Strings != nil {
		v = f.Strings.Text(v)
	}
	switch f.Kind {
	case Exact:
		m.FieldMatchType = &p4v1.FieldMatch_Exact_{Exact: &p4v1.FieldMatch_Exact{Value: v}}
		return m
	case Optional: // programs declare it as ternary: all of the field or nothing
		k.Wildcard = k.Wildcard || k.Mask != nil && allZero(k.Mask)
		m.FieldMatchType = &p4v1.FieldMatch_Optional_{Optional: &p4v1.FieldMatch_Optional{Value: v}}
	case LPM:
		k.Wildcard = k.Wildcard || k.PrefixLen == 0
		m.FieldMatchType = &p4v1.FieldMatch_Lpm{Lpm: &p4v1.FieldMatch_LPM{Value: v, PrefixLen: int32(k.PrefixLen)}}
	case Ternary:
		k.Wildcard = k.Wildcard || allZero(k.Mask)
		m.FieldMatchType = &p4v1.FieldMatch_Ternary_{Ternary: &p4v1.FieldMatch_Ternary{Value: v, Mask: Canonical(append([]byte{0}, k.Mask...))}}
	case Range:
		k.Wildcard = k.Wildcard || allZero(k.Value) && bytes.Equal(k.High, allOnes(f.Width))
		m.FieldMatchType = &p4v1.FieldMatch_Range_{Range: &p4v1.FieldMatch_Range{Low: v, High: Canonical(append([]byte{0}, k.High...))}}
	}
	if k.Wildcard {
		return nil
	}
	return m
}
