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
