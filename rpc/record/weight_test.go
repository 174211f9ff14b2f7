package record

import (
	"math/rand/v2"
	"testing"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// TestWeight: a base never has more bytes than the state weighs, and what is weighed step by step is what is weighed at once.
func TestWeight(t *testing.T) {
	for seed := range uint64(300) {
		h := &history{rng: rand.New(rand.NewPCG(seed, 7))}
		for range 150 {
			h.step()
			w := h.state.Weight()
			if n := len(Append(nil, h.state.Base())); n > w.Calls+w.States {
				t.Fatalf("seed %d: a base of %d bytes after %d records, the state weighs %+v", seed, n, len(h.records), w)
			}
			if h.state.weighAll(); h.state.Weight() != w {
				t.Fatalf("seed %d: after %d records the state weighs %+v, not %+v", seed, len(h.records), h.state.Weight(), w)
			}
		}
	}
}

// TestWeight_Follows: what follows from an outcome on record makes the state lighter by more than its record has, so it
// needs no room. A base has all of it.
func TestWeight_Follows(t *testing.T) {
	call, at, number := plain(1, 5)
	letter, caller := rpcpacket.ID{9}, at.Caller
	done := &Done{
		Execution: call, Caller: caller, Incarnation: 1, Slot: at.Slot, Number: number, Answer: make([]byte, 5000),
		Owed: Owed{Machines: []uint8{1}, Oneways: []Oneway{{ID: letter, Node: [16]byte{2}}}},
	}
	forgotten, over := &Forgotten{Executions: []rpcpacket.ID{call}}, &Over{Execution: call}
	for _, last := range [][]Record{{forgotten, over}, {over, forgotten}} {
		follows(t, append([]Record{done, &Delivered{Execution: call, Oneway: letter}}, last...))
	}
}

func follows(t *testing.T, all []Record) {
	t.Helper()
	var s State
	for _, r := range all {
		before := s.Weight().Calls
		if err := s.Apply(r); err != nil {
			t.Fatal(err)
		}
		cost := dsmpacket.RecordSize(len(Append(nil, r))) + dsmpacket.ChunkCost
		if n, w := len(Append(nil, s.Base())), s.Weight(); n > w.Calls+w.States {
			t.Errorf("%s: a base of %d bytes, the state weighs %+v", r.Kind(), n, w)
		}
		if lighter := before - s.Weight().Calls; r.Kind() != KindDone && lighter < cost {
			t.Errorf("%s: takes %d bytes of the ledger, the state is lighter by %d", r.Kind(), cost, lighter)
		}
	}
	if s.Weight().Calls > s.slotsWeight() {
		t.Errorf("a state without executions weighs %+v", s.Weight())
	}
}

func (s *State) slotsWeight() int { return 5*numberSize + slotSize*len(s.slots) }
