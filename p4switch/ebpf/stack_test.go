//go:build linux

package ebpf

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
)

// stacked is a packet for stacks.p4 of a kind: its labels or items end soon, late
// or never.
func stacked(r *rand.Rand, kind byte) []byte {
	b := make([]byte, 58+r.IntN(60))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	b[12], b[13] = 0x88, 0xb5
	b[14], b[15] = kind, byte(r.IntN(7))
	if kind == 3 {
		b[15] = byte(1 + r.IntN(40)) // 0 is 256, after which too little would be left
	}
	for at := 16; at < 40; at += 2 {
		b[at] = byte(r.IntN(3)) // an item's tag; or a label, the last one
	}
	if r.IntN(8) == 0 {
		b = b[:58]
	}
	return b
}

// Stacks, unions, and a parser that loops as often as the packet says.
func TestDifferential_Stacks(t *testing.T) {
	prog := load(t, "testdata/stacks.json")
	for s, replay := range seeds(t, max(*rounds/3, 1)) {
		p := newPair(t, prog, 0)
		p.Unordered = true
		r := rand.New(rand.NewPCG(s, 0))
		for range 300 {
			p.Check(t, 1, stacked(r, byte(r.IntN(4))), replay)
		}
		for _, kind := range []byte{5, 6} { // resubmitted without end, recirculated
			p.Check(t, 1, stacked(r, kind), replay)
		}
	}
}

// A parser without a loop is whole, however many ways lead through it.
func TestDifferential_Ways(t *testing.T) {
	p := newPair(t, load(t, "testdata/ways.json"), 0)
	r := rand.New(rand.NewPCG(*seed, 0))
	for n := range 200 {
		frame := make([]byte, 60+r.IntN(700))
		for i := range frame {
			frame[i] = byte(r.Uint32())
		}
		if n == 0 { // the longest way
			frame = make([]byte, 600)
			frame[14], frame[15] = 1, 255
		}
		p.Check(t, 1, frame, fmt.Sprintf("go test ./p4switch/ebpf -run TestDifferential_Ways -seed %d", *seed))
	}
}

// What has no end ends: a clone to where it came from, of which each copy is
// cloned; a packet that is resubmitted each time; a parser that reads on and on.
func TestEndless(t *testing.T) {
	p := newPair(t, load(t, "testdata/stacks.json"), 0)
	if err := p.kernel.Clone(5, []datapath.Replica{{Port: 1}}, 0); err != nil {
		t.Fatal(err)
	}
	for n, tc := range []struct{ kind, times byte }{{4, 0}, {5, 0}, {3, 0}} {
		frame := make([]byte, 1500)
		frame[14], frame[15] = tc.kind, tc.times
		if err := p.kernel.Test(1, frame, p.K.Emit); err != nil {
			t.Fatal(err)
		}
		if got := p.kernel.stats(1)[nLooped/8]; got != uint64(n+1) && tc.kind != 3 {
			t.Errorf("kind %d: %d packets counted as endless, not %d", tc.kind, got, n+1)
		}
	}
	// The executor goes on.
	frame := make([]byte, 100)
	p.K.Take()
	if err := p.kernel.Test(1, frame, p.K.Emit); err != nil || len(p.K.Take()) != 1 {
		t.Errorf("nothing leaves any more: %v", err)
	}
}

// What pop_front takes out at one end of a stack comes in at the other, as in bmv2: it is
// invalid, and its fields can be read until it is made valid.
func TestPoppedElementsKeepTheirFields(t *testing.T) {
	data, err := os.ReadFile("testdata/stacks.json")
	if err != nil {
		t.Fatal(err)
	}
	const pop = "\"h.labels.pop_front(2)\"\n          }\n        }"
	program := strings.Replace(string(data), pop, pop+`,
		{"op": "assign", "parameters": [{"type": "field", "value": ["status", "peek"]}, {"type": "field", "value": ["labels[2]", "more"]}]},
		{"op": "add_header", "parameters": [{"type": "header", "value": "labels[2]"}]}`, 1)
	prog, err := v1model.Load([]byte(program))
	if err != nil {
		t.Fatal(err)
	}
	p := newPair(t, prog, 0)
	frame := append(make([]byte, 14), 1, 2, 0x02, 0x11, 0x04, 0x22, 0x06, 0x33, 0x09, 0x44)
	kernel, golang, _ := p.Differs(1, append(frame, make([]byte, 40)...))
	for _, got := range [][]string{kernel, golang} {
		if want := "out 2: " + strings.Repeat("00", 14) + "00450011" + "0102" + "0633" + "0944" + "0000"; len(got) != 1 || !strings.HasPrefix(got[0], want) {
			t.Errorf("%v, want %s…", got, want)
		}
	}
}
