package gatekeeper

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/frame"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

func TestLimits(t *testing.T) {
	l, err := Limits{Held: 7}.withDefaults()
	if want := DefaultLimits; err != nil || l.Held != 7 {
		t.Errorf("%+v, %v", l, err)
	} else if want.Held = 7; l != want {
		t.Errorf("%+v, want %+v", l, want)
	}
	if _, err := (Limits{Scan: -1}).withDefaults(); err == nil || !strings.Contains(err.Error(), "Limits.Scan of -1") {
		t.Errorf("a negative limit: %v", err)
	}
}

// A node has a bounded number of methods routed to it.
func TestQuota_Routes(t *testing.T) {
	inRack(t, func(r *rack) {
		s := newSmall(r)
		var methods []string
		for i := range maxMethods {
			methods = append(methods, fmt.Sprint("m", i))
		}
		exported := 0
		var err error
		for ; exported < 10 && err == nil; exported++ {
			err = s.c.export(fmt.Sprint("Squat", exported), methods...)
		}
		if exported-1 != maxRoutes/maxMethods || fault.CodeOf(err) != fault.Overloaded {
			t.Errorf("%d services of %d methods, then %v", exported-1, maxMethods, err)
		}
		if err := s.c.export("Squat0", methods...); err != nil {
			t.Errorf("what it exports already: %v", err)
		}
		if err := s.a.export("Small", "do"); err != nil {
			t.Errorf("another node: %v", err)
		}
	})
}

// A node has a bounded number of calls on record. What is beyond is refused to it, and
// not to others.
func TestQuota_Calls(t *testing.T) {
	inSmall(t, func(s *small) {
		s.gk.ctl.cfg.Limits.NodeCalls = 3
		lent := map[*testNode]dsmpacket.Pointer{s.a: s.m1.alloc(s.a, 1, 1), s.c: s.m1.alloc(s.c, 1, 2)}
		call := func(n *testNode) {
			n.at++
			n.call("Arrays", n.message("Arrays", "add", lent[n]))
		}
		for range 3 {
			call(s.a)
		}
		call(s.a)
		s.a.refused("a call beyond those on record", fault.Overloaded)
		call(s.c)
		call(s.c)
		if n := len(s.b.messages()); n != 5 {
			t.Errorf("%d calls have arrived, want 3 of one node and 2 of another", n)
		}
	})
}

