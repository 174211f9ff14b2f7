package gatekeeper

import (
	"context"
	"net/netip"
	"reflect"
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

// holds asks for what a node's row has.
func (n *testNode) holds() control.Holdings {
	n.r.t.Helper()
	h, err := control.ReadHoldings(n.r.t.Context(), func(_ context.Context, q control.HoldingsQuery) (p control.HoldingsPage, err error) {
		q.Node, q.Incarnation = n.address, n.incarnation
		err = n.ask(control.KindHoldings, q, &p)
		return p, err
	})
	if err != nil {
		n.r.t.Fatal(err)
	}
	return h
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
			var p control.HoldingsPage
			if err := next.ask(control.KindHoldings, control.HoldingsQuery{Node: next.address, Incarnation: next.incarnation}, &p); fault.CodeOf(err) != fault.Stale {
				t.Errorf("who has heard asks again: %v", err)
			}
			pass(time.Second)
		})
	}
}
