package p4info

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	configv1 "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
)

func load(t testing.TB, path string) *configv1.P4Info {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	m := &configv1.P4Info{}
	if err := prototext.Unmarshal(text, m); err != nil {
		t.Fatal(err)
	}
	return m
}

func parse(t testing.TB, path string) *Info {
	t.Helper()
	info, err := Parse(load(t, path))
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// What p4c makes of Bifröst's own program is accepted.
func TestParse_Sample(t *testing.T) {
	info := parse(t, "../../internal/sample/sample.p4info.txt")
	rule := info.TableByName("SampleIngress.writer")
	if rule == nil || len(rule.Fields) != 2 || rule.Fields[1].Kind != Exact || rule.NeedsPriority {
		t.Fatalf("got %+v", rule)
	}
	if d := info.DigestByName("denied_t"); d == nil || d.Sample.Leaves() != 4 {
		t.Errorf("got %+v", d)
	}
	if info.PacketIn.Len() != 4 || info.Name(rule.ID) != rule.Name {
		t.Errorf("packet_in has %d bytes", info.PacketIn.Len())
	}
}

func TestParse_ReferencesAndOrder(t *testing.T) {
	info := parse(t, "../testdata/all.p4info.txt")
	exact := info.TableByName("ingress.exact")
	if exact.Counter.Name != "ingress.hits" || exact.Meter.Name != "ingress.rate" || !exact.NotifyIdle {
		t.Errorf("got %+v", exact)
	}
	if p := info.TableByName("ingress.selected").Profile; p == nil || !p.Selector || p.MaxGroupSize != 8 {
		t.Errorf("got %+v", p)
	}
	if len(info.TableOrder) != 7 || info.TableOrder[2].Name != "ingress.acl" || !info.TableOrder[2].NeedsPriority {
		t.Error("tables are not in P4Info's order")
	}
}

// Matches survive the way to the data plane's words and back.
func TestMatchKey_RoundTrip(t *testing.T) {
	fields := parse(t, "../testdata/all.p4info.txt").TableByName("ingress.acl").Fields
	m := &p4v1.TableEntry{}
	err := prototext.Unmarshal([]byte(`
		match { field_id: 1 exact { value: "\x06" } } match { field_id: 2 ternary { value: "\x01\x00" mask: "\x0f\x00" } }
		match { field_id: 3 range { low: "\x10" high: "\x20" } } match { field_id: 4 optional { value: "\x00" } }
		match { field_id: 5 lpm { value: "\xfd\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00" prefix_len: 8 } }`), m)
	if err != nil {
		t.Fatal(err)
	}
	key, err := MatchKey(fields, m.GetMatch())
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(key[1].Mask, []byte{0x0f, 0}) || !slices.Equal(key[2].High, []byte{0, 0x20}) || key[4].PrefixLen != 8 || len(key[4].Value) != 16 {
		t.Errorf("got %+v", key)
	}
	back := &p4v1.TableEntry{Match: MatchFields(fields, key)}
	if !proto.Equal(back, m) {
		t.Errorf("got %v, want %v", back, m)
	}
}

// Entries that a program declares may spell out what P4Runtime leaves out.
func TestMatchFields_LeavesOutWhatMatchesAll(t *testing.T) {
	fields := parse(t, "../testdata/all.p4info.txt").TableByName("ingress.acl").Fields
	ms := MatchFields(fields, []datapath.Match{
		{Value: []byte{6}}, {Value: []byte{0, 0}, Mask: []byte{0, 0}}, {Value: []byte{0, 0}, High: []byte{0xff, 0xff}},
		{Value: []byte{0}, Mask: []byte{0}}, {Value: make([]byte, 16)},
	})
	if len(ms) != 1 || ms[0].GetFieldId() != 1 {
		t.Errorf("got %v", ms)
	}
}

func TestType_Compound(t *testing.T) {
	info := parse(t, "../testdata/all.p4info.txt")
	d, err := info.DigestByName("other_t").Sample.Data([][]byte{{7}, {1}})
	if err != nil {
		t.Fatal(err)
	}
	want := &p4v1.P4Data{}
	if err := prototext.Unmarshal([]byte(`tuple { members { bitstring: "\x07" } members { bool: true } }`), want); err != nil || !proto.Equal(d, want) {
		t.Errorf("got %v, %v", d, err)
	}
	if _, err := info.DigestByName("other_t").Sample.Data([][]byte{{7}}); err == nil {
		t.Error("a field is missing and nobody minds")
	}
}

// A type that is translated to integers is but an integer.
func TestParse_TranslatedTypes(t *testing.T) {
	translated := func(to *configv1.P4NewTypeTranslation) *configv1.P4NewTypeSpec {
		return &configv1.P4NewTypeSpec{Representation: &configv1.P4NewTypeSpec_TranslatedType{TranslatedType: to}}
	}
	named := &configv1.P4NamedType{Name: "port_name_t"}
	m := load(t, "../testdata/all.p4info.txt")
	f := m.Tables[0].MatchFields[0]
	f.TypeName = named
	m.TypeInfo.NewTypes = map[string]*configv1.P4NewTypeSpec{
		named.Name: translated(&configv1.P4NewTypeTranslation{SdnType: &configv1.P4NewTypeTranslation_SdnBitwidth{SdnBitwidth: f.Bitwidth}}),
	}
	if _, err := Parse(m); err != nil {
		t.Errorf("translated to %d bits: %v", f.Bitwidth, err)
	}
}

func TestType_SelfContainedStruct(t *testing.T) {
	m := load(t, "../testdata/all.p4info.txt")
	m.TypeInfo.Structs["learn_t"].Members[0].TypeSpec = m.Digests[0].TypeSpec
	if _, err := Parse(m); err == nil {
		t.Error("a struct that contains itself has been accepted")
	}
}

// FuzzParse: no P4Info makes Parse panic, and an accepted one is consistent.
func FuzzParse(f *testing.F) {
	for _, path := range []string{"../testdata/all.p4info.txt", "../../internal/sample/sample.p4info.txt"} {
		b, err := proto.Marshal(load(f, path))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m := &configv1.P4Info{}
		if proto.Unmarshal(b, m) != nil {
			return
		}
		info, err := Parse(m)
		if err != nil {
			return
		}
		for _, table := range info.TableOrder {
			for id := range table.Actions {
				if info.Actions[id] == nil {
					t.Fatalf("table %q refers to the unknown action %d", table.Name, id)
				}
			}
		}
		if info.PacketIn.Len() > 1<<12 {
			return
		}
		if _, _, err := info.PacketIn.Decode(make([]byte, info.PacketIn.Len())); err != nil {
			t.Fatal(err)
		}
	})
}

