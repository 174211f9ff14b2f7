package p4info

import (
	"fmt"

	configv1 "github.com/p4lang/p4runtime/go/p4/config/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// MaxWidth bounds a field's width in bits; no v1model target goes beyond it, and
// a P4Info from an untrusted hand must not make us allocate without limit.
const MaxWidth = 1 << 16

// Parse checks a P4Info message and indexes it. Every id must be there and
// unique, every reference must lead somewhere, every width must make sense;
// else the error is INVALID_ARGUMENT and names the object. What P4Info can say
// but no target of ours can do (foreign externs) is refused the same way, because
// the configuration "cannot be realized". Of types that P4Runtime translates, those
// to integers are taken if the program's field has the controller's width: number
// for number. Those to strings are Strings, whose widths only the program tells.
func Parse(m *configv1.P4Info) (*Info, error) {
	p := &parser{msg: m, seen: map[uint32]string{}, info: newInfo()}
	for _, step := range []func() error{
		p.actions, p.counters, p.meters, p.profiles, p.tables,
		p.registers, p.valueSets, p.digests, p.headers, p.externs,
	} {
		if err := step(); err != nil {
			return nil, status.Errorf(codes.InvalidArgument, "P4Info: %v", err)
		}
	}
	return p.info, nil
}

func newInfo() *Info {
	return &Info{
		Tables: map[uint32]*Table{}, Actions: map[uint32]*Action{},
		Profiles: map[uint32]*Profile{}, Counters: map[uint32]*Counter{},
		Meters: map[uint32]*Meter{}, Registers: map[uint32]*Register{},
		ValueSets: map[uint32]*ValueSet{}, Digests: map[uint32]*Digest{},
		PacketIn: &Header{urgent: -1, port: -1}, PacketOut: &Header{urgent: -1, port: -1},
		strings: map[string]*Strings{},
		names:   map[uint32]string{}, tableNames: map[string]*Table{}, actionNames: map[string]*Action{}, digestNames: map[string]*Digest{},
	}
}

// parser walks one message; seen holds all ids so far, which are unique over
// the whole P4Info (direct resources are in tables' reach, so they count too).
type parser struct {
	msg            *configv1.P4Info
	info           *Info
	seen           map[uint32]string
	directCounters map[uint32]*Counter
	directMeters   map[uint32]*Meter
}

// object checks a preamble.
func (p *parser) object(what string, pre *configv1.Preamble) (Object, error) {
	o := Object{ID: pre.GetId(), Name: pre.GetName()}
	if o.ID == 0 {
		return o, fmt.Errorf("%s %q has no id", what, o.Name)
	}
	if o.Name == "" {
		return o, fmt.Errorf("%s %#x has no name", what, o.ID)
	}
	if other, dup := p.seen[o.ID]; dup {
		return o, fmt.Errorf("%s %q has the id %#x of %s", what, o.Name, o.ID, other)
	}
	p.seen[o.ID] = fmt.Sprintf("%s %q", what, o.Name)
	p.info.names[o.ID] = o.Name
	return o, nil
}

// keyWidth checks the bit width of a match field or parameter. It is 0 for keys of
// type error, of which P4Info says nothing at all, and for types that are translated
// to strings.
func (p *parser) keyWidth(where string, w int32, named *configv1.P4NamedType) (bits int, strings *Strings, err error) {
	if w == 0 && named == nil {
		return 0, nil, nil
	}
	return p.fieldWidth(where, w, named)
}

// fieldWidth checks the bit width of something that may be of a named type, as keyWidth does.
func (p *parser) fieldWidth(where string, w int32, named *configv1.P4NamedType) (bits int, strings *Strings, err error) {
	if strings, err = p.stringType(named.GetName()); strings != nil || err != nil {
		return 0, strings, err
	}
	bits, err = width(where, w)
	return bits, nil, err
}

// width checks a bit width.
func width(where string, w int32) (int, error) {
	switch {
	case w == 0:
		return 0, fmt.Errorf("%s has no bit width", where)
	case w < 0 || w > MaxWidth:
		return 0, fmt.Errorf("%s has the bit width %d; 1 to %d is allowed", where, w, MaxWidth)
	}
	return int(w), nil
}

func (p *parser) actions() error {
	for _, m := range p.msg.GetActions() {
		o, err := p.object("action", m.GetPreamble())
		if err != nil {
			return err
		}
		a := &Action{Object: o}
		ids := map[uint32]bool{}
		for _, pm := range m.GetParams() {
			where := fmt.Sprintf("parameter %q of action %q", pm.GetName(), o.Name)
			w, strings, err := p.keyWidth(where, pm.GetBitwidth(), pm.GetTypeName())
			if err != nil {
				return err
			}
			if pm.GetId() == 0 || ids[pm.GetId()] {
				return fmt.Errorf("%s has the id %d, which is zero or taken", where, pm.GetId())
			}
			ids[pm.GetId()] = true
			a.Params = append(a.Params, Param{ID: pm.GetId(), Name: pm.GetName(), Width: w, Strings: strings})
		}
		p.info.Actions[o.ID] = a
		p.info.actionNames[o.Name] = a
	}
	return nil
}

func (p *parser) registers() error {
	for _, m := range p.msg.GetRegisters() {
		o, err := p.object("register", m.GetPreamble())
		if err != nil {
			return err
		}
		cell, err := p.cellType(m.GetTypeSpec())
		if err != nil {
			return fmt.Errorf("register %q: %w", o.Name, err)
		}
		r := &Register{Object: o, Size: int64(m.GetSize()), Cell: cell}
		p.info.Registers[o.ID] = r
		p.info.RegisterOrder = append(p.info.RegisterOrder, r)
	}
	return nil
}

func (p *parser) valueSets() error {
	for _, m := range p.msg.GetValueSets() {
		o, err := p.object("value set", m.GetPreamble())
		if err != nil {
			return err
		}
		fields, err := p.matchFields(fmt.Sprintf("value set %q", o.Name), m.GetMatch())
		if err != nil {
			return err
		}
		v := &ValueSet{Object: o, Fields: fields, Size: m.GetSize()}
		p.info.ValueSets[o.ID] = v
		p.info.ValueSetOrder = append(p.info.ValueSetOrder, v)
	}
	return nil
}

func (p *parser) digests() error {
	for _, m := range p.msg.GetDigests() {
		o, err := p.object("digest", m.GetPreamble())
		if err != nil {
			return err
		}
		sample, err := p.sampleType(m.GetTypeSpec())
		if err != nil {
			return fmt.Errorf("digest %q: %w", o.Name, err)
		}
		d := &Digest{Object: o, Sample: sample}
		p.info.Digests[o.ID] = d
		p.info.digestNames[o.Name] = d
		p.info.DigestOrder = append(p.info.DigestOrder, d)
	}
	return nil
}

func (p *parser) externs() error {
	for _, m := range p.msg.GetExterns() {
		return fmt.Errorf("extern type %q is not one of v1model's", m.GetExternTypeName())
	}
	return nil
}