// TestHostile_Answers: an answer to a call that nobody has made is refused. The one in whose name it comes makes calls, and others answer
// it.
func TestHostile_Answers(t *testing.T) {
	inLogged(t, func(s *small) {
		p := s.m1.alloc(s.a, 1, 1)
		nothing := dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, dsmpacket.IDOf(99, 1))
		forge := func(of *testNode, slot uint32) {
			m := of.message("Arrays", "make")
			of.place(m, slot, 1)
			m.CallerIncarnation = s.a.incarnation
			s.c.reply(s.a.address, m, nothing)
		}
		before := s.snapshot().Counters
		for i := range uint32(5) {
			forge(s.a, 10+i)
		}
		forge(s.c, 10)
		after := s.snapshot().Counters
		if unproven, foreign := after.Unproven-before.Unproven, after.Foreign-before.Foreign; unproven != 5 || foreign != 1 {
			t.Errorf("%d answers are refused since nobody has made the call, and %d as foreign; want 5 and 1", unproven, foreign)
		}
		s.a.take()
		call := s.a.message("Arrays", "add", p)
		s.a.call("Arrays", call)
		if got := s.b.messages(); len(got) != 1 || got[0].Call != call.Call {
			t.Errorf("of the victim's call, the callee got %+v", got)
		}
		s.a.call("Arrays", s.a.message("Arrays", "make"))
		made := s.b.message1()
		s.b.reply(s.a.address, &made, s.m1.alloc(s.b, 1, 2))
		if re := s.a.message1(); re.Type != rpcpacket.Reply {
			t.Errorf("of an honest answer, the victim got %+v", re.Header)
		}
		if err := s.gk.query(t.Context(), func(c *controller) error {
			if calls, charged := len(c.loans), c.lenders[s.c.address]; calls != 2 || charged != 0 {
				t.Errorf("of %d calls on record %d are charged to the stranger, want 2 and none", calls, charged)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	})
}

// Who owns as many names as one may own gets no more. Others do.
func TestQuota_Names(t *testing.T) {
	inSmall(t, func(s *small) {
		begin := func(n *testNode, name string) error {
			return n.ask(control.KindMain, control.BeginMain{Node: n.address, Incarnation: n.incarnation, Name: name}, nil)
		}
		var err error
		begun := 0
		for ; begun <= maxClaims && err == nil; begun++ {
			if begun%500 == 499 {
				pass(time.Second) // a port has a rate of control packets
			}
			err = begin(s.a, fmt.Sprint("m", begun))
		}
		if begun-1 != maxClaims || fault.CodeOf(err) != fault.Overloaded {
			t.Errorf("one owner has %d names, then %v", begun-1, err)
		}
		if err := begin(s.c, "another's"); err != nil {
			t.Errorf("another one: %v", err)
		}
	})
}

var errFull = errors.New("the table is full")

// refuse makes the switch refuse the first plan that is out and obey the others,
// and returns what is sent in the end.
func (s *solo) refuse(t *testing.T) []packetOut {
	t.Helper()
	out := s.take()
	if len(out.plans) != 1 {
		t.Fatalf("%d plans are out, want 1", len(out.plans))
	}
	out.plans[0].then(errFull)
	sent := out.packets
	for {
		out = s.take()
		sent = append(sent, out.packets...)
		if len(out.plans) == 0 {
			return sent
		}
		for _, p := range out.plans {
			if p.then != nil {
				p.then(nil)
			}
		}
	}
}

// A call for whose lease the switch has no room is refused, and lends nothing.
func TestFull_Call(t *testing.T) {
	s := newSolo(t)
	p := s.region(rackaddr.Node(1), 1)
	call, _ := heldPair(firstSlot, 1, 0, p)
	s.packetIn(1, reasonCall, call)
	sent := s.refuse(t)
	if len(sent) != 1 {
		t.Fatalf("%d packets were sent, want 1", len(sent))
	}
	u, err := frame.ParseUDP6(sent[0].frame)
	if err != nil {
		t.Fatal(err)
	}
	m, err := rpcpacket.Parse(u.Payload)
	if err != nil || m.Type != rpcpacket.Exception || m.Code != fault.Overloaded || u.Dst.Addr() != rackaddr.Node(1) {
		t.Errorf("sent %+v to %s, %v", m.Header, u.Dst, err)
	}
	if r, _ := s.leases.Find(p); len(r.Leases) != 0 || s.leases.Calls() != 0 {
		t.Errorf("left over: %+v", r)
	}
}

// A region for whose rules it has no room is taken back, and its client told.
func TestFull_Alloc(t *testing.T) {
	s := newSolo(t)
	p := dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, dsmpacket.IDOf(1, 1))
	h := dsmpacket.Header{Kind: dsmpacket.Reply, Status: fault.OK, Request: 7, Floor: 3, Incarnation: 1, Length: 4096}
	s.packetIn(3, reasonMemoryReply, frame.UDP6{
		Src: netip.AddrPortFrom(p.With(dsmpacket.OpAlloc).Addr(), rackaddr.PortDSM), Dst: netip.AddrPortFrom(rackaddr.Node(1), rackaddr.PortDSM), Payload: h.Append(nil),
	}.Append(nil))
	sent := s.refuse(t)
	answers := answersOf(t, sent, rackaddr.Node(1))
	want := h
	want.Status, want.Length = fault.NoSpace, 0
	if len(answers) != 1 || answers[0] != want {
		t.Errorf("the client got %+v, want %+v", answers, want)
	}
	if s.leases.Len() != 0 || s.count.Reclaims != 1 {
		t.Errorf("%d regions are left, %d reclaimed", s.leases.Len(), s.count.Reclaims)
	}
}

// answersOf are those of a memory machine that a node has got.
func answersOf(t *testing.T, sent []packetOut, node netip.Addr) (all []dsmpacket.Header) {
	t.Helper()
	for _, o := range sent {
		u, err := frame.ParseUDP6(o.frame)
		if err != nil {
			t.Fatal(err)
		}
		if a, _, err := dsmpacket.Parse(u.Payload); err == nil && u.Dst.Addr() == node {
			all = append(all, a)
		}
	}
	return all
}

// TestAllocation_NoRules: if the switch has no room for a region's rules, its node is refused the region, which goes. It stays refused whenever its answer
// comes again, also after a restart. The next one is none the worse for it.
func TestAllocation_NoRules(t *testing.T) {
	s := newSolo(t)
	node := rackaddr.Node(1)
	alloc := func(k uint64, err error) (answer dsmpacket.Header) {
		t.Helper()
		p := dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, dsmpacket.IDOf(uint32(k), 1))
		h := dsmpacket.Header{Kind: dsmpacket.Reply, Status: fault.OK, Request: k, Floor: 1, Incarnation: s.nodes[node].incarnation, Length: 4096}
		s.packetIn(3, reasonMemoryReply, frame.UDP6{
			Src: netip.AddrPortFrom(p.With(dsmpacket.OpAlloc).Addr(), rackaddr.PortDSM), Dst: netip.AddrPortFrom(node, rackaddr.PortDSM), Payload: h.Append(nil),
		}.Append(nil))
		var all []dsmpacket.Header
		for {
			out := s.take()
			all = append(all, answersOf(t, out.packets, node)...)
			if len(out.plans) == 0 {
				break
			}
			for _, p := range out.plans {
				p.then(err)
				err = nil
			}
		}
		if len(all) != 1 {
			t.Fatalf("%d answers to request %d", len(all), k)
		}
		return all[0]
	}
	if a := alloc(1, errors.New("no room")); a.Status != fault.NoSpace || s.count.Reclaims != 1 {
		t.Errorf("%+v; %d were taken back", a, s.count.Reclaims)
	}
	again := func(when string) {
		t.Helper()
		if a := alloc(1, nil); a.Status != fault.NoSpace || s.count.Reclaims != 1 {
			t.Errorf("%s: %+v; %d were taken back", when, a, s.count.Reclaims)
		}
	}
	again("it comes again")
	window := s.nodes[node].allocs
	window[1] = allocsOf(window[1].floor, window[1].kept())
	again("after a restart")
	if a := alloc(2, nil); a.Status != fault.OK {
		t.Errorf("another one: %+v", a)
	}
}

