package gatekeeper

import (
	"encoding/json"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/resolve"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// looksUp sends the requests of a node's blade for the servers of a method, and returns how many were routed to the blade of
// another node, and what the Gatekeeper has answered.
func (n *testNode) looksUp(q control.Serving, at *testNode) (routed int, list *control.ServingList) {
	t := n.r.t
	t.Helper()
	l, err := resolve.New(q, rand.Uint64)
	if err != nil {
		t.Fatal(err)
	}
	at.take()
	n.take()
	sent := 0
	for b := range l.Requests() {
		n.send(n.addr, l.Service(), rackaddr.PortRPC, b)
		sent++
	}
	arrived := at.take()
	if at.testBlade != n.testBlade {
		arrived = append(arrived, n.take()...)
	}
	for _, u := range arrived {
		if u.Dst.Addr() == l.Service() {
			routed++
			continue
		}
		m, err := rpcpacket.Parse(u.Payload)
		var a resolve.Answer
		if err != nil || u.Src.Addr() != rackaddr.Gatekeeper || resolve.KeyOf(m.Call) != l.Key() || json.Unmarshal(m.Payload, &a) != nil || a.List == nil {
			t.Fatalf("%s has sent %+v: %v", u.Src, m, err)
		}
		if list = a.List; routed > 0 {
			t.Errorf("%d of %d requests are routed, and the Gatekeeper answers %+v", routed, sent, list)
		}
	}
	return routed, list
}

// TestResolve: the switch has a request for the servers of a method carried to a node that serves it. Of a method that nobody serves the
// Gatekeeper says who has the service, who is to come back, or that nobody is.
func TestResolve(t *testing.T) {
	inSmall(t, func(s *small) {
		m := control.Serving{Service: "S", Method: "m", AtMostOnce: true}
		if _, list := s.a.looksUp(m, s.b); list == nil || len(list.Nodes) > 0 || list.Why == "" {
			t.Errorf("nobody exports it: %+v", list)
		}
		if err := s.b.export("S", "m"); err != nil {
			t.Fatal(err)
		}
		if routed, list := s.a.looksUp(m, s.b); routed != 4 {
			t.Errorf("%d requests go to the node that exports it; %+v", routed, list)
		}
		if _, list := s.a.looksUp(control.Serving{Service: "S", Method: "other", AtMostOnce: true}, s.b); list == nil || len(list.Nodes) != 1 ||
			list.Nodes[0] != s.b.address || list.Incarnations[0] != s.b.incarnation || list.Awaited {
			t.Errorf("a method that it has not told: %+v", list)
		}
		s.b.leave()
		if routed, list := s.a.looksUp(m, s.b); routed > 0 || list == nil || len(list.Nodes) > 0 || list.Why == "" {
			t.Errorf("it has left, %d requests go there: %+v", routed, list)
		}
	})
}

// TestResolve_State: a node whose service has state is found the same way.
func TestResolve_State(t *testing.T) {
	withLedgers(t, func(r *rack, c1, m1 *testBlade) {
		m1.hello("m1", control.Memory)
		has := c1.joined("c1")
		e := control.Export{Node: has.Address, Incarnation: 1, Service: "Counter", Stateful: true, Methods: []control.Method{{Name: "add"}}}
		if err := c1.ask(control.KindExport, e, nil); err != nil {
			t.Fatal(err)
		}
		n := &testNode{testBlade: c1, address: has.Address, incarnation: 1}
		if routed, list := n.looksUp(control.Serving{Service: "Counter", Method: "add"}, n); routed != 4 {
			t.Errorf("%d requests go to its node: %+v", routed, list)
		}
	})
}

// TestDrain_Named: a node that finishes its calls waits while callers may know of it: its blade's heartbeats say when they were last told,
// and one has to have come since the switch has no route to it.
func TestDrain_Named(t *testing.T) {
	inSmall(t, func(s *small) {
		for _, n := range []*testNode{s.b, s.c} {
			if err := n.export("S", "m"); err != nil {
				t.Fatal(err)
			}
		}
		waits := func(what string, since time.Duration, moves, want bool) {
			t.Helper()
			if err := s.gk.query(t.Context(), func(c *controller) error {
				n := c.nodes[s.b.address]
				n.moves = moves
				if got := c.stillCalled(&draining{node: n, unrouted: n.blade.heard.Add(-since)}); got != want {
					t.Errorf("%s: it waits: %v", what, got)
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		}
		beat := func(named, bound uint32) {
			t.Helper()
			h := control.Heartbeat{
				Blade: s.b.name, Boot: s.b.boot, Token: s.b.tokens, Nodes: []netip.Addr{s.b.address}, Incarnations: []uint32{s.b.incarnation},
				Named: []uint32{named}, Bound: []uint32{bound},
			}
			if err := s.b.ask(control.KindHeartbeat, h, nil); err != nil {
				t.Fatal(err)
			}
		}
		beat(0, 0)
		waits("nobody was told", time.Second, false, false)
		waits("nothing was heard since", -time.Second, false, true)
		beat(uint32(knownFor.Milliseconds())+2, 0)
		waits("somebody was told long ago", time.Second, false, false)
		beat(2, 0)
		waits("somebody was told just now", time.Second, false, true)
		waits("and the node moves", time.Second, true, false)
		beat(2, 2)
		waits("so was a caller of policy none", time.Second, true, true)
	})
}
