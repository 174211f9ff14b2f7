package gatekeeper

import "testing"

// TestAllocWindow: a copy is told from a new answer also out of order, and the
// window keeps nothing that the client has settled.
func TestAllocWindow(t *testing.T) {
	a := allocs{above: map[uint64]struct{}{}}
	for _, id := range []uint64{5, 3} {
		if a.late(id) {
			t.Errorf("request %d is new", id)
		}
		a.handled(id)
	}
	for id, late := range map[uint64]bool{3: true, 4: false, 5: true, 6: false} {
		if a.late(id) != late {
			t.Errorf("late(%d) = %v", id, !late)
		}
	}
	a.settle(5)
	a.settle(2) // an old packet
	if !a.late(4) || !a.late(5) || a.late(6) || len(a.above) != 1 {
		t.Errorf("after settling below 5: %+v", a)
	}
}

// TestAllocsAtTheLimit: a node that has settled none of as many allocations as are kept gets
// no more, but for the one at its floor: the others are settled only after that.
func TestAllocsAtTheLimit(t *testing.T) {
	a := allocs{above: map[uint64]struct{}{}}
	a.settle(3)
	for id := uint64(4); id < 8; id++ {
		a.handled(id)
	}
	if a.full(8, 5) || !a.full(8, 4) {
		t.Error("the limit is not kept")
	}
	if a.full(3, 4) {
		t.Error("the allocation for which all others wait is refused")
	}
	a.handled(3)
	a.settle(8)
	if a.full(8, 4) {
		t.Errorf("full after all are settled: %+v", a)
	}
}
