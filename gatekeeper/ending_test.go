package gatekeeper

import (
	"slices"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// lives lets a time pass in which all blades report.
func (s *small) lives(d time.Duration) {
	s.t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); pass(100 * time.Millisecond) {
		for _, b := range []*testBlade{s.a.testBlade, s.b.testBlade, s.c.testBlade, s.m1} {
			s.beatOnce(b)
		}
	}
}

// ofType are the messages of a type among some.
func ofType(all []rpcpacket.Message, typ rpcpacket.Type) (some []rpcpacket.Message) {
	for _, m := range all {
		if m.Type == typ {
			some = append(some, m)
		}
	}
	return some
}

// has reports whether a memory blade was told to free a region.
func (b *testBlade) freed(p dsmpacket.Pointer) bool {
	b.converse()
	return slices.ContainsFunc(b.reclaimed, func(r control.RegionID) bool { return r.ID == p.ID() })
}

// forsaken reports whether a memory blade was told to take back what a node has not decided.
func (b *testBlade) forsaken(n *testNode) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.ContainsFunc(b.fenced, func(f control.Fence) bool { return f.Node == n.address && f.Forsaken })
}

// owned is the word of a region.
func (s *small) word(p dsmpacket.Pointer) (w word) {
	s.t.Helper()
	r := reading{batches: []uint32{p.ID().Batch()}}.begun()
	if err := s.gk.query(s.t.Context(), func(c *controller) error { c.hand.begin(&r); c.reach(); return nil }); err != nil {
		s.t.Fatal(err)
	}
	s.settle()
	for _, w := range r.words {
		if w.region.Slot() == p.ID().Slot() {
			return w
		}
	}
	return word{}
}

// TestEnding_AnswerComes: a node that is gone is not forgotten while a call of it is open that lends nothing: the answer brings it a region, which is freed.
func TestEnding_AnswerComes(t *testing.T) {
	inLogged(t, func(s *small) {
		brought := s.allocates(s.b, 0, 1)
		s.a.sends(rpcpacket.Call, s.b, 0, 2)
		call := s.b.arrives("a call", 1)[0]
		s.a.leave()
		s.lives(3 * time.Second)
		if s.m1.forsaken(s.a) {
			t.Error("its end has gone on while a call of it is open")
		}
		s.b.answers(s.a, &call, brought)
		s.lives(3 * time.Second)
		if !s.m1.freed(brought) || !s.m1.forsaken(s.a) {
			t.Errorf("freed: %+v, forsaken: %v", s.m1.reclaimed, s.m1.forsaken(s.a))
		}
	})
}

// TestEnding_LentOn: what a node that is gone has given away, and got back while its receiver lends it, is not taken back or freed before that ends.
func TestEnding_LentOn(t *testing.T) {
	inLogged(t, func(s *small) {
		given := s.allocates(s.a, 0, 1)
		s.a.sends(rpcpacket.Oneway, s.b, 0, 2, given)
		oneway := s.b.arrives("a one-way", 1)[0]
		s.b.sends(rpcpacket.Call, s.c, 0, 2, given)
		call := s.c.arrives("a call that lends what it has brought", 1)[0]
		declined := oneway
		declined.Type, declined.Lists, declined.CalleeIncarnation, declined.Trailer = rpcpacket.Exception, nil, s.b.incarnation, nil
		s.b.send(s.b.address, s.a.address, rackaddr.PortRPC, declined.Append(nil))
		if w := s.word(given); w.owner != s.a.row || w.lent != 1 {
			t.Fatalf("what was given back: owner %d, lent %d", w.owner, w.lent)
		}
		s.a.leave()
		s.lives(3 * time.Second)
		if s.m1.forsaken(s.a) || s.m1.freed(given) {
			t.Errorf("forsaken: %v, freed: %+v, while it is lent", s.m1.forsaken(s.a), s.m1.reclaimed)
		}
		s.c.answers(s.b, &call)
		s.lives(3 * time.Second)
		if !s.m1.forsaken(s.a) || !s.m1.freed(given) {
			t.Errorf("forsaken: %v, freed: %+v", s.m1.forsaken(s.a), s.m1.reclaimed)
		}
	})
}

// TestEnding_LateAllocation: memory's answer to a node that is gone gives it no region: its control rules are off as long as its end takes.
func TestEnding_LateAllocation(t *testing.T) {
	inLogged(t, func(s *small) {
		kept := s.allocates(s.a, 0, 1)
		late := dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, kept.ID()+1<<dsmpacket.GenerationBits)
		s.a.memory(dsmpacket.OpAlloc, late)
		s.a.sends(rpcpacket.Call, s.b, 0, 2)
		call := s.b.arrives("a call", 1)[0]
		s.a.leave()
		s.lives(time.Second)
		if ops := s.m1.serve(); len(ops) != 1 || ops[0] != dsmpacket.OpAlloc {
			t.Fatalf("the memory blade got %v", ops)
		}
		if kept, late := s.word(kept), s.word(late); kept.owner != s.a.row || late.owner != 0 {
			t.Errorf("the node's region is that of row %d, one that was allocated too late that of row %d", kept.owner, late.owner)
		}
		s.b.answers(s.a, &call)
		s.lives(3 * time.Second)
		if !s.m1.freed(kept) {
			t.Errorf("freed: %+v", s.m1.reclaimed)
		}
	})
}