// A user of a blade has its share of the rack's nodes, and the blade has: other blades', and another user of the blade, find some.
func TestQuota_Nodes(t *testing.T) {
	c := &controller{nodes: map[netip.Addr]*node{}}
	number := uint64(0)
	greedy, other := &blade{nodes: map[netip.Addr]*node{}}, &blade{nodes: map[netip.Addr]*node{}}
	join := func(b *blade, user uint32, instance string) error {
		err := c.mayHaveNode(b, &control.Join{User: user, Instance: instance})
		if err == nil {
			number++
			n := &node{address: rackaddr.Node(number), blade: b, user: user}
			c.nodes[n.address], b.nodes[n.address] = n, n
		}
		return err
	}
	one := 0
	for ; one < maxNodes && join(greedy, 1000, "") == nil; one++ {
	}
	if one < maxNodes/2 || one > maxNodes*7/9 {
		t.Errorf("a user has %d of %d nodes", one, maxNodes)
	}
	if err := join(greedy, 1001, ""); err != nil {
		t.Errorf("another user of the blade: %v", err)
	}
	for user := uint32(2000); user < 2000+maxNodes; user++ { // as many users as the blade likes
		_ = join(greedy, user, "")
	}
	if n := len(greedy.nodes); n > maxNodes*7/8 {
		t.Errorf("a blade has %d of %d nodes", n, maxNodes)
	}
	if err := join(greedy, 1, ""); fault.CodeOf(err) != fault.Overloaded || !strings.Contains(err.Error(), "its share") {
		t.Errorf("a node too many: %v", err)
	}
	if err := join(greedy, 1000, "app/program/1"); err != nil {
		t.Errorf("a program of a deployment: %v", err)
	}
	for n := range 100 {
		if err := join(other, 1000, ""); err != nil {
			t.Fatalf("node %d of another blade: %v", n, err)
		}
	}
}