// FuzzMatchKey: an accepted match is canonical and comes back the same.
func FuzzMatchKey(f *testing.F) {
	fields := parse(f, "../testdata/all.p4info.txt").TableByName("ingress.acl").Fields
	seed := &p4v1.TableEntry{}
	if err := prototext.Unmarshal([]byte(`match { field_id: 1 exact { value: "\x06" } } match { field_id: 2 ternary { value: "\x00\x01" mask: "\x0f" } }`), seed); err != nil {
		f.Fatal(err)
	}
	b, err := proto.Marshal(seed)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		m := &p4v1.TableEntry{}
		if proto.Unmarshal(b, m) != nil {
			return
		}
		key, err := MatchKey(fields, m.GetMatch())
		if err != nil {
			return
		}
		again, err := MatchKey(fields, MatchFields(fields, key))
		if err != nil || len(again) != len(key) {
			t.Fatalf("%v came back as %v, %v", key, again, err)
		}
		for i := range key {
			if !slices.Equal(key[i].Value, again[i].Value) || !slices.Equal(key[i].Mask, again[i].Mask) || !slices.Equal(key[i].High, again[i].High) ||
				key[i].PrefixLen != again[i].PrefixLen || key[i].Wildcard != again[i].Wildcard {
				t.Fatalf("field %d: %+v came back as %+v", i, key[i], again[i])
			}
		}
	})
}

// Enums and errors have names in P4Runtime, and numbers in the data plane.
func TestParse_NamedValues(t *testing.T) {
	parse := func(info *configv1.P4TypeInfo) *Type {
		t.Helper()
		members := []*configv1.P4DataTypeSpec{
			{TypeSpec: &configv1.P4DataTypeSpec_Error{Error: &configv1.P4ErrorType{}}},
			{TypeSpec: &configv1.P4DataTypeSpec_Enum{Enum: &configv1.P4NamedType{Name: "kind_t"}}},
		}
		m := load(t, "../testdata/all.p4info.txt")
		m.TypeInfo = info
		m.Digests = []*configv1.Digest{{
			Preamble: &configv1.Preamble{Id: m.GetDigests()[0].GetPreamble().GetId(), Name: "d"},
			TypeSpec: &configv1.P4DataTypeSpec{TypeSpec: &configv1.P4DataTypeSpec_Tuple{Tuple: &configv1.P4TupleTypeSpec{Members: members}}},
		}}
		m.Registers = nil
		parsed, err := Parse(m)
		if err != nil {
			t.Fatal(err)
		}
		return parsed.DigestByName("d").Sample
	}
	enums := map[string]*configv1.P4EnumTypeSpec{"kind_t": {Members: []*configv1.P4EnumTypeSpec_Member{{Name: "small"}, {Name: "large"}}}}
	for name, tc := range map[string]struct {
		info *configv1.P4TypeInfo
		code byte
		want string
	}{
		"of the program":        {&configv1.P4TypeInfo{Enums: enums, Error: &configv1.P4ErrorTypeSpec{Members: []string{"NoError", "Mine"}}}, 1, "Mine"},
		"of the core library":   {&configv1.P4TypeInfo{Enums: enums}, 1, "PacketTooShort"},
		"that nobody has named": {&configv1.P4TypeInfo{Enums: enums}, 99, "99"},
	} {
		sample := parse(tc.info)
		d, err := sample.Data([][]byte{{0, 0, 0, tc.code}, {0, 0, 0, 1}})
		if err != nil {
			t.Fatal(err)
		}
		got := d.GetTuple().GetMembers()
		if got[0].GetError() != tc.want || got[1].GetEnum() != "large" {
			t.Errorf("%s: %v", name, d)
		}
		if b, err := sample.members[1].Cell(got[1]); err != nil || !bytes.Equal(b, []byte{0, 0, 0, 1}) {
			t.Errorf("%s: read back as %x, %v", name, b, err)
		}
		if _, err := sample.members[0].Cell(got[1]); err == nil {
			t.Errorf("%s: an enum is no error", name)
		}
		if _, err := sample.members[1].Cell(&p4v1.P4Data{Data: &p4v1.P4Data_Enum{Enum: "huge"}}); err == nil || !strings.Contains(err.Error(), "none of small, large") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
