//go:build linux

package ebpf

import (
	"errors"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/compare"
	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/inputs"
)

// Ternary, optional and range fields, several prefixes, priorities: entries come
// and go, and both executors find the same.
func TestDifferential_Match(t *testing.T) {
	prog := load(t, "testdata/match.json")
	for s, replay := range seeds(t, max(*rounds/3, 2)) {
		p := newPair(t, prog, 0)
		a := inputs.New(prog, s)
		var entries []datapath.Entry
		for range 200 {
			e, ok := a.Entry()
			if !ok {
				t.Fatal("no tables")
			}
			op := datapath.Insert
			if len(entries) > 0 && a.IntN(3) == 0 { // change or remove one that is there
				old := entries[a.IntN(len(entries))]
				if old.Table == e.Table {
					old.Action, e = e.Action, old
				} else {
					e = old
				}
				op = []datapath.Op{datapath.Modify, datapath.Delete}[a.IntN(2)]
			}
			if p.Update(t, op, e) && op == datapath.Insert {
				entries = append(entries, e)
			}
			for range 4 {
				_, frame := a.Packet()
				frame = compare.Testable(frame)
				if frame[0] > 5 {
					frame[0] = byte(1 + a.IntN(5))
				}
				p.Check(t, 1, frame, replay)
			}
		}
		p.Counters(t, entries, replay)
	}
}

// A table that is looked through has as many entries as it says, and is as it was
// when there is no room for another.
func TestScan_FullTable(t *testing.T) {
	p := newPair(t, load(t, "testdata/match.json"), 0)
	entry := func(i int) datapath.Entry {
		return datapath.Entry{
			Table: "I.between", Priority: int32(i + 1), Action: &datapath.Action{Name: "I.counted", Params: [][]byte{{byte(i)}}},
			Match: []datapath.Match{{Value: []byte{0, 0}, High: []byte{0, byte(i)}}, {Wildcard: true}, {Value: []byte{0}}},
		}
	}
	for i := range 20 {
		p.Update(t, datapath.Insert, entry(i))
	}
	if err := p.kernel.Apply(datapath.Insert, entry(20)); !errors.Is(err, datapath.ErrFull) {
		t.Errorf("one too many: %v", err)
	}
	frame := make([]byte, 60)
	frame[0], frame[3] = 2, 7
	p.Check(t, 1, frame, "")
	bad := entry(1)
	bad.Match[0].Value, bad.Match[0].High = []byte{0, 9}, []byte{0, 8}
	if err := p.kernel.Apply(datapath.Modify, bad); err == nil {
		t.Error("an empty range")
	}
}
