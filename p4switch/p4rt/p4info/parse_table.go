package p4info

import (
	"fmt"

	configv1 "github.com/p4lang/p4runtime/go/p4/config/v1"
)

func (p *parser) tables() error {
	for _, m := range p.msg.GetTables() {
		t, err := p.table(m)
		if err != nil {
			return err
		}
		p.info.Tables[t.ID] = t
		p.info.tableNames[t.Name] = t
		p.info.TableOrder = append(p.info.TableOrder, t)
	}
	return nil
}

func (p *parser) table(m *configv1.Table) (*Table, error) {
	o, err := p.object("table", m.GetPreamble())
	if err != nil {
		return nil, err
	}
	where := fmt.Sprintf("table %q", o.Name)
	t := &Table{
		Object: o, Actions: map[uint32]Scope{}, Size: m.GetSize(),
		ConstDefault: m.GetConstDefaultActionId(), InitialDefault: m.GetInitialDefaultAction(),
		NotifyIdle: m.GetIdleTimeoutBehavior() == configv1.Table_NOTIFY_CONTROL,
		Const:      m.GetIsConstTable(),
	}
	if t.Fields, err = p.matchFields(where, m.GetMatchFields()); err != nil {
		return nil, err
	}
	for _, f := range t.Fields {
		t.NeedsPriority = t.NeedsPriority || f.Kind == Ternary || f.Kind == Range || f.Kind == Optional
	}
	for _, ref := range m.GetActionRefs() {
		if p.info.Actions[ref.GetId()] == nil {
			return nil, fmt.Errorf("%s refers to the unknown action %#x", where, ref.GetId())
		}
		t.Actions[ref.GetId()] = ref.GetScope()
	}
	if err := p.implementation(t, m.GetImplementationId()); err != nil {
		return nil, fmt.Errorf("%s: %w", where, err)
	}
	if err := p.directResources(t, m.GetDirectResourceIds()); err != nil {
		return nil, fmt.Errorf("%s: %w", where, err)
	}
	return t, nil
}

func (p *parser) implementation(t *Table, id uint32) error {
	if id == 0 {
		return nil
	}
	if t.Profile = p.info.Profiles[id]; t.Profile == nil {
		return fmt.Errorf("implementation %#x is unknown", id)
	}
	return nil
}

func (p *parser) directResources(t *Table, ids []uint32) error {
	for _, id := range ids {
		c, m := p.directCounters[id], p.directMeters[id]
		switch {
		case c != nil && t.Counter == nil:
			t.Counter = c
		case m != nil && t.Meter == nil:
			t.Meter = m
		default:
			return fmt.Errorf("direct resource %#x is unknown or a second one of its kind", id)
		}
	}
	return nil
}

// kinds maps P4Info's match types to ours.
var kinds = map[configv1.MatchField_MatchType]Kind{
	configv1.MatchField_EXACT: Exact, configv1.MatchField_LPM: LPM, configv1.MatchField_TERNARY: Ternary,
	configv1.MatchField_RANGE: Range, configv1.MatchField_OPTIONAL: Optional,
}

func (p *parser) matchFields(where string, ms []*configv1.MatchField) ([]Field, error) {
	var fields []Field
	ids := map[uint32]bool{}
	for _, m := range ms {
		name := fmt.Sprintf("field %q of %s", m.GetName(), where)
		w, strings, err := p.keyWidth(name, m.GetBitwidth(), m.GetTypeName())
		if err != nil {
			return nil, err
		}
		kind, ok := kinds[m.GetMatchType()]
		if !ok {
			return nil, fmt.Errorf("%s has the unsupported match kind %v%s", name, m.GetMatchType(), m.GetOtherMatchType())
		}
		if m.GetId() == 0 || ids[m.GetId()] {
			return nil, fmt.Errorf("%s has the id %d, which is zero or taken", name, m.GetId())
		}
		ids[m.GetId()] = true
		fields = append(fields, Field{ID: m.GetId(), Name: m.GetName(), Width: w, Kind: kind, Strings: strings})
	}
	return fields, nil
}

func (p *parser) profiles() error {
	for _, m := range p.msg.GetActionProfiles() {
		o, err := p.object("action profile", m.GetPreamble())
		if err != nil {
			return err
		}
		a := &Profile{
			Object: o, Tables: m.GetTableIds(), Selector: m.GetWithSelector(),
			Size: m.GetSize(), MaxGroupSize: m.GetMaxGroupSize(), NoWeights: m.GetWeightsDisallowed(),
		}
		if s := m.GetSumOfMembers(); s != nil {
			a.SumOfMembers, a.MaxMemberWeight = true, s.GetMaxMemberWeight()
		}
		p.info.Profiles[o.ID] = a
		p.info.ProfileOrder = append(p.info.ProfileOrder, a)
	}
	return nil
}

func (p *parser) counters() error {
	p.directCounters = map[uint32]*Counter{}
	for _, m := range p.msg.GetCounters() {
		o, err := p.object("counter", m.GetPreamble())
		if err != nil {
			return err
		}
		c := &Counter{Object: o, Size: m.GetSize()}
		p.info.Counters[o.ID] = c
		p.info.CounterOrder = append(p.info.CounterOrder, c)
	}
	for _, m := range p.msg.GetDirectCounters() {
		o, err := p.object("direct counter", m.GetPreamble())
		if err != nil {
			return err
		}
		p.directCounters[o.ID] = &Counter{Object: o}
	}
	return nil
}

func (p *parser) meters() error {
	p.directMeters = map[uint32]*Meter{}
	for _, m := range p.msg.GetMeters() {
		o, err := p.object("meter", m.GetPreamble())
		if err != nil {
			return err
		}
		mt := &Meter{Object: o, Size: m.GetSize(), Type: m.GetSpec().GetType()}
		p.info.Meters[o.ID] = mt
		p.info.MeterOrder = append(p.info.MeterOrder, mt)
	}
	for _, m := range p.msg.GetDirectMeters() {
		o, err := p.object("direct meter", m.GetPreamble())
		if err != nil {
			return err
		}
		p.directMeters[o.ID] = &Meter{Object: o, Type: m.GetSpec().GetType()}
	}
	return nil
}
