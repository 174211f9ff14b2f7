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
				for range rapid.IntRange(1, 2*history).Draw(t, "n") {
					seq++
					if rapid.IntRange(0, 999).Draw(t, "lost") == 0 {
						continue // on the way to the hub
					}
					h.add(gatekeeper.Event{Seq: seq})
					published = append(published, seq)
				}
				continue
			}
			events, _ := h.read(at, rapid.IntRange(1, history).Draw(t, "limit"))
			for _, e := range events {
				missed += e.Seq - at.seq - 1
				at.seq = e.Seq
				seen = append(seen, e.Seq)
			}
		}
		for {
			events, _ := h.read(at, history)
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
	for seq := uint64(5); seq <= 5+2*history; seq++ {
		h.add(gatekeeper.Event{Seq: seq})
	}
	newest := uint64(5 + 2*history)
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
	for n, want := range map[int]int{0: 0, 1: 1, 7: 7, history: history, 9 * history: history} {
		if events, _ := h.read(h.latest(n), 9*history); len(events) != want {
			t.Errorf("the latest %d are %d events", n, len(events))
		}
	}
	if got := h.recent([]string{"none"}, 10); len(got) != 0 {
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
