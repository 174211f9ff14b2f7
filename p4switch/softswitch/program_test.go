package softswitch

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/internal/sample"
	"github.com/bifrost-rack/bifrost/p4switch/p4rt/p4info"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
	configv1 "github.com/p4lang/p4runtime/go/p4/config/v1"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
)

// P4Info and program of different programs are told apart, down to a width.
func TestLoadProgram_MismatchedPair(t *testing.T) {
	program, err := os.ReadFile("testdata/entities.json")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("testdata/entities.p4info.txt")
	if err != nil {
		t.Fatal(err)
	}
	load := func(program []byte, change func(*configv1.P4Info)) error {
		m := &configv1.P4Info{}
		if err := prototext.Unmarshal(text, m); err != nil {
			t.Fatal(err)
		}
		change(m)
		info, err := p4info.Parse(m)
		if err != nil {
			t.Fatal(err)
		}
		_, err = LoadProgram(program, info)
		return err
	}
	if err := load(program, func(*configv1.P4Info) {}); err != nil {
		t.Fatal(err)
	}
	if err := load(sample.JSON, func(*configv1.P4Info) {}); err == nil {
		t.Error("another program has been accepted")
	}
	// p4c lists tables that it has optimised away.
	err = load(program, func(m *configv1.P4Info) {
		gone := proto.Clone(m.Tables[0]).(*configv1.Table)
		gone.Preamble.Id, gone.Preamble.Name, gone.Preamble.Alias = 0x02fffffe, "I.gone", "gone"
		m.Tables = append(m.Tables, gone)
	})
	if err != nil {
		t.Error(err)
	}
	// A header of ports that the program never makes, as in PINS' programs that are not for bmv2; not so one of another type.
	headers := func(fields ...string) func(m *configv1.P4Info) {
		return func(m *configv1.P4Info) {
			m.TypeInfo.NewTypes = map[string]*configv1.P4NewTypeSpec{"name_t": {Representation: &configv1.P4NewTypeSpec_TranslatedType{
				TranslatedType: &configv1.P4NewTypeTranslation{SdnType: &configv1.P4NewTypeTranslation_SdnString_{SdnString: &configv1.P4NewTypeTranslation_SdnString{}}},
			}}}
			m.ControllerPacketMetadata[0].Metadata = nil
			for i, name := range fields {
				m.ControllerPacketMetadata[0].Metadata = append(m.ControllerPacketMetadata[0].Metadata, &configv1.ControllerPacketMetadata_Metadata{
					Id: uint32(i + 1), Name: name, TypeName: &configv1.P4NamedType{Name: "name_t"},
				})
			}
		}
	}
	if err := load(program, headers("target_egress_port", "ingress_port")); err != nil {
		t.Error(err)
	}
	if err := load(program, headers("vrf")); err == nil || !strings.Contains(err.Error(), `nothing of the type of field "vrf"`) {
		t.Error(err)
	}
	for want, change := range map[string]func(*configv1.P4Info){
		`"I.other"`:   func(m *configv1.P4Info) { m.Tables[0].Preamble.Name = "I.other" },
		"key fields":  func(m *configv1.P4Info) { m.Tables[0].MatchFields = nil },
		"has 47 bits": func(m *configv1.P4Info) { m.Tables[0].MatchFields[0].Bitwidth = 47 },
		"another kind in the program": func(m *configv1.P4Info) {
			m.Tables[0].MatchFields[0].Match = &configv1.MatchField_MatchType_{MatchType: configv1.MatchField_RANGE}
		},
		"another action": func(m *configv1.P4Info) { m.Tables[0].ImplementationId = m.ActionProfiles[0].Preamble.Id },
		`action "x"`:     func(m *configv1.P4Info) { action(m, "I.say").Preamble.Name = "x" },
		"2 parameters": func(m *configv1.P4Info) {
			a := action(m, "I.say")
			a.Params = append(a.Params, &configv1.Action_Param{Id: 9, Bitwidth: 1})
		},
		`"x" has 9 bits`:        func(m *configv1.P4Info) { a := action(m, "I.say"); a.Params[0].Name, a.Params[0].Bitwidth = "x", 9 },
		"of another kind":       func(m *configv1.P4Info) { m.ActionProfiles[0].WithSelector = !m.ActionProfiles[0].WithSelector },
		`counter "I.hits"`:      func(m *configv1.P4Info) { m.Counters[0].Size++ },
		`meter "I.rate"`:        func(m *configv1.P4Info) { m.Meters[0].Size++ },
		`register "I.cells" is`: func(m *configv1.P4Info) { m.Registers[0].Size++ },
		"cells of 13 bits":      func(m *configv1.P4Info) { m.Registers[0].TypeSpec.GetBitstring().GetBit().Bitwidth++ },
		"not of 17 bits":        func(m *configv1.P4Info) { m.ValueSets[0].Match[0].Bitwidth++ },
		`digest "x"`:            func(m *configv1.P4Info) { m.Digests[0].Preamble.Name = "x" },
	} {
		if err := load(program, change); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want it to mention %s", err, want)
		}
	}
	if _, err := LoadProgram([]byte("{"), &p4info.Info{}); err == nil {
		t.Error("half a JSON has been accepted")
	}
}

// A program is loaded once, until another one is. A failure changes nothing.
func TestLoaded(t *testing.T) {
	entities, err := os.ReadFile("testdata/entities.json")
	if err != nil {
		t.Fatal(err)
	}
	l := new(loaded)
	load := func(deviceConfig []byte) *v1model.Program {
		prog, err := l.load(bytes.Clone(deviceConfig))
		if err != nil {
			t.Fatal(err)
		}
		return prog
	}
	first := load(entities)
	if load(entities) != first {
		t.Error("the same program was loaded twice")
	}
	second := load(sample.JSON)
	if second == first || len(second.Tables) == len(first.Tables) {
		t.Error("another program is the former one")
	}
	if _, err := l.load([]byte("{")); err == nil {
		t.Error("half a JSON has been accepted")
	}
	if load(sample.JSON) != second {
		t.Error("a failure has made a program forgotten")
	}
}

func action(m *configv1.P4Info, name string) *configv1.Action {
	for _, a := range m.GetActions() {
		if a.GetPreamble().GetName() == name {
			return a
		}
	}
	panic("no action " + name)
}
