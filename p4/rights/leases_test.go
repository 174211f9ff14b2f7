package rights

import (
	"slices"
	"testing"
)

// leaseRead runs m11 until a READ by its standing lease has passed the switch. It keeps that READ while the owner ends the lease
// and goes on as far as it can. Then the READ reaches memory.
func leaseRead(without ...string) string {
	s := begin("m11", false, without...)
	var kept *message
	for waits := 0; waits < 20 && s.broken == ""; {
		i := slices.IndexFunc(s.flight, func(m *message) bool { return m != kept })
		switch {
		case i >= 0 && kept == nil && s.flight[i].passed && s.flight[i].Kind == Read && s.sw.Slot(s.flight[i].Ref.Slot).Standing:
			kept = s.flight[i]
		case i >= 0:
			s.deliver(i, false, false)
		case kept == nil:
			s.turns()
			s.tickAll()
		default: // the reader sends nothing again
			waits++
			s.turns()
			s.tick(s.nodes[1])
		}
	}
	for i := slices.Index(s.flight, kept); i >= 0; i = slices.Index(s.flight, kept) {
		s.deliver(i, false, false)
	}
	s.settle()
	return s.oracle()
}

// TestLeaseRests has a READ by a standing lease be late: the owner may not write before it has arrived.
func TestLeaseRests(t *testing.T) {
	if wrong := leaseRead(); wrong != "" {
		t.Error(wrong)
	}
	if wrong := leaseRead("lease rests"); wrong == "" {
		t.Error("nothing breaks without the rule")
	} else {
		t.Log(wrong)
	}
}

// A call that ends late has no part in a region that was allocated since in the same slot: its machine has lost what it lent.
func TestLateEnd(t *testing.T) {
	r := newRig(t, Rack)
	old := r.alloc(1, 0)
	first, second := r.ref(1, 0, 2), r.ref(1, 1, 3)
	r.is("a call", call(1, 2, first, own(old)), "passes")
	now := r.alloc(1, 0)
	r.is("a call with what is in its place", call(1, 3, second, own(now)), "passes")
	r.is("lending on what is not there any more", call(2, 3, r.ref(2, 0, 2), lentOn(first, old)), "permission denied")
	r.is("the end of the first one", reply(2, 1, first), "passes")
	if w := r.Word(now.Slot); w != (Word{now.Generation, 1, 1}) {
		t.Errorf("the region of the second call has the word %+v", w)
	}
}
