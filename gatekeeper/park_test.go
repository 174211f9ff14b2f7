package gatekeeper

import (
	"context"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// A call into a stateful service on behalf of one that nobody has heard of waits for
// its digest, once, and not for ever: that may be lost.
func TestPark_UnknownParent(t *testing.T) {
	for name, held := range map[string]rpcpacket.Flags{"held": rpcpacket.FlagHeld, "not held": 0} {
		t.Run(name, func(t *testing.T) {
			inSmall(t, func(s *small) {
				s.b.exportStateful("S", "do")
				m := s.a.nested(rpcpacket.ID{9}, "S", "do")
				m.Flags |= held
				began := time.Now()
				s.a.call("S", m)
				s.a.call("S", m) // a copy waits for the same
				quiet("before its patience ends", s.b)
				s.digested()
				if got := s.b.message1(); got.Call != m.Call || time.Since(began) > time.Second {
					t.Errorf("after %v: %+v", time.Since(began), got)
				}
				if c := s.snapshot().Counters; c.Duplicates == 0 {
					t.Errorf("counters %+v", c)
				}
				other := s.a.message("S", "do") // of a plain client: nothing to wait for
				other.Flags |= held
				s.a.call("S", other)
				s.b.message1()
			})
		})
	}
}

// No more calls wait than there is room for: others are judged at once.
func TestPark_Bounded(t *testing.T) {
	inSmall(t, func(s *small) {
		s.b.exportStateful("S", "do")
		fill := func(n int) {
			if err := s.gk.do(context.Background(), func() {
				s.gk.ctl.parked = nil
				for range n {
					s.gk.ctl.parked = append(s.gk.ctl.parked, parked{until: time.Now().Add(time.Hour)})
				}
			}); err != nil {
				t.Fatal(err)
			}
		}
		fill(maxParked)
		s.a.call("S", s.a.nested(rpcpacket.ID{9}, "S", "do"))
		s.b.message1()
		fill(0)
	})
}
