package gatekeeper

import (
	"context"
	"encoding/json"
	"net/netip"
	"reflect"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// sends makes a message of a node to another one, in the slot i of the first one, and sends it.
func (n *testNode) sends(typ rpcpacket.Type, to *testNode, i uint32, count uint64, ps ...dsmpacket.Pointer) *rpcpacket.Message {
	n.r.t.Helper()
	m := n.message("Arrays", "add", ps...)
	m.Type, m.CalleeIncarnation = typ, to.incarnation
	n.place(m, i, count)
	n.send(n.address, to.address, rackaddr.PortDirect, m.Append(nil))
	return m
}

// answers answers a message that a node has got from another one.
func (n *testNode) answers(to *testNode, m *rpcpacket.Message, results ...dsmpacket.Pointer) {
	n.r.t.Helper()
	a := *m
	a.Type, a.Lists, a.CalleeIncarnation, a.Trailer = rpcpacket.Reply, rpcpacket.ListsOf(results...), n.incarnation, nil
	n.send(n.address, to.address, rackaddr.PortRPC, a.Append(nil))
}

// arrives checks how many messages have arrived at a node.
func (n *testNode) arrives(what string, want int) []rpcpacket.Message {
	n.r.t.Helper()
	got := n.messages()
	if len(got) != want {
		n.r.t.Fatalf("%s: %d messages have arrived at %s, want %d", what, len(got), n.address, want)
	}
	return got
}

// keep has a node keep something, so that it comes back when its program crashes.
func (n *testNode) keep() {
	n.r.t.Helper()
	e := control.Export{Node: n.address, Incarnation: n.incarnation, Service: "Counter", Stateful: true, Methods: []control.Method{{Name: "add"}}}
	if err := n.ask(control.KindExport, e, nil); err != nil {
		n.r.t.Fatal(err)
	}
}

// crash ends a node without a goodbye.
func (n *testNode) crashes() {
	n.r.t.Helper()
	if err := n.ask(control.KindLeave, control.Leave{Node: n.address, Incarnation: n.incarnation, Crashed: true}, nil); err != nil {
		n.r.t.Fatal(err)
	}
}

// holds asks for what a node's row had when it joined.
func (n *testNode) holds() control.Holdings { return n.asksHoldings(false) }

// asksHoldings asks for what a node's row had when it joined, or has now.
func (n *testNode) asksHoldings(now bool) control.Holdings {
	n.r.t.Helper()
	h, err := control.ReadHoldings(n.r.t.Context(), now, func(_ context.Context, q control.HoldingsQuery) (p control.HoldingsPage, err error) {
		q.Node, q.Incarnation = n.address, n.incarnation
		err = n.ask(control.KindHoldings, q, &p)
		return p, err
	})
	if err != nil {
		n.r.t.Fatal(err)
	}
	return h
}

// TestFenced_GatekeeperDies: a memory blade names a region when a node is fenced that the switch does not know. It is freed, whichever of its commits the Gatekeeper
// dies at: the node does not come back before that is on the log.
func TestFenced_GatekeeperDies(t *testing.T) {
	for at := range 4 {
		inLogged(t, func(s *small) {
			s.m1.converse()
			s.a.keep()
			kept := s.allocates(s.a, 0, 1)
			made := dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, dsmpacket.IDOf(kept.ID().Slot()+9, 1))
			s.m1.unsettled = control.Fenced{Regions: []control.RegionID{{ID: made.ID(), Class: 12, Owner: s.a.address}}}
			s.m1.unfencing = true
			leave := control.Leave{Node: s.a.address, Incarnation: s.a.incarnation, Crashed: true}
			if err := s.a.ask(control.KindLeave, leave, nil); err != nil {
				t.Fatal(err)
			}
			var commits atomic.Int32
			s.disk.Pause = func() time.Duration {
				if int(commits.Add(1)) > at {
					return time.Hour
				}
				return 0
			}
			s.m1.mu.Lock()
			s.m1.unfencing = false // its identity has gone by now
			s.m1.mu.Unlock()
			pass(time.Second)
			if len(s.m1.fences()) != 1 {
				t.Fatalf("after %d commits the blade was asked %d times", at, len(s.m1.fences()))
			}
			s.crash()
			s.disk.Pause = nil
			s.start(Config{})
			pass(time.Second)
			if !s.m1.freed(made) {
				t.Errorf("after %d commits: the region is not freed", at)
			}
		})
	}
}

