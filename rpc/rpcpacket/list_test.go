package rpcpacket

import (
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/p4switch/shared/wirefmt"
)

// TestListsOf: pointers become regions, each once, in the order of the first pointers into them, and regions pointers to their first bytes.
func TestListsOf(t *testing.T) {
	var pointers, bases []dsmpacket.Pointer
	for i := range uint32(MaxRegions) {
		p := dsmpacket.Make(16, uint8(i%3), dsmpacket.IDOf(1<<20-1-i, 1<<22-1))
		pointers, bases = append(pointers, p.Add(int64(i)), p), append(bases, p)
	}
	for n := range MaxRegions + 1 {
		m := Message{Lists: ListsOf(pointers[:2*n]...)}
		if len(m.Lists) != (n+3)/4 || !slices.Equal(m.Bases(16), bases[:n]) {
			t.Errorf("%d regions: %d lists, pointers %v, want %v", n, len(m.Lists), m.Bases(16), bases[:n])
		}
		for i, p := range pointers {
			if m.Names(RegionOf(p)) != (i < 2*n) {
				t.Errorf("%d regions: pointer %d is named: %v", n, i, i >= 2*n)
			}
		}
	}
}

// TestLendingLists: what came in one slot shares lists with what is its sender's own, and with nothing that came in another slot. Four slots'
// worth of regions need four lists, wherever they stand among the pointers.
func TestLendingLists(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		var pointers []dsmpacket.Pointer
		by := map[Region]Ref{}
		for _, i := range rng.Perm(1 + rng.IntN(MaxRegions)) {
			p := dsmpacket.Make(16, 1, dsmpacket.IDOf(uint32(i), 1))
			pointers = append(pointers, p)
			if parent := rng.IntN(2 * MaxLists); parent < MaxLists {
				by[RegionOf(p)] = Ref{Slot: Slot(16 + parent), Number: 1}
			}
		}
		perParent := map[Ref]int{}
		for _, ref := range by {
			perParent[ref]++
		}
		if slices.ContainsFunc(slices.Collect(maps.Values(perParent)), func(n int) bool { return n > ListRegions }) {
			continue // they cannot have come in one slot
		}
		lists, seen := LendingLists(pointers, func(r Region) Ref { return by[r] }), 0
		for i := range lists {
			l := &lists[i]
			for _, r := range l.Of() {
				if seen++; by[r] != (Ref{}) && by[r] != l.Parent {
					t.Errorf("region %s has come by %v, and is listed with parent %v", r, by[r], l.Parent)
				}
			}
			if l.Parent != (Ref{}) && !slices.ContainsFunc(l.Of(), func(r Region) bool { return by[r] == l.Parent }) {
				t.Errorf("a list names the parent %v, and nothing that came by it: %v", l.Parent, l.Of())
			}
		}
		if len(lists) > MaxLists || seen != len(pointers) {
			t.Errorf("%d regions are listed in %d lists, of %d", seen, len(lists), len(pointers))
		}
	}
}

// TestVersion2IsRefused: who speaks another version is told which one is spoken here.
func TestVersion2IsRefused(t *testing.T) {
	m := sample()
	b := m.Append(nil)
	b[2] = 2
	if _, err := Parse(b); !errors.Is(err, wirefmt.ErrFormat) || !strings.Contains(err.Error(), "version 2, want 3") {
		t.Errorf("%v", err)
	}
}
