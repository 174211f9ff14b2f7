package gatekeeper

import (
	"context"
	"testing"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/gatekeeper/lease"
	"github.com/bifrost-rack/bifrost/gatekeeper/p4rtclient"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// bothWays runs a test with a switch that is told of rules on the stream, and with
// one that must be asked, as any other.
func bothWays(t *testing.T, f func(s *small)) {
	t.Helper()
	for name, asks := range map[string]bool{"told": false, "asked": true} {
		t.Run(name, func(t *testing.T) {
			started(t, &rack{asks: asks}, func(r *rack) { f(newSmall(r)) })
		})
	}
}

// lend has a's region lent to b by a call and given back, and checks the rights.
func (s *small) lend(p dsmpacket.Pointer) {
	s.t.Helper()
	s.a.call("Arrays", s.a.message("Arrays", "add", p))
	call := s.b.message1()
	if a, b := s.a.may(s.m1, p), s.b.may(s.m1, p); a != "read" || b != "read" {
		s.t.Fatalf("during the call: a may %s, b %s", a, b)
	}
	s.giveBack(p, &call)
}

// giveBack has b answer a call that has lent it a's region, and checks the rights.
func (s *small) giveBack(p dsmpacket.Pointer, call *rpcpacket.Message) {
	s.t.Helper()
	s.b.reply(s.a.address, call)
	s.a.message1()
	if a, b := s.a.may(s.m1, p), s.b.may(s.m1, p); a != "read+write" || b != "nothing" {
		s.t.Fatalf("after the call: a may %s, b %s", a, b)
	}
}

// Nobody waits for the answer to a change of access rules: there are no requests for
// it, where the switch takes writes on the stream.
func TestTell(t *testing.T) {
	bothWays(t, func(s *small) {
		p := s.m1.alloc(s.a, 1, 1)
		before, rules := s.writes.Load(), s.snapshot().Counters.RulesWritten
		s.lend(p)
		if n := s.snapshot().Counters.RulesWritten - rules; n != 6 {
			t.Errorf("%d rules were written, want 6", n)
		}
		if n := s.writes.Load() - before; s.asks && n != 4 || !s.asks && n != 0 {
			t.Errorf("%d requests", n)
		}
	})
}

// Where the table might be full, the switch is asked, since it may refuse.
func TestTell_NoRoom(t *testing.T) {
	inSmall(t, func(s *small) {
		p := s.m1.alloc(s.a, 1, 1)
		s.gk.room = 3 // what a has
		before := s.writes.Load()
		s.lend(p) // never more than 3
		if n := s.writes.Load() - before; n != 0 {
			t.Errorf("%d requests where there was room", n)
		}
		q := s.m1.alloc(s.a, 1, 2)
		if n := s.writes.Load() - before; n != 1 {
			t.Errorf("%d requests where there was none, want 1", n)
		}
		s.lend(q)
		s.gk.room = 100
		before = s.writes.Load()
		s.lend(q)
		if n := s.writes.Load() - before; n != 0 {
			t.Errorf("%d requests when there was room again", n)
		}
		if n := s.reconciled(); n != 0 {
			t.Errorf("%d entries were repaired", n)
		}
	})
}

// The switch refuses what it is told, as somebody else has changed its tables: the
// session ends, and the tables are made what they should be. From then on it is asked.
func TestTell_Refused(t *testing.T) {
	inSmall(t, func(s *small) {
		p := s.m1.alloc(s.a, 1, 1)
		region, err := dsmpacket.RegionOf(p, 4096)
		if err != nil {
			t.Fatal(err)
		}
		stolen := accessEntry(lease.Rule{Node: s.b.address, Op: dsmpacket.OpRead, Region: region})
		if err := s.gk.client.Write(context.Background(), []p4rtclient.Update{{Op: p4rtclient.Insert, Entry: stolen}}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		events := s.gk.Subscribe(ctx)
		m := s.a.message("Arrays", "add", p)
		s.a.call("Arrays", m)
		if got := s.b.messages(); len(got) != 0 {
			t.Fatalf("the call was let through: %+v", got)
		}
		awaitSwitch(events)
		s.settle()
		if a, b := s.a.may(s.m1, p), s.b.may(s.m1, p); a != "read" || b != "read" {
			t.Fatalf("after the repair: a may %s, b %s", a, b)
		}
		s.a.call("Arrays", m)
		call := s.b.message1()
		before := s.writes.Load()
		s.b.reply(s.a.address, &call)
		s.a.message1()
		if n := s.writes.Load() - before; n != 2 {
			t.Errorf("%d requests after a refusal, want 2", n)
		}
		if n := s.reconciled(); n != 0 {
			t.Errorf("%d entries were repaired", n)
		}
	})
}

// A change that is asked for does not overtake one that was told before, nor the other
// way round.
func TestTell_InOrderWithRequests(t *testing.T) {
	inSmall(t, func(s *small) {
		settle := s.settle
		for i := range 40 {
			p := s.m1.alloc(s.a, 1, uint64(i)+1)
			m := s.a.message("Arrays", "add", p)
			s.settle = func() {}
			if i%2 == 1 {
				s.gk.turn.mu.Lock()
				s.gk.room = 0 // from here on it asks
				s.gk.turn.mu.Unlock()
			}
			s.a.call("Arrays", m)
			s.gk.turn.mu.Lock()
			s.gk.room = i % 2 * 1000
			s.gk.turn.mu.Unlock()
			s.settle = settle
			call := s.b.message1()
			s.giveBack(p, &call)
		}
		if n := s.reconciled(); n != 0 {
			t.Errorf("%d entries were repaired", n)
		}
	})
}
