package p4rtclient

import (
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/p4"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/protobuf/proto"
)

func program(t testing.TB) *Program {
	t.Helper()
	p, err := ParseProgram(p4.Info, p4.JSON)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// good is a valid entry of identity.
func good() Entry {
	return Entry{
		Table:  "identity",
		Match:  []Match{{Field: "ingress_port", Value: Uint(7)}, {Field: "source", Value: Uint(0x1000), PrefixLen: 116}},
		Action: "known", Params: []Param{{"kind", Uint(3)}, {"row", Uint(0)}, {"incarnation", Uint(0)}},
	}
}

// hop is a valid entry with parameters.
func hop() Entry {
	return Entry{
		Table: "next_hop", Match: []Match{{Field: "hop", Value: Uint(3)}}, Action: "forward",
		Params: []Param{{"port", Uint(5)}, {"dst", Uint(1)}, {"src", Uint(2)}},
	}
}

func TestEntry_Refused(t *testing.T) {
	p := program(t)
	for want, e := range map[string]func(e *Entry){
		`no table "nothing"`:         func(e *Entry) { e.Table = "nothing" },
		`no field "colour"`:          func(e *Entry) { e.Match = append(e.Match, Match{Field: "colour"}) },
		"ingress_port: missing":      func(e *Entry) { e.Match = e.Match[1:] },
		"ingress_port: given twice":  func(e *Entry) { e.Match = append(e.Match, e.Match[0]) },
		"ingress_port: no value":     func(e *Entry) { e.Match[0].Value = "" },
		"ingress_port: 0x0200 needs": func(e *Entry) { e.Match[0].Value = Uint(512) },
		"prefix length 129":          func(e *Entry) { e.Match[1].PrefixLen = 129 },
		"prefix length -1":           func(e *Entry) { e.Match[1].PrefixLen = -1 },
		"bits outside of its prefix": func(e *Entry) { e.Match[1].Value = Uint(0x1001) },
		`no action "forward"`:        func(e *Entry) { e.Action = "forward" },
		"4 parameters, want 3":       func(e *Entry) { e.Params = append(e.Params, Param{"x", Uint(1)}) },
	} {
		bad := good()
		e(&bad)
		if _, err := p.Normal(bad); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	for want, e := range map[string]func(e *Entry){
		"parameter port: 0x0200 needs 10": func(e *Entry) { e.Params[0].Value = Uint(512) },
		"parameter src is missing":        func(e *Entry) { e.Params[2].Name = "source" },
		"2 parameters, want 3":            func(e *Entry) { e.Params = e.Params[:2] },
	} {
		bad := hop()
		e(&bad)
		if _, err := p.Normal(bad); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

// Order and form do not matter; the way to the switch and back restores both.
func TestEntry_Normal(t *testing.T) {
	p := program(t)
	want := good()
	shuffled := Entry{
		Table: "BifrostIngress.identity", Action: "known", Params: want.Params,
		Match: []Match{want.Match[1], {Field: "ingress_port", Value: Value("\x00\x00\x07")}},
	}
	got, err := p.Normal(shuffled)
	if err != nil || got.Key() != want.Key() || !got.Equal(&want) {
		t.Errorf("%s became %s, %v", &shuffled, &got, err)
	}
	anything := good()
	anything.Match = anything.Match[:1] // an LPM field left out matches everything
	got, err = p.Normal(anything)
	if err != nil || len(got.Match) != 2 || got.Match[1] != (Match{"source", Uint(0), 0}) {
		t.Errorf("%s became %s, %v", &anything, &got, err)
	}
	h := hop()
	h.Params[0], h.Params[2] = h.Params[2], h.Params[0]
	if got, err = p.Normal(h); err != nil || got.Params[0] != (Param{"port", Uint(5)}) || h.Equal(&got) {
		t.Errorf("%s became %s, %v", &h, &got, err)
	}
}

func TestParseProgram_Refused(t *testing.T) {
	for what, info := range map[string]string{
		"no text format":              "{{{",
		"a ternary field":             `tables { preamble { id: 1 name: "t" alias: "t" } match_fields { id: 1 name: "f" bitwidth: 8 match_type: TERNARY } }`,
		"an action that is not there": `tables { preamble { id: 1 name: "t" alias: "t" } action_refs { id: 9 } }`,
		"wide metadata":               `controller_packet_metadata { preamble { id: 1 name: "packet_in" } metadata { id: 1 name: "f" bitwidth: 65 } }`,
	} {
		if _, err := ParseProgram([]byte(info), nil); err == nil {
			t.Errorf("%s: no error", what)
		}
	}
	p := program(t)
	if _, err := p.PacketInField("colour"); err == nil {
		t.Error("an unknown packet_in field: no error")
	}
	if i, err := p.PacketOutField("pad"); err != nil || i != 1 || p.PacketOutFields() != 2 {
		t.Errorf("packet_out.pad is field %d of %d, %v", i, p.PacketOutFields(), err)
	}
	if len(p.Tables()) != 9 {
		t.Errorf("tables %v", p.Tables())
	}
}

// FuzzDecode: whatever a switch says its entries are, nothing panics, and what
// can be read can be written.
func FuzzDecode(f *testing.F) {
	p := program(f)
	for _, e := range []Entry{good(), hop()} {
		var wire p4v1.TableEntry
		if err := p.encode(&wire, &e, true); err != nil {
			f.Fatal(err)
		}
		b, err := proto.Marshal(&wire)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var wire p4v1.TableEntry
		if proto.Unmarshal(b, &wire) != nil {
			return
		}
		e, err := p.decode(&wire)
		if err != nil {
			return
		}
		again, err := p.Normal(e)
		if err != nil || again.Key() != e.Key() || !again.Equal(&e) {
			t.Fatalf("%s became %s, %v", &e, &again, err)
		}
	})
}
