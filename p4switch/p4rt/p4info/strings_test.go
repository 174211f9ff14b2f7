package p4info

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
	"testing"

	configv1 "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// stringType makes a type of a P4Info one that is translated to strings.
func stringType(m *configv1.P4Info, name string, annotations ...string) *configv1.P4NamedType {
	if m.TypeInfo == nil {
		m.TypeInfo = &configv1.P4TypeInfo{}
	}
	if m.TypeInfo.NewTypes == nil {
		m.TypeInfo.NewTypes = map[string]*configv1.P4NewTypeSpec{}
	}
	m.TypeInfo.NewTypes[name] = &configv1.P4NewTypeSpec{
		Annotations: annotations,
		Representation: &configv1.P4NewTypeSpec_TranslatedType{TranslatedType: &configv1.P4NewTypeTranslation{
			SdnType: &configv1.P4NewTypeTranslation_SdnString_{SdnString: &configv1.P4NewTypeTranslation_SdnString{}},
		}},
	}
	return &configv1.P4NamedType{Name: name}
}

// stringsOf is a type with a width, and the program that it is of.
func stringsOf(t *testing.T, width int, annotations ...string) (*Info, *Strings) {
	t.Helper()
	m := load(t, "../testdata/all.p4info.txt")
	p := m.Actions[2].Params[0]
	p.TypeName, p.Bitwidth = stringType(m, "name_t", annotations...), 0
	info, err := Parse(m)
	if err != nil {
		t.Fatal(err)
	}
	s := info.strings["name_t"]
	if err := s.SetWidth(width); err != nil {
		t.Fatal(err)
	}
	return info, s
}

func mustBe(t *testing.T, s *Strings, text string, want uint64) {
	t.Helper()
	b, err := s.Bytes([]byte(text))
	if got := binary.BigEndian.Uint64(append(make([]byte, 8-len(b)), b...)); err != nil || got != want {
		t.Errorf("%q is %d, want %d; %v", text, got, want, err)
	}
	if got := s.Text(b); err == nil && string(got) != text {
		t.Errorf("%q comes back as %q", text, got)
	}
}

func TestStrings(t *testing.T) {
	_, s := stringsOf(t, 10, `@p4runtime_translation_mappings({ { "" , 0 } , {"top", 1023}, })`)
	mustBe(t, s, "", 0)
	mustBe(t, s, "top", 1023)
	mustBe(t, s, "router-interface-1", 1022)
	mustBe(t, s, "7", 7)       // decimal numbers are themselves
	mustBe(t, s, "007", 1021)  // but not in another spelling
	mustBe(t, s, "1024", 1020) // nor if they are too large
	mustBe(t, s, "router-interface-1", 1022)
	if got := s.Text([]byte{0x01, 0x00}); string(got) != "256" {
		t.Errorf("256, which has no name, is %q", got)
	}
	if _, err := s.Bytes([]byte("1022")); status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), `stands for "router-interface-1"`) {
		t.Errorf("1022, which is taken: %v", err)
	}
	if _, err := s.Bytes(bytes.Repeat([]byte("x"), MaxString+1)); status.Code(err) != codes.InvalidArgument {
		t.Errorf("too long: %v", err)
	}
}

// A string that an entry has keeps its number. One that none has any more gives it to others.
func TestStrings_NumbersAreGivenOutAgain(t *testing.T) {
	info, s := stringsOf(t, 3)
	a := info.Actions[info.msgAction(t)]
	use := func(text string, by int) {
		info.UseAction(by, &p4v1.Action{ActionId: a.ID, Params: []*p4v1.Action_Param{{ParamId: a.Params[0].ID, Value: []byte(text)}}})
	}
	for i := range 7 { // 0 is not given out
		info.Update()
		mustBe(t, s, fmt.Sprintf("n%d", i), uint64(7-i))
		use(fmt.Sprintf("n%d", i), 1)
	}
	info.Update()
	if _, err := s.Bytes([]byte("one more")); status.Code(err) != codes.ResourceExhausted {
		t.Fatalf("all numbers are taken: %v", err)
	}
	use("n3", 1)
	use("n3", -1)
	if _, err := s.Bytes([]byte("one more")); status.Code(err) != codes.ResourceExhausted {
		t.Fatalf("an entry has n3 still: %v", err)
	}
	use("n3", -1)
	mustBe(t, s, "one more", 4)
	if _, err := s.Bytes([]byte("and another")); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("the update that is being made has named the one before: %v", err)
	}
	info.Update()
	mustBe(t, s, "and another", 4)
	info.Update()
	mustBe(t, s, "4", 4) // what nothing has does not stand in the way of a number
}

// msgAction is the action whose parameter stringsOf has changed.
func (in *Info) msgAction(t *testing.T) uint32 {
	t.Helper()
	for id, a := range in.Actions {
		if len(a.Params) > 0 && a.Params[0].Strings != nil {
			return id
		}
	}
	t.Fatal("no action has a string")
	return 0
}