// TestHoldings: the next incarnation of a node is told its slots, and what it owns, without what is on its way to it; also when the Gatekeeper has
// restarted. A first incarnation is told nothing.
func TestHoldings(t *testing.T) {
	for _, restarts := range []bool{false, true} {
		inLogged(t, func(s *small) {
			s.m1.converse()
			s.a.keep()
			if h := s.a.holds(); !reflect.DeepEqual(h, control.Holdings{}) {
				t.Errorf("a first incarnation holds %+v", h)
			}
			kept, lent, gone := s.allocates(s.a, 0, 1), s.allocates(s.a, 1, 1), s.allocates(s.a, 2, 1)
			brought, coming := s.allocates(s.b, 0, 1), s.allocates(s.b, 1, 1)
			open := s.a.sends(rpcpacket.Call, s.b, 0, 2, lent)
			s.b.arrives("a call that lends", 1)
			s.a.sends(rpcpacket.Oneway, s.c, 1, 2, gone)
			oneway := s.c.arrives("a one-way", 1)[0]
			s.c.answers(s.a, &oneway)
			s.a.arrives("its answer", 1)
			s.a.sends(rpcpacket.Call, s.b, 2, 2)
			call := s.b.arrives("a call", 1)[0]
			s.b.answers(s.a, &call, brought)
			s.a.arrives("an answer with a region", 1)
			s.b.sends(rpcpacket.Oneway, s.a, 0, 2, coming)
			made, again := dsmpacket.IDOf(kept.ID().Slot()+9, 1), gone.ID()+1 // the receiver has freed it, and the slot has its next region
			asked := made + 1<<dsmpacket.GenerationBits                       // an execution's next run asks for it
			s.m1.unsettled = control.Fenced{Regions: []control.RegionID{
				{ID: made, Class: 12, Owner: s.a.address}, {ID: again, Class: 12, Owner: s.a.address}, {ID: kept.ID(), Class: 12, Owner: s.a.address}, {ID: asked, Class: 12, Owner: s.a.address, Execution: control.ExecutionID{1}},
			}}
			s.a.crashes()
			s.m1.converse()
			next := s.a.join("c1", "program")
			if next.address != s.a.address || next.row != s.a.row || next.incarnation <= s.a.incarnation {
				t.Fatalf("node %s, row %d, incarnation %d", next.address, next.row, next.incarnation)
			}
			if err := s.gk.query(t.Context(), func(c *controller) error {
				if h := c.nodes[next.address].held; h == nil || h.stage != holdRead {
					t.Error("the node's packets pass before it is read what its row has")
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			if restarts {
				s.restart()
			}
			want := control.Holdings{
				Slots: []control.HeldSlot{
					{Slot: uint32(open.Slot), Number: uint64(open.Number), Callee: s.b.address, State: control.SlotOpen, Regions: []netip.Addr{lent.Addr()}},
					{Slot: uint32(oneway.Slot), Number: uint64(oneway.Number), Callee: s.c.address, State: control.SlotClosed, Given: true},
					{Slot: uint32(call.Slot), Number: uint64(call.Number), Callee: s.b.address, State: control.SlotClosed},
				},
				Regions: []netip.Addr{kept.Addr(), lent.Addr(), brought.Addr()},
			}
			var p control.HoldingsPage
			if err := next.ask(control.KindHoldings, control.HoldingsQuery{Node: next.address, Incarnation: next.incarnation, Now: true}, &p); fault.CodeOf(err) != fault.BadRequest {
				t.Errorf("who has not heard what it had asks what it has: %v", err)
			}
			if h := next.holds(); !reflect.DeepEqual(h, want) {
				t.Errorf("restarts: %v: the node is told %+v, want %+v", restarts, h, want)
			}
			for _, id := range []dsmpacket.RegionID{made, again} {
				if p := dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, id); !s.m1.freed(p) {
					t.Errorf("%v is not freed, which memory has made, and the switch does not know", p)
				}
			}
			if s.m1.freed(kept) || s.m1.freed(gone) {
				t.Error("what the switch knows is freed")
			}
			if s.m1.freed(dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, asked)) {
				t.Error("what an execution has allocated is freed")
			}
			if !s.mayWrite(next, kept) || s.mayWrite(s.a, kept) {
				t.Error("the next incarnation may write, and no former one")
			}
			if err := next.ask(control.KindHoldings, control.HoldingsQuery{Node: next.address, Incarnation: next.incarnation}, &p); fault.CodeOf(err) != fault.Stale {
				t.Errorf("who has heard asks again: %v", err)
			}
			pass(time.Second)
		})
	}
}

// TestHoldings_Now: a node that runs is told what it owns, without what is on its way to it, each time anew; also when the Gatekeeper has restarted, or
// the registers were rebuilt while it waits.
func TestHoldings_Now(t *testing.T) {
	inLogged(t, func(s *small) {
		kept, brought, coming := s.allocates(s.a, 0, 1), s.allocates(s.b, 0, 1), s.allocates(s.b, 1, 1)
		s.a.sends(rpcpacket.Call, s.b, 0, 2, kept)
		s.b.arrives("a call that lends", 1)
		s.b.sends(rpcpacket.Oneway, s.a, 0, 2, coming)
		oneway := s.a.arrives("a one-way", 1)[0]
		owns := func(what string, want ...dsmpacket.Pointer) {
			t.Helper()
			var all control.Holdings
			for _, p := range want {
				all.Regions = append(all.Regions, p.Addr())
			}
			s.lives(listEvery)
			if h := s.a.asksHoldings(true); !reflect.DeepEqual(h, all) {
				t.Errorf("%s: the node owns %+v, want %+v", what, h, all)
			}
		}
		owns("at first", kept)
		s.a.answers(s.b, &oneway)
		s.b.arrives("the one-way's answer", 1)
		owns("a one-way has come", kept, coming)
		s.restart()
		s.a.sends(rpcpacket.Call, s.b, 2, 2)
		call := s.b.arrives("a call", 1)[0]
		s.b.answers(s.a, &call, brought)
		owns("an answer has brought a region", kept, brought, coming)
		s.lives(listEvery)
		var p control.HoldingsPage
		if err := s.a.ask(control.KindHoldings, control.HoldingsQuery{Node: s.a.address, Incarnation: s.a.incarnation, Now: true}, &p); err != nil || len(p.Regions) != 3 {
			t.Errorf("%v: %+v", err, p)
		}
		s.a.sends(rpcpacket.Oneway, s.b, 3, 2, brought)
		owns("the last list was not heard", kept, coming)
	})
}

// TestHoldings_Together: those who ask within a second what they own are read for together, however often they ask.
func TestHoldings_Together(t *testing.T) {
	inLogged(t, func(s *small) {
		p := s.allocates(s.a, 0, 1)
		read := func() (n uint32) {
			if err := s.gk.query(t.Context(), func(c *controller) error { n = c.hand.tag; return nil }); err != nil {
				t.Fatal(err)
			}
			return n
		}
		was := read()
		s.a.asksHoldings(true)
		one := read() - was
		was = read()
		all := []*testNode{s.a, s.b, s.c}
		for _, n := range append(all, s.a) {
			if err := n.ask(control.KindHoldings, control.HoldingsQuery{Node: n.address, Incarnation: n.incarnation, Now: true}, nil); err == nil || err.Error() != "no reply to holdings" {
				t.Errorf("node %s is answered at once: %v", n.address, err)
			}
		}
		if n := read() - was; n != 0 || one == 0 {
			t.Errorf("%d operations before it is time, and %d for one node", n, one)
		}
		pass(listEvery)
		for i, n := range all {
			replies := n.converse()
			if want := 1 + len(all[i:])/len(all); len(replies) != want {
				t.Errorf("node %s: %d answers, want %d", n.address, len(replies), want)
			}
			for _, m := range replies {
				var h control.HoldingsPage
				if err := json.Unmarshal(m.Body, &h); err != nil || (len(h.Regions) == 1 && h.Regions[0] == p.Addr()) != (n == s.a) {
					t.Errorf("node %s owns %+v, %v", n.address, h, err)
				}
			}
		}
		if n := read() - was; n/one != 1 { // a probe may be among them
			t.Errorf("three nodes ask at once: %d operations, one takes %d", n, one)
		}
	})
}
