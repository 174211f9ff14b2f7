package trace

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
)

func TestDescribe(t *testing.T) {
	got := Describe([]datapath.Match{
		{Wildcard: true}, {Value: []byte{1, 2}}, {Value: []byte{10, 0}, PrefixLen: 8}, {Value: []byte{1}, Mask: []byte{15}}, {Value: []byte{1}, High: []byte{9}},
	})
	if want := "* 0102 0a00/8 01&0f 01..09"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestPacket_String(t *testing.T) {
	yes, no, port, index := true, false, datapath.Port(2), uint64(7)
	p := Packet{Number: 3, Port: 1, Bytes: 60, Cut: true, Steps: []Step{
		{Kind: Parser, Name: "start"},
		{Kind: Condition, Name: "a == 1", Hit: &no},
		{Kind: Table, Name: "I.t", Key: []Field{{"h.a", "01"}}, Hit: &yes, Match: "01&0f", Priority: 5, Action: "I.set", Params: []Field{{"v", "ff"}}},
		{Kind: Table, Name: "I.u", Hit: &no, Action: "NoAction"},
		{Kind: Write, Name: "I.r", Index: &index, Value: "0a"},
		{Kind: Out, Port: &port, Bytes: 60},
	}}
	want := `packet 3: port 1, 60 bytes
  parser       start
  condition    a == 1 is false
  table        I.t h.a=01 hit 01&0f priority 5 I.set v=ff
  table        I.u miss NoAction
  write        I.r [7] 0a
  out          port 2 60 bytes
  (there was more)
`
	if got := p.String(); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	b, err := json.Marshal(&p)
	if err != nil {
		t.Fatal(err)
	}
	var again Packet
	if err := json.Unmarshal(b, &again); err != nil || again.String() != want {
		t.Errorf("by way of JSON: %s, %v", again.String(), err)
	}
}

// TestSession: who reads too late loses traces, and they are counted; a session ends once.
func TestSession(t *testing.T) {
	stops := 0
	s := NewSession(func() Counts { return Counts{Matched: 9, Lost: 1} }, func() { stops++ })
	for range backlog + 3 {
		s.Put(&Packet{})
	}
	if c := s.Counts(); c != (Counts{Matched: 9, Lost: 4}) {
		t.Errorf("%+v", c)
	}
	if p := <-s.Packets(); p.Number != 1 {
		t.Errorf("the first packet has number %d", p.Number)
	}
	s.Stop()
	s.Stop()
	<-s.Ended()
	if stops != 1 {
		t.Errorf("stopped %d times", stops)
	}
}

func program(t testing.TB) *v1model.Program {
	t.Helper()
	b, err := os.ReadFile("../ebpf/testdata/router.json")
	if err != nil {
		t.Fatal(err)
	}
	p, err := v1model.Load(b)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestParseFilter_Refuses: what is wrong with a term, and what would be right.
func TestParseFilter_Refuses(t *testing.T) {
	p := program(t)
	for term, says := range map[string]string{
		"":                       "no name",
		"=1":                     "no name",
		"nothing":                "not one header",
		"nothing=1":              "choose one of",
		"ttl=256":                "needs more than the field's 8 bits",
		"ttl=-1":                 "neither a number nor an address",
		"ttl=":                   "neither a number nor an address",
		"ttl=9..3":               "9 is more than 3",
		"ttl=3..":                "neither a number",
		"ttl=1/9":                `prefix of "9" bits of 8`,
		"ttl=1/x":                `prefix of "x"`,
		"ttl=1&999":              "needs more than",
		"port=70000":             "needs more than",
		strings.Repeat("x", 500): "longer than 256 bytes",
	} {
		_, err := ParseFilter(p, []string{term})
		var bad *FilterError
		if !errors.As(err, &bad) || bad.Remedy == "" || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v; want %q", term, err, says)
		}
	}
	if _, err := ParseFilter(p, make([]string, maxTerms+1)); err == nil {
		t.Error("too many terms")
	}
	if e, err := ParseFilter(p, nil); e != nil || err != nil {
		t.Errorf("no terms: %v, %v", e, err)
	}
	for _, term := range []string{"ttl=64", "hdr.ipv4.ttl=0x40", "port=1", "ipv4", "ipv4.dst=10.0.0.0/8", "ethernet.dst=01:02:03:04:05:06", "ttl=1..9", "ttl=1&1"} {
		if e, err := ParseFilter(p, []string{term}); e == nil || err != nil {
			t.Errorf("%q: %v", term, err)
		}
	}
}

// FuzzParseFilter: whatever the terms are, they are a condition or a *FilterError.
func FuzzParseFilter(f *testing.F) {
	p := program(f)
	for _, s := range []string{"ttl=64", "port=1", "ipv4", "a=b..c&d/e", "ttl=1..2..3", "ttl=1/1/1", "=", "..", "ttl=0x", "ttl=1_0"} {
		f.Add(s, s)
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		e, err := ParseFilter(p, []string{a, b})
		var bad *FilterError
		if err != nil && (!errors.As(err, &bad) || bad.Remedy == "" || len(err.Error()) > 1<<16) || err == nil && v1model.KindOf(e) != v1model.KindBool {
			t.Errorf("%v, %v", e, err)
		}
	})
}
