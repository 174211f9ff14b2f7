package gatekeeper

import (
	"errors"
	"testing"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
)

// A reclaim that a memory blade has not answered is asked for again.
func TestLogged_Reclaim(t *testing.T) {
	inLogged(t, func(s *small) {
		p := s.m1.alloc(s.a, 1, 1)
		s.m1.mute = true
		s.a.leave()
		s.m1.converse()
		s.restart()
		s.m1.mute = false
		s.m1.converse()
		s.m1.expectReclaimed("after the restart", p.ID())
		s.restart()
		s.m1.converse()
		s.m1.expectReclaimed("after the next one", p.ID())
	})
}

func (b *testBlade) expectReclaimed(when string, ids ...dsmpacket.RegionID) {
	b.r.t.Helper()
	ok := len(b.reclaimed) == len(ids)
	for i := 0; ok && i < len(ids); i++ {
		ok = b.reclaimed[i].ID == ids[i]
	}
	if !ok {
		b.r.t.Errorf("%s: reclaimed %+v, want %v", when, b.reclaimed, ids)
	}
}

// A log that fails stops the Gatekeeper, before anybody learns what is not on it.
func TestLogged_Failure(t *testing.T) {
	inLogged(t, func(s *small) {
		s.disk.Crash()
		if err := s.b.ask(control.KindJoin, control.Join{Blade: "s1", Name: "another", Token: 99}, nil); err == nil {
			t.Error("a program has joined, and that is not on the log")
		}
		if err := s.stop(); !errors.Is(err, wal.ErrFailed) {
			t.Errorf("the Gatekeeper ended with %v", err)
		}
		s.stop = nil
	})
}

// A later Gatekeeper rules under a higher election id, and node addresses are
// never given out twice.
func TestLogged_NumbersRise(t *testing.T) {
	inLogged(t, func(s *small) {
		last := s.gk.cfg.Election
		gone := s.c.address
		s.c.leave()
		for range 3 { // within the same nanosecond, here
			s.restart()
			now := s.gk.cfg.Election
			if !last.Less(now) {
				t.Errorf("election id %v after %v", now, last)
			}
			last = now
		}
		if n := s.c.join("s2", "next"); n.address == gone || n.address == s.a.address || n.address == s.b.address {
			t.Errorf("address %s was given out before", n.address)
		}
	})
}
