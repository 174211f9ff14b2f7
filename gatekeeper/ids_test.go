package gatekeeper

import (
	"context"
	"testing"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"

	"github.com/bifrost-rack/bifrost/rpc/endpoint"
)

// A callee hands no call over under an id that another node will use: not as a call of a session
// of somebody else, and not as one that some execution has made. The true calls run (row 2).
func TestForeignIDs_HandedOver(t *testing.T) {
	inSmallLog(t, func(s *small) {
		third := func(of *rpcpacket.Message) *rpcpacket.Message {
			m := *of
			m.Service, m.Method = serviceHash(rackaddr.Service("Third")), s.c.message("Third", "do").Method
			return &m
		}
		for what, change := range map[string]func(*rpcpacket.Message){
			"of another's session":                    func(*rpcpacket.Message) {},
			"of a session, said to be an execution's": func(m *rpcpacket.Message) { m.Flags &^= rpcpacket.FlagSession },
			"of another service's execution": func(m *rpcpacket.Message) {
				m.Flags, m.Parent, m.Call = m.Flags&^rpcpacket.FlagSession, m.Call, childOf("Others", m.Call, 0)
			},
		} {
			next := s.a.exact("Arrays", "add")
			stolen := third(next)
			change(stolen)
			by := s.c
			if stolen.Flags&rpcpacket.FlagSession == 0 {
				by = s.a // who is said to have called does not matter
			}
			s.c.handOver(by, stolen)
			s.c.refused("an id "+what, fault.BadRequest)
			s.arrives(what, next)
		}
		if n := s.snapshot().Counters; n.Unproven != 3 || n.Foreign != 0 {
			t.Errorf("%d unproven and %d foreign ids are counted, want 3 and 0", n.Unproven, n.Foreign)
		}
		// Whoever serves a call may say by which policy, and whoever has a key who has called: a caller that shares its
		// callee's fate is started anew when that ends.
		shared := third(s.a.exact("Arrays", "add"))
		origin := s.a.origin(shared)
		shared.Flags = shared.Flags.WithPolicy(rpcpacket.PolicyFateShare)
		s.c.handOverAs(s.a, shared, origin)
		s.c.refused("a call whose caller has said another policy", fault.BadRequest)
		shared.Flags, shared.Parent = shared.Flags&^rpcpacket.FlagSession, shared.Call
		shared.Call = childOf("Third", shared.Parent, 0)
		s.gk.ctl.cfg.ShareExports = false
		if err := s.c.export("Third", "do"); err != nil {
			t.Fatal(err)
		}
		s.c.handOverAs(s.b, shared, originOf("Third", shared))
		s.c.refused("a call that is said to be another node's", fault.BadRequest)
		if n := s.snapshot().Counters.Unproven; n != 5 {
			t.Errorf("%d unproven calls are counted, want 5", n)
		}
		s.c.handOverAs(s.c, shared, originOf("Third", shared)) // its own call of itself
		s.gk.ctl.cfg.ShareExports = true
		shared.Flags |= rpcpacket.FlagSession
		shared.Call = rpcpacket.SessionID(rpcpacket.SessionOf(s.a.address, 9), 1)
		s.c.handOver(s.a, shared)

		handed := third(s.a.exact("Arrays", "add"))
		s.c.handOver(s.a, handed)
		s.b.forget(handed.Call)
		if n := s.snapshot().Counters; n.Foreign != 1 || n.Calls == 0 {
			t.Errorf("%d words about another's call are counted as foreign, want 1", n.Foreign)
		}
		var known bool
		if err := s.gk.query(t.Context(), func(c *controller) error { _, known = c.table.View(handed.Call); return nil }); err != nil || !known {
			t.Errorf("another's word has a call forgotten: %v", err)
		}
		own := third(s.a.exact("Arrays", "add"))
		own.Flags, own.Parent, own.Call = own.Flags&^rpcpacket.FlagSession, own.Call, childOf("Arrays", own.Call, 0)
		s.c.handOver(s.b, own)
		for _, m := range s.c.messages() {
			if m.Type != rpcpacket.Ack {
				t.Errorf("a call of its own caller, and one of an execution: %+v", m)
			}
		}
	})
}

// Who has seen the id of a call uses neither the next ids of that session nor those of
// the calls that the same execution makes: the true calls run (row 2 of docs/security.md).
func TestForeignIDs(t *testing.T) {
	inLogged(t, func(s *small) {
		if err := s.c.export("Third", "do"); err != nil {
			t.Fatal(err)
		}
		first := s.a.exact("Arrays", "add")
		s.a.call("Arrays", first)
		s.b.message1()
		nest := func(index uint32) *rpcpacket.Message {
			m := s.b.exact("Third", "do")
			m.Flags, m.Floor, m.Parent, m.Index = rpcpacket.FlagHeld.WithPolicy(rpcpacket.PolicyRecover), 0, first.Call, index
			m.Call = childOf("Arrays", first.Call, index)
			return m
		}
		s.b.call("Third", nest(0))
		given := s.c.message1() // so the third knows its caller's execution and session

		unkeyed := nest(1)
		unkeyed.Call = endpoint.ChildID(nil, first.Call, 0, 1)
		s.b.call("Third", unkeyed)
		s.b.refused("an id that everybody can compute", fault.BadRequest)

		sibling := nest(1)
		sibling.Parent, sibling.CallerIncarnation = given.Call, s.c.incarnation
		s.c.call("Third", sibling)
		s.c.refused("a sibling's id", fault.BadRequest)
		s.b.call("Third", nest(1))
		if got := s.c.message1(); got.Type != rpcpacket.Call || got.Call != sibling.Call {
			t.Errorf("the true call became %+v", got.Header)
		}

		for what, next := range map[string]*rpcpacket.Message{"exactly once": s.a.exact("Arrays", "add"), "policy none": s.a.message("Arrays", "add", s.m1.alloc(s.a, 1, 1))} {
			stolen := *next
			stolen.CallerIncarnation, stolen.Pointers, stolen.Flags = s.c.incarnation, nil, next.Flags|rpcpacket.FlagHeld
			s.c.call("Arrays", &stolen)
			s.c.refused("an id of another's session, "+what, fault.BadRequest)
			s.arrives(what, next)
		}
		if n := s.snapshot().Counters.Foreign; n != 4 {
			t.Errorf("%d foreign ids are counted, want 4", n)
		}
		drops, err := s.gk.Drops(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range drops { // each is counted at the port that has caused it
			if want := map[uint16]uint64{s.b.port: 1, s.c.port: 3}[d.Port]; d.Refused["foreign"] != want {
				t.Errorf("port %d of %s: %v, want %d foreign", d.Port, d.Blade, d.Refused, want)
			}
		}
	})
}

// arrives has a make a call whose id somebody has tried to use, and checks that b gets it.
func (s *small) arrives(what string, next *rpcpacket.Message) {
	s.t.Helper()
	s.a.call("Arrays", next)
	if got := s.b.message1(); got.Call != next.Call || got.Type != rpcpacket.Call {
		s.t.Errorf("%s: the true call became %+v", what, got.Header)
	}
}
