package resources

import (
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"github.com/bifrost-rack/bifrost/internal/rackaddr"
)

func addrs(ids []int) (nodes []netip.Addr) {
	for _, id := range ids {
		nodes = append(nodes, rackaddr.Node(uint64(id)))
	}
	return nodes
}

func counts(s *Spread) map[netip.Addr]int {
	m := map[netip.Addr]int{}
	for v := range 256 {
		m[s.Node(uint8(v))]++
	}
	return m
}

// The fewest values that must change hands when nodes share what s divides:
// what a node has beyond its share (the larger shares to those that have most)
// and what those that leave had.
func fewestMoves(s *Spread, nodes []netip.Addr) int {
	c := counts(s)
	have := make([]int, 0, len(nodes))
	for _, n := range nodes {
		have = append(have, c[n])
	}
	keep := 0
	larger := 256 % len(nodes)
	for _, h := range have {
		keep += min(h, 256/len(nodes))
		if h > 256/len(nodes) && larger > 0 {
			keep++
			larger--
		}
	}
	return 256 - keep
}

func TestSpread(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s Spread
		for range rapid.IntRange(1, 8).Draw(t, "steps") {
			limit := rapid.SampledFrom([]int{5, 12, 300}).Draw(t, "limit")
			nodes := addrs(rapid.SliceOfNDistinct(rapid.IntRange(1, limit), 1, min(limit, MaxShare), rapid.ID).Draw(t, "nodes"))
			next := s.Share(nodes)
			c := counts(&next)
			for _, n := range nodes {
				if c[n] < 256/len(nodes) || c[n] > (255+len(nodes))/len(nodes) {
					t.Fatalf("%s has %d values of 256 among %d nodes", n, c[n], len(nodes))
				}
			}
			moved := 0
			for v := range 256 {
				if s.owner[v] != next.owner[v] {
					moved++
				}
			}
			if want := fewestMoves(&s, nodes); moved != want {
				t.Fatalf("%d values change hands, %d must", moved, want)
			}
			checkPrefixes(t, &next)
			checkChange(t, &s, &next)
			s = next
		}
		if empty := s.Share(nil); empty != (Spread{}) {
			t.Fatalf("shared by nobody: %v", empty.Prefixes())
		}
	})
}

// Entries cover every value exactly once, and none could be joined.
func checkPrefixes(t *rapid.T, s *Spread) {
	again, err := spreadOf(s.Prefixes())
	if err != nil || again != *s {
		t.Fatalf("prefixes %v: %v", s.Prefixes(), err)
	}
	for i, p := range s.Prefixes()[1:] {
		q := s.Prefixes()[i]
		if p.Len == q.Len && p.Node == q.Node && int(p.Value)^int(q.Value) == 256>>p.Len {
			t.Fatalf("%v and %v could be one", q, p)
		}
	}
}

// While a change is applied entry by entry, in any order within a phase, a
// value belongs to its old or its new node.
func checkChange(t *rapid.T, old, next *Spread) {
	type key struct{ value, length uint8 }
	table := map[key]netip.Addr{}
	for _, p := range old.Prefixes() {
		table[key{p.Value, p.Len}] = p.Node
	}
	lookup := func(v int) (n netip.Addr) {
		for l := range 9 {
			if o, ok := table[key{uint8(v &^ (256>>l - 1)), uint8(l)}]; ok {
				n = o
			}
		}
		return n
	}
	check := func() {
		for v := range 256 {
			if n := lookup(v); n != old.owner[v] && n != next.owner[v] {
				t.Fatalf("value %d goes to %s, neither %s nor %s", v, n, old.owner[v], next.owner[v])
			}
		}
	}
	c := old.changeTo(next)
	for _, p := range rapid.Permutation(append(append([]Prefix{}, c.Insert...), c.Modify...)).Draw(t, "put") {
		table[key{p.Value, p.Len}] = p.Node
		check()
	}
	for _, p := range rapid.Permutation(c.Delete).Draw(t, "delete") {
		delete(table, key{p.Value, p.Len})
		check()
	}
	for v := range 256 {
		if n := lookup(v); n != next.owner[v] {
			t.Fatalf("at the end value %d goes to %s, want %s", v, n, next.owner[v])
		}
	}
	if len(table) != len(next.Prefixes()) {
		t.Fatalf("%d entries left, want %d", len(table), len(next.Prefixes()))
	}
}

func TestSpreadOfRefuses(t *testing.T) {
	n := rackaddr.Node(1)
	for name, entries := range map[string][]Prefix{
		"gap":           {{0, 1, n}},
		"overlap":       {{0, 0, n}, {128, 1, n}},
		"bits behind":   {{1, 0, n}},
		"long":          {{0, 9, n}},
		"without node":  {{0, 0, netip.Addr{}}},
		"no entry fits": {{0, 1, n}, {64, 2, n}},
	} {
		if _, err := spreadOf(entries); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func BenchmarkShare(b *testing.B) {
	var s Spread
	three, four := addrs([]int{1, 2, 3}), addrs([]int{1, 2, 3, 4})
	for i := range b.N {
		if i%2 == 0 {
			s = s.Share(three)
		} else {
			s = s.Share(four)
		}
	}
}
