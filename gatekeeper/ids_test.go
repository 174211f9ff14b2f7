package gatekeeper

import (
	"context"
	"testing"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// A node lends nothing under an id that another node will use: not as a call of a session
// of somebody else, and not as one that some execution makes whose key the node does not have. The true calls run (row 2).
func TestForeignIDs_Direct(t *testing.T) {
	inLoans(t, func(s *small, p dsmpacket.Pointer) {
		if err := s.c.export("Third", "do"); err != nil {
			t.Fatal(err)
		}
		own := s.m1.alloc(s.c, 1, 2)
		lend := func(m *rpcpacket.Message, origin []byte) {
			proven := *m
			proven.Trailer, proven.CallerIncarnation, proven.Lists = origin, s.c.incarnation, rpcpacket.ListsOf(own)
			proven.Number = rpcpacket.NumberOf(s.c.incarnation, m.Number.Count())
			s.c.send(s.c.address, s.b.address, rackaddr.PortRPC, proven.Append(nil))
		}
		next := s.a.exact("Arrays", "add", p)
		refused := 0
		for what, change := range map[string]func(*rpcpacket.Message) (origin []byte){
			"of another's slot":               func(m *rpcpacket.Message) []byte { return s.c.origin(m) },
			"of another's slot, and no proof": func(*rpcpacket.Message) []byte { return nil },
			"of another's, in a slot of its own": func(m *rpcpacket.Message) []byte {
				id := m.Call
				s.c.place(m, 1, 1)
				m.Call = id
				return s.c.origin(m)
			},
			"of another service's execution": func(m *rpcpacket.Message) []byte {
				m.Parent, m.Call = m.Call, childOf("Others", m.Call, 0)
				s.c.place(m, 1, 1)
				return originOf("Arrays", m)
			},
			"of an execution, with another policy": func(m *rpcpacket.Message) []byte {
				m.Parent, m.Call = m.Call, childOf("Third", m.Call, 0)
				s.c.place(m, 1, 1)
				origin := originOf("Third", m)
				m.Flags = m.Flags.WithPolicy(rpcpacket.PolicyFateShare)
				return origin
			},
		} {
			stolen := *next
			lend(&stolen, change(&stolen))
			s.c.refused("an id "+what, fault.BadRequest)
			quiet("an id "+what, s.b)
			refused++
			if n := s.snapshot().Counters.Foreign; n != uint64(refused) {
				t.Errorf("%s: %d foreign ids are counted, want %d", what, n, refused)
			}
		}
		s.gk.ctl.cfg.ShareExports = false
		others := *next
		others.Parent, others.Call = others.Call, childOf("Arrays", others.Call, 0)
		s.c.place(&others, 1, 1)
		lend(&others, originOf("Arrays", &others))
		s.c.refused("an execution whose service is another program's", fault.BadRequest)
		s.gk.ctl.cfg.ShareExports = true
		refused++
		s.a.lend(s.b, next)
		s.got("the true call", next, "read")
		s.c.forget(next.Call)
		if n := s.snapshot().Counters.Foreign; n != uint64(refused)+1 {
			t.Errorf("a word about another's call: %d are counted as foreign", n)
		}
		s.may("another's word", p, "read")
		s.onRecord(1)
	})
}

// Who has seen the id of a call does not use the next ids of its slot: the true calls run (row 2 of docs/security.md).
func TestForeignIDs(t *testing.T) {
	inLogged(t, func(s *small) {
		next := s.a.message("Arrays", "add", s.m1.alloc(s.a, 1, 1))
		for what, change := range map[string]func(*rpcpacket.Message){
			"another's slot": func(m *rpcpacket.Message) { m.Number = rpcpacket.NumberOf(s.c.incarnation, 9) },
			"an execution's id": func(m *rpcpacket.Message) {
				s.c.place(m, 1, 1)
				m.Call = endpoint.ChildID(nil, m.Call, 0, 1)
			},
		} {
			stolen := *next
			stolen.CallerIncarnation, stolen.Flags = s.c.incarnation, next.Flags|rpcpacket.FlagHeld
			change(&stolen)
			s.c.call("Arrays", &stolen)
			s.c.refused(what, fault.BadRequest)
		}
		s.a.call("Arrays", next)
		if got := s.b.message1(); got.Call != next.Call || got.Type != rpcpacket.Call {
			t.Errorf("the true call became %+v", got.Header)
		}
		if n := s.snapshot().Counters.Foreign; n != 2 {
			t.Errorf("%d foreign ids are counted, want 2", n)
		}
		drops, err := s.gk.Drops(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range drops { // each is counted at the port that has caused it
			if want := map[uint16]uint64{s.c.port: 2}[d.Port]; d.Refused["foreign"] != want {
				t.Errorf("port %d of %s: %v, want %d foreign", d.Port, d.Blade, d.Refused, want)
			}
		}
	})
}