// TestEnding_MemoryIsSlow: no region of a node that is gone is freed before memory has taken back what the node had not decided.
func TestEnding_MemoryIsSlow(t *testing.T) {
	inLogged(t, func(s *small) {
		kept := s.allocates(s.a, 0, 1)
		s.a.sends(rpcpacket.Call, s.b, 0, 2)
		call := s.b.arrives("a call", 1)[0]
		s.a.leave()
		s.lives(time.Second)
		s.m1.fencing(false)
		s.b.answers(s.a, &call)
		s.lives(2 * time.Second)
		if w := s.word(kept); s.m1.freed(kept) || w.owner != s.a.row {
			t.Errorf("memory has not taken back yet, and the region is that of row %d; freed: %+v", w.owner, s.m1.reclaimed)
		}
		s.m1.fencing(true)
		s.lives(3 * time.Second)
		if !s.m1.freed(kept) || !s.m1.forsaken(s.a) {
			t.Errorf("freed: %+v, forsaken: %v", s.m1.reclaimed, s.m1.forsaken(s.a))
		}
	})
}

// TestEnding: of a node that is gone for good the calls to it fail, those that it has made are asked about until they are answered, and then what it owned is freed. Its row is
// another node's after that.
func TestEnding(t *testing.T) {
	for _, restarts := range []bool{false, true} {
		inLogged(t, func(s *small) {
			lent, kept := s.allocates(s.a, 0, 1), s.allocates(s.a, 1, 1)
			theirs, given := s.allocates(s.c, 0, 1), s.allocates(s.c, 1, 1)
			out := s.a.sends(rpcpacket.Call, s.b, 0, 2, lent)
			call := s.b.arrives("a call that lends", 1)[0]
			in := s.c.sends(rpcpacket.Call, s.a, 0, 2, theirs)
			oneway := s.c.sends(rpcpacket.Oneway, s.a, 1, 2, given)
			s.a.arrives("two calls to it", 2)
			s.m1.unsettled = control.Fenced{Regions: []control.RegionID{{ID: kept.ID() + 1<<dsmpacket.GenerationBits<<3, Class: 12, Owner: s.a.address}}}
			s.a.leave()
			s.lives(time.Second)
			if restarts {
				s.restart()
				s.lives(time.Second)
			}

			s.c.take()
			again := *in
			s.c.send(s.c.address, s.a.address, rackaddr.PortDirect, again.Append(nil))
			if got := s.c.arrives("a copy of the call to it", 1)[0]; got.Turned != rpcpacket.Gone {
				t.Errorf("a call to who is gone is turned around as %v", got.Turned)
			}
			if w := s.word(theirs); w.owner != s.c.row || w.lent != 0 {
				t.Errorf("what was lent to it: owner %d, lent %d", w.owner, w.lent)
			}
			if w := s.word(given); w.owner != s.c.row {
				t.Errorf("what was on its way to it is owned by row %d", w.owner)
			}
			again = *oneway
			again.Number += 2
			s.c.send(s.c.address, s.a.address, rackaddr.PortDirect, again.Append(nil))
			if got := s.c.arrives("a new one-way to it", 1)[0]; got.Turned != rpcpacket.NeverBegun {
				t.Errorf("a new call to who is gone is turned around as %v", got.Turned)
			}

			asked := ofType(s.b.messages(), rpcpacket.Ask)
			if len(asked) < 2 {
				t.Fatalf("its callee was asked %d times", len(asked))
			}
			q := asked[0]
			if q.Slot != out.Slot || q.Number != out.Number || q.CallerIncarnation <= s.a.incarnation || q.Flags&rpcpacket.FlagReleased == 0 || !q.Call.IsZero() {
				t.Errorf("the question is %+v", q.Header)
			}
			if s.m1.freed(kept) || s.m1.freed(lent) || s.m1.forsaken(s.a) {
				t.Error("its regions are freed while they are lent")
			}
			s.b.answers(s.a, &call)
			s.lives(2 * time.Second)
			made := dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, kept.ID()+1<<dsmpacket.GenerationBits<<3)
			if !s.m1.freed(kept) || !s.m1.freed(lent) || !s.m1.freed(made) || s.m1.freed(theirs) || !s.m1.forsaken(s.a) {
				t.Errorf("freed: %+v, forsaken: %v", s.m1.reclaimed, s.m1.forsaken(s.a))
			}
			if w := s.word(kept); w.owner != 0 {
				t.Errorf("its region is owned by row %d", w.owner)
			}
			s.lives(3 * time.Second)
			if err := s.gk.query(t.Context(), func(c *controller) error {
				if n := len(c.endings) + len(c.resting) + len(c.fallen); n > 0 || c.rows.of[s.a.row].IsValid() {
					t.Errorf("%d nodes are ending, its row is that of %s", n, c.rows.of[s.a.row])
				}
				for key, e := range c.base {
					if e.Table == "block_rule" && e.Match[0] == blockEntry(s.a.row, 1).Match[0] || e.Table == "control_rule" && e.Match[0] == blockEntry(s.a.row, 1).Match[0] {
						t.Errorf("a rule is left: %s", key)
					}
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			s.restart()
			s.lives(time.Second)
			if n := s.a.join("c1", "other"); n.row == s.a.row {
				t.Error("its row is given out again at once")
			}
		})
	}
}
