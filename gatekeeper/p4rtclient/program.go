package p4rtclient

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	configv1 "github.com/p4lang/p4runtime/go/p4/config/v1"
	"google.golang.org/protobuf/encoding/prototext"
)

// Program is a compiled P4 program: what its P4Info says, by name, and the
// device config that goes with it. It does not change and is safe for concurrent
// use. Objects may be named in full or by alias.
type Program struct {
	info         *configv1.P4Info
	deviceConfig []byte
	cookie       uint64

	tables      map[string]*table
	tablesByID  map[uint32]*table
	digests     map[string]uint32
	digestsByID map[uint32]string
	meters      map[string]array
	counters    map[string]array
	packetIn    []field
	packetOut   []field
}

// table is one table of the program.
type table struct {
	id      uint32
	name    string // alias
	fields  []field
	actions map[string]*action
	byID    map[uint32]*action
}

// action is one action of a table.
type action struct {
	id     uint32
	name   string // alias
	params []field
}

// field is a match field, a parameter or a piece of packet metadata.
type field struct {
	id    uint32
	name  string
	width int
	lpm   bool
}

// ParseProgram reads a P4Info in protobuf text format. The device config is
// passed on to the switch as it is.
func ParseProgram(info, deviceConfig []byte) (*Program, error) {
	p := &Program{
		info: &configv1.P4Info{}, deviceConfig: deviceConfig,
		tables: map[string]*table{}, tablesByID: map[uint32]*table{},
		digests: map[string]uint32{}, digestsByID: map[uint32]string{}, meters: map[string]array{}, counters: map[string]array{},
	}
	if err := prototext.Unmarshal(info, p.info); err != nil {
		return nil, fmt.Errorf("P4Info: %w", err)
	}
	p.cookie = cookie(info, deviceConfig)
	actions := map[uint32]*action{}
	for _, a := range p.info.GetActions() {
		act := &action{id: a.GetPreamble().GetId(), name: a.GetPreamble().GetAlias()}
		for _, f := range a.GetParams() {
			act.params = append(act.params, field{id: f.GetId(), name: f.GetName(), width: int(f.GetBitwidth())})
		}
		actions[act.id] = act
	}
	for _, t := range p.info.GetTables() {
		if err := p.addTable(t, actions); err != nil {
			return nil, err
		}
	}
	for _, d := range p.info.GetDigests() {
		id, names := d.GetPreamble().GetId(), d.GetPreamble()
		p.digests[names.GetName()], p.digests[names.GetAlias()], p.digestsByID[id] = id, id, names.GetAlias()
	}
	for _, m := range p.info.GetMeters() {
		p.meters[m.GetPreamble().GetAlias()] = array{m.GetPreamble().GetId(), m.GetSize()}
	}
	for _, c := range p.info.GetCounters() {
		p.counters[c.GetPreamble().GetAlias()] = array{c.GetPreamble().GetId(), c.GetSize()}
	}
	return p, p.addPacketHeaders()
}

// cookie identifies a program on a switch.
func cookie(info, deviceConfig []byte) uint64 {
	h := sha256.New()
	_, _ = h.Write(info) // a hash never fails
	_, _ = h.Write(deviceConfig)
	return binary.BigEndian.Uint64(h.Sum(nil))
}

func (p *Program) addTable(info *configv1.Table, actions map[uint32]*action) error {
	pre := info.GetPreamble()
	t := &table{id: pre.GetId(), name: pre.GetAlias(), actions: map[string]*action{}, byID: map[uint32]*action{}}
	for _, f := range info.GetMatchFields() {
		kind := f.GetMatchType()
		if kind != configv1.MatchField_EXACT && kind != configv1.MatchField_LPM {
			return fmt.Errorf("P4Info: table %s, field %s: match type %v is not supported", t.name, f.GetName(), kind)
		}
		t.fields = append(t.fields, field{f.GetId(), f.GetName(), int(f.GetBitwidth()), kind == configv1.MatchField_LPM})
	}
	for _, ref := range info.GetActionRefs() {
		a := actions[ref.GetId()]
		if a == nil {
			return fmt.Errorf("P4Info: table %s: no action has the id %d", t.name, ref.GetId())
		}
		t.actions[a.name], t.byID[a.id] = a, a
	}
	p.tables[pre.GetName()], p.tables[pre.GetAlias()], p.tablesByID[t.id] = t, t, t
	return nil
}

// addPacketHeaders reads what PacketIns and PacketOuts carry.
func (p *Program) addPacketHeaders() error {
	for _, m := range p.info.GetControllerPacketMetadata() {
		var fields []field
		for _, f := range m.GetMetadata() {
			if f.GetBitwidth() > 64 {
				return fmt.Errorf("P4Info: %s.%s has %d bits, at most 64 are supported", m.GetPreamble().GetName(), f.GetName(), f.GetBitwidth())
			}
			fields = append(fields, field{id: f.GetId(), name: f.GetName(), width: int(f.GetBitwidth())})
		}
		switch m.GetPreamble().GetName() {
		case "packet_in":
			p.packetIn = fields
		case "packet_out":
			p.packetOut = fields
		}
	}
	return nil
}

// Tables returns the aliases of all tables.
func (p *Program) Tables() []string {
	var names []string
	for _, t := range p.info.GetTables() {
		names = append(names, t.GetPreamble().GetAlias())
	}
	return names
}

// PacketInField tells at which index of PacketIn.Metadata a field stands.
func (p *Program) PacketInField(name string) (int, error) {
	return indexOf(p.packetIn, "packet_in", name)
}

// PacketOutField tells at which index of PacketOut.Metadata a field stands.
func (p *Program) PacketOutField(name string) (int, error) {
	return indexOf(p.packetOut, "packet_out", name)
}

// PacketOutFields is how many fields PacketOut.Metadata has.
func (p *Program) PacketOutFields() int { return len(p.packetOut) }

func indexOf(fields []field, header, name string) (int, error) {
	for i, f := range fields {
		if f.name == name {
			return i, nil
		}
	}
	return 0, fmt.Errorf("the program's %s header has no field %q", header, name)
}
