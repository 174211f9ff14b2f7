package interp

import (
	"errors"
	"fmt"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
)

func TestValueSets(t *testing.T) {
	x := start(t, "sets", Config{})
	ask := func(a, b byte) string {
		out := process(x, 1, append([]byte{a, b}, make([]byte, 13)...)...)[0]
		return out[len(out)-2:]
	}
	one := func(v ...byte) []datapath.Match { return []datapath.Match{{Value: v}} }
	if err := x.ValueSet("P.ones", [][]datapath.Match{one(0xf, 0xff), one(1, 0x23)}); err != nil {
		t.Fatal(err)
	}
	if got := ask(0xff, 0xf0) + ask(0x12, 0x34) + ask(0x12, 0x44); got != "010104" {
		t.Errorf("exact members: %s", got)
	}
	masked := []datapath.Match{{Value: []byte{0xf, 0}, Mask: []byte{0xf, 0}}}
	between := []datapath.Match{{Value: []byte{1, 0}, High: []byte{1, 0x10}}}
	if err := x.ValueSet("P.ones", [][]datapath.Match{masked, between}); err != nil {
		t.Fatal(err)
	}
	if got := ask(0xf1, 0x20) + ask(0x10, 0x50) + ask(0x11, 0x10) + ask(0xff, 0xf0); got != "01010001" {
		t.Errorf("masked members and ranges: %s", got)
	}
	pair := []datapath.Match{{Value: []byte{9, 0x99}}, {Wildcard: true}}
	if err := x.ValueSet("P.pairs", [][]datapath.Match{pair}); err != nil {
		t.Fatal(err)
	}
	if got := ask(0x99, 0x97) + ask(0x99, 0x87); got != "0200" {
		t.Errorf("pairs: %s", got)
	}
	if err := x.ValueSet("P.ones", nil); err != nil {
		t.Fatal(err)
	}
	if got := ask(0xf1, 0x20); got != "00" {
		t.Errorf("an empty set: %s", got)
	}
	five := [][]datapath.Match{one(0, 1), one(0, 2), one(0, 3), one(0, 4), one(0, 5)}
	for name, err := range map[string]error{
		"full":    x.ValueSet("P.ones", five),
		"missing": x.ValueSet("P.none", nil),
		"width":   x.ValueSet("P.ones", [][]datapath.Match{one(0x10, 0)}),
		"fields":  x.ValueSet("P.pairs", [][]datapath.Match{one(0, 1)}),
	} {
		want := map[string]error{"full": datapath.ErrFull, "missing": datapath.ErrNotFound}[name]
		if err == nil || want != nil && !errors.Is(err, want) {
			t.Errorf("%s: %v", name, fmt.Sprint(err))
		}
	}
}
