package p4rtclient

import (
	"fmt"
	"slices"
	"strings"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
)

// Entry is one table entry by names. Match lists the table's fields in any
// order; an LPM field that is left out matches everything. Params lists the
// action's parameters in any order, all of them. A deletion needs no action.
type Entry struct {
	Table  string
	Match  []Match
	Action string
	Params []Param
}

// Match is one key field. PrefixLen counts for LPM fields only.
type Match struct {
	Field     string
	Value     Value
	PrefixLen int
}

// Param is one action parameter.
type Param struct {
	Name  string
	Value Value
}

// Key identifies the entry in its table: two entries with equal keys are one
// entry on the switch. It holds for entries with their fields in the same order,
// such as those that Read returns.
func (e *Entry) Key() string {
	var b strings.Builder
	b.WriteString(e.Table)
	for _, m := range e.Match {
		fmt.Fprintf(&b, " %s=%x/%d", m.Field, string(m.Value), m.PrefixLen)
	}
	return b.String()
}

// String prints the entry for people.
func (e *Entry) String() string {
	var b strings.Builder
	b.WriteString(e.Table)
	for _, m := range e.Match {
		fmt.Fprintf(&b, " %s=%s", m.Field, m.Value)
		if m.PrefixLen != 0 {
			fmt.Fprintf(&b, "/%d", m.PrefixLen)
		}
	}
	fmt.Fprintf(&b, " -> %s", e.Action)
	for _, p := range e.Params {
		fmt.Fprintf(&b, " %s=%s", p.Name, p.Value)
	}
	return b.String()
}

// Equal reports whether two entries with equal keys do the same.
func (e *Entry) Equal(o *Entry) bool { return e.Action == o.Action && slices.Equal(e.Params, o.Params) }

// encode checks an entry against the program and writes it into out.
func (p *Program) encode(out *p4v1.TableEntry, e *Entry, withAction bool) error {
	t := p.tables[e.Table]
	if t == nil {
		return fmt.Errorf("the program has no table %q", e.Table)
	}
	out.TableId = t.id
	for _, m := range e.Match {
		if !slices.ContainsFunc(t.fields, func(f field) bool { return f.name == m.Field }) {
			return fmt.Errorf("table %s has no field %q", t.name, m.Field)
		}
	}
	out.Match = make([]*p4v1.FieldMatch, 0, len(t.fields))
	all := make([]matched, len(t.fields))
	for i, f := range t.fields {
		m := &all[i]
		some, err := f.encodeMatch(m, e.Match)
		if err != nil {
			return fmt.Errorf("table %s, field %s: %w", t.name, f.name, err)
		}
		if some {
			out.Match = append(out.Match, &m.match)
		}
	}
	if !withAction {
		return nil
	}
	a := t.actions[e.Action]
	if a == nil {
		return fmt.Errorf("table %s has no action %q", t.name, e.Action)
	}
	params, err := a.encode(e.Params)
	if err != nil {
		return fmt.Errorf("table %s, action %s: %w", t.name, a.name, err)
	}
	out.Action = &p4v1.TableAction{Type: &p4v1.TableAction_Action{Action: &p4v1.Action{ActionId: a.id, Params: params}}}
	return nil
}

// matched is what a match field consists of, in one piece of memory.
type matched struct {
	match p4v1.FieldMatch
	exact struct {
		which p4v1.FieldMatch_Exact_
		value p4v1.FieldMatch_Exact
	}
}

// encodeMatch finds the field's match and writes it into out; false stands for "any".
func (f field) encodeMatch(out *matched, ms []Match) (some bool, err error) {
	i := slices.IndexFunc(ms, func(m Match) bool { return m.Field == f.name })
	if i < 0 {
		if f.lpm {
			return false, nil
		}
		return false, fmt.Errorf("missing")
	}
	m := ms[i]
	if slices.ContainsFunc(ms[i+1:], func(o Match) bool { return o.Field == f.name }) {
		return false, fmt.Errorf("given twice")
	}
	v, err := f.fit(m)
	if err != nil {
		return false, err
	}
	out.match.FieldId = f.id
	if !f.lpm {
		out.exact.value.Value, out.exact.which.Exact = []byte(v), &out.exact.value
		out.match.FieldMatchType = &out.exact.which
		return true, nil
	}
	if m.PrefixLen == 0 {
		return false, nil
	}
	out.match.FieldMatchType = &p4v1.FieldMatch_Lpm{Lpm: &p4v1.FieldMatch_LPM{Value: []byte(v), PrefixLen: int32(m.PrefixLen)}}
	return true, nil
}

// fit returns the value of a match in the field's width. It refuses what P4Runtime does: a value or a
// prefix that is too long, and bits outside of the prefix.
func (f field) fit(m Match) (Value, error) {
	v, err := m.Value.fit(f.width)
	switch {
	case err != nil || !f.lpm:
		return v, err
	case m.PrefixLen < 0 || m.PrefixLen > f.width:
		return v, fmt.Errorf("prefix length %d of %d bits", m.PrefixLen, f.width)
	case !v.trailingZeros(f.width - m.PrefixLen):
		return v, fmt.Errorf("%s has bits outside of its prefix of %d", v, m.PrefixLen)
	}
	return v, nil
}

func (a *action) encode(ps []Param) ([]*p4v1.Action_Param, error) {
	if len(ps) != len(a.params) {
		return nil, fmt.Errorf("%d parameters, want %d", len(ps), len(a.params))
	}
	var out []*p4v1.Action_Param
	for _, f := range a.params {
		i := slices.IndexFunc(ps, func(p Param) bool { return p.Name == f.name })
		if i < 0 {
			return nil, fmt.Errorf("parameter %s is missing", f.name)
		}
		v, err := ps[i].Value.fit(f.width)
		if err != nil {
			return nil, fmt.Errorf("parameter %s: %w", f.name, err)
		}
		out = append(out, &p4v1.Action_Param{ParamId: f.id, Value: []byte(v)})
	}
	return out, nil
}
