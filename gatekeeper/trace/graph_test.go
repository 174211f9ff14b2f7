package trace

import (
	"maps"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
)

// The calls are counted by who makes them on whose behalf, whatever the size of the parts; those of before are not counted, nor those
// that are forgotten.
func TestCount(t *testing.T) {
	for scan := 1; scan < 12; scan++ {
		r := New(6, nil)
		for n, parent := range []int{0, 0, 0, 3, 3, 4, 0, 5} { // the first two are forgotten
			e := sent(n+1, parent, 100*n)
			if parent != 0 {
				e.Caller, e.Callee, e.Service = Node{rackaddr.Node(2), 1}, Node{rackaddr.Node(3), 1}, "Inner"
			}
			r.Note(e)
		}
		for n, code := range map[int]fault.Code{4: fault.Declared, 5: fault.Unavailable, 6: fault.OK} {
			e := event(n, Answered, 900)
			e.Code = code
			if n == 6 {
				e.Attempt = 1
			}
			r.Note(e)
		}
		count := func(since int) map[Edge]Tally {
			all := map[Edge]Tally{}
			for before, first := uint64(0), true; first || before != 0; first = false {
				before = r.Count(all, begin.Add(time.Duration(since)*time.Millisecond), before, scan)
			}
			return all
		}
		outer := Edge{Caller: rackaddr.Node(1), Callee: rackaddr.Node(2), To: "S"}
		inner := Edge{Caller: rackaddr.Node(2), Callee: rackaddr.Node(3), From: "S", To: "Inner"}
		nested := Edge{Caller: rackaddr.Node(2), Callee: rackaddr.Node(3), From: "Inner", To: "Inner"}
		want := map[Edge]Tally{outer: {Calls: 2, Open: 2}, inner: {Calls: 2, Declared: 1, Failed: 1}, nested: {Calls: 2, Open: 1, Rerun: 1}}
		if got := count(0); !maps.Equal(got, want) {
			t.Errorf("in parts of %d: %+v, want %+v", scan, got, want)
		}
		if got := count(600); !maps.Equal(got, map[Edge]Tally{outer: {Calls: 1, Open: 1}, nested: {Calls: 1, Open: 1}}) {
			t.Errorf("of late, in parts of %d: %+v", scan, got)
		}
	}
}