// Strings that no entry has are not remembered without bound, however many a controller asks for.
func TestStrings_Bounded(t *testing.T) {
	info, s := stringsOf(t, 48)
	for i := range maxUnused + 5 {
		info.Update()
		if _, err := s.Bytes(strconv.AppendInt([]byte("x"), int64(i), 10)); err != nil {
			t.Fatal(err)
		}
		if len(s.strings) > maxUnused {
			t.Fatalf("%d strings", len(s.strings))
		}
	}
	var err error
	for i := 0; err == nil && i <= maxUnused; i++ { // reads are no updates
		_, err = s.Bytes(strconv.AppendInt([]byte("y"), int64(i), 10))
	}
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("strings without end: %v", err)
	}
}

func TestStrings_Ports(t *testing.T) {
	m := load(t, "../testdata/all.p4info.txt")
	f := m.ControllerPacketMetadata[0].Metadata[0]
	f.Name, f.Bitwidth, f.TypeName = "ingress_port", 0, stringType(m, "port_t")
	info, err := Parse(m)
	if err != nil {
		t.Fatal(err)
	}
	s := info.Ports()
	if s == nil || s.SetWidth(9) != nil {
		t.Fatal("no type of ports")
	}
	mustBe(t, s, "511", 511)
	for _, text := range []string{"eth0", "512", "01", ""} {
		if _, err := s.Bytes([]byte(text)); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestStrings_Widths(t *testing.T) {
	_, s := stringsOf(t, 9)
	if err := s.SetWidth(9); err != nil {
		t.Error(err)
	}
	if err := s.SetWidth(10); err == nil {
		t.Error("two widths have been accepted")
	}
	m := load(t, "../testdata/all.p4info.txt")
	for _, w := range []int{0, MaxWidth + 1} {
		stringType(m, "x")
		p := &parser{msg: m, info: newInfo()}
		if s, err := p.stringType("x"); err != nil || s.SetWidth(w) == nil {
			t.Errorf("%d bits: %v", w, err)
		}
	}
	stringType(m, "x", `@p4runtime_translation_mappings({{"a", 8}})`)
	p := &parser{msg: m, info: newInfo()}
	if s, err := p.stringType("x"); err != nil || s.SetWidth(3) == nil {
		t.Errorf("a number that does not fit: %v", err)
	}
	if _, err := s.Bytes([]byte("x")); err != nil {
		t.Error(err)
	}
}

// PINS' programs have 256 bits for names where they are for bmv2.
func TestStrings_Wide(t *testing.T) {
	_, s := stringsOf(t, 256)
	b, err := s.Bytes([]byte("vrf-80"))
	if want := append(make([]byte, 24), bytes.Repeat([]byte{0xff}, 8)...); err != nil || !bytes.Equal(b, want) {
		t.Errorf("%x, %v", b, err)
	}
	if got := string(s.Text(b)); got != "vrf-80" {
		t.Errorf("it comes back as %q", got)
	}
	b[0] = 1
	if got := string(s.Text(b)); got == "vrf-80" || len(got) < 70 {
		t.Errorf("another number is %q", got)
	}
}

// Masks, prefixes and ranges of strings mean nothing.
func TestStrings_Kinds(t *testing.T) {
	_, s := stringsOf(t, 8)
	for _, kind := range []Kind{LPM, Ternary, Range} {
		f := Field{Kind: kind, Strings: s}
		if _, err := f.number(&[]byte{'x'}); err == nil || !strings.Contains(err.Error(), "make the key exact or optional") {
			t.Errorf("kind %d: %v", kind, err)
		}
	}
}

func TestMappings_Refused(t *testing.T) {
	for _, a := range []string{"", "()", "({", "({})x", "({{}})", `({{"a"}})`, `({{"a",}})`, `({{"a",1})`, `({{"a",-1}})`, `({{"a",99999999999999999999}})`, "({{`a`,1}})"} {
		if out, err := mappings([]string{mappingsName + a}); err == nil {
			t.Errorf("%s: %v", a, out)
		}
	}
	m := load(t, "../testdata/all.p4info.txt")
	stringType(m, "x", mappingsName+`({{"a", 1}, {"b", 1}})`)
	if _, err := (&parser{msg: m, info: newInfo()}).stringType("x"); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Errorf("two strings for a number: %v", err)
	}
}

// FuzzMappings: no annotation makes the parser panic, and what it takes it takes again as it says it.
func FuzzMappings(f *testing.F) {
	f.Add(`({ { "" , 0 } , })`)
	f.Add(`({{"a\n", 0x1f}, {"b", 2,},})`)
	f.Add(`({`)
	f.Fuzz(func(t *testing.T, text string) {
		out, err := mappings([]string{mappingsName + text})
		if err != nil {
			return
		}
		var b strings.Builder
		for _, m := range out {
			fmt.Fprintf(&b, "{%q, %d},", m.text, m.number)
		}
		again, err := mappings([]string{mappingsName + "({" + b.String() + "})"})
		if err != nil || len(again) != len(out) {
			t.Fatalf("%s: %v", b.String(), err)
		}
		for i := range out {
			if *again[i] != *out[i] {
				t.Errorf("%v, then %v", out[i], again[i])
			}
		}
	})
}
