package admin

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/bifrost-rack/bifrost/gatekeeper"
)

// A reader that goes its own pace gets every event that is still there once, in
// order, and learns exactly how many are not.
func TestHub_ReadersMissNothingUnknowingly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := &hub{boot: "b"}
		var published []uint64 // numbers that reached the hub
		seq, at := uint64(0), position{known: true}
		var seen []uint64
		missed := uint64(0)
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "publish") {
				for range rapid.IntRange(1, 2*kept).Draw(t, "n") {
					seq++
					if rapid.IntRange(0, 999).Draw(t, "lost") == 0 {
						continue // on the way to the hub
					}
					h.add(gatekeeper.Event{Seq: seq})
					published = append(published, seq)
				}
				continue
			}
			events, _ := h.read(at, rapid.IntRange(1, kept).Draw(t, "limit"))
			for _, e := range events {
				missed += e.Seq - at.seq - 1
				at.seq = e.Seq
				seen = append(seen, e.Seq)
			}
		}
		for {
			events, _ := h.read(at, kept)
			if len(events) == 0 {
				break
			}
			for _, e := range events {
				missed += e.Seq - at.seq - 1
				at.seq = e.Seq
				seen = append(seen, e.Seq)
			}
		}
		if !slices.IsSorted(seen) || len(slices.Compact(slices.Clone(seen))) != len(seen) {
			t.Fatal("events out of order or twice")
		}
		if n := len(published); n > 0 && (uint64(len(seen))+missed != published[n-1] || seen[len(seen)-1] != published[n-1]) {
			t.Fatalf("%d seen and %d missed of %d", len(seen), missed, published[n-1])
		}
	})
}

func TestHub_Positions(t *testing.T) {
	h := &hub{boot: "b"}
	for seq := uint64(5); seq <= 5+2*kept; seq++ {
		h.add(gatekeeper.Event{Seq: seq})
	}
	newest := uint64(5 + 2*kept)
	for what, tc := range map[string]struct {
		id        string
		p         position
		restarted bool
		bad       bool
	}{
		"the newest":          {h.id(newest), position{newest, true}, false, false},
		"one long gone":       {h.id(6), position{6, true}, false, false},
		"one that never was":  {h.id(newest + 9), position{newest, true}, false, false},
		"of another boot":     {"c-7", position{}, true, false},
		"no number":           {"b-", position{}, false, true},
		"no boot":             {"-7", position{}, false, true},
		"something else":      {"hello", position{}, false, true},
		"a number too large":  {"b-18446744073709551616", position{}, false, true},
		"a negative number":   {"b--1", position{}, false, true},
		"the largest number ": {"b-18446744073709551615", position{newest, true}, false, false},
	} {
		p, restarted, err := h.resume(tc.id)
		if p != tc.p || restarted != tc.restarted || (err != nil) != tc.bad {
			t.Errorf("%s, %q: %+v, %v, %v", what, tc.id, p, restarted, err)
		}
	}
	for n, want := range map[int]int{0: 0, 1: 1, 7: 7, kept: kept, 9 * kept: kept} {
		if events, _ := h.read(h.latest(n), 9*kept); len(events) != want {
			t.Errorf("the latest %d are %d events", n, len(events))
		}
	}
	if got := h.recent(&EventFilter{Kinds: []string{"none"}}, 10); len(got) != 0 {
		t.Errorf("recent events of no kind: %v", got)
	}
}

func FuzzResume(f *testing.F) {
	f.Add("b-1")
	f.Add("c-18446744073709551615")
	f.Add("-")
	h := &hub{boot: "b"}
	h.add(gatekeeper.Event{Seq: 3})
	f.Fuzz(func(t *testing.T, id string) {
		p, restarted, err := h.resume(id)
		if err != nil && (p != position{} || restarted) || p.seq > 3 {
			t.Errorf("%q: %+v, %v, %v", id, p, restarted, err)
		}
	})
}

// Events of a former run stand in front of those of this one, whose ids they do not change. Who
// was there before the restart does not get them again.
func TestHub_FormerRuns(t *testing.T) {
	h := &hub{boot: "b", before: 1024}
	for seq := uint64(1); seq <= 3; seq++ {
		h.add(gatekeeper.Event{Seq: seq, Kind: gatekeeper.BladeUp})
	}
	id := h.id(h.before + 3)
	h.recall([]gatekeeper.Event{{Seq: 77, Kind: gatekeeper.NodeFailed}, {Seq: 90, Kind: gatekeeper.NodeFenced}})
	h.add(gatekeeper.Event{Seq: 4, Kind: gatekeeper.BladeUp})
	var seqs []uint64
	for _, e := range h.recent(&EventFilter{}, 10) {
		seqs = append(seqs, e.Seq)
	}
	if want := []uint64{1023, 1024, 1025, 1026, 1027, 1028}; !slices.Equal(seqs, want) {
		t.Errorf("the latest events have the numbers %v, want %v", seqs, want)
	}
	for what, tc := range map[string]struct {
		id   string
		want int
	}{"of this run": {id, 1}, "of the former run": {"a-50", 4}} {
		p, _, err := h.resume(tc.id)
		if events, _ := h.read(p, 10); err != nil || len(events) != tc.want {
			t.Errorf("behind an event %s: %d events, %v; want %d", what, len(events), err, tc.want)
		}
	}
	if h.lostEvents() != 0 {
		t.Errorf("%v events count as lost", h.lostEvents())
	}
	many := make([]gatekeeper.Event, 1024)
	for seq := uint64(5); seq <= kept; seq++ {
		h.add(gatekeeper.Event{Seq: seq})
	}
	if h.recall(many); len(h.ring) != kept || h.at(0).Seq != h.before+1 {
		t.Errorf("%d events are kept, the first has number %d", len(h.ring), h.at(0).Seq)
	}
}
