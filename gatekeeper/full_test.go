package gatekeeper

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/frame"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

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
	call, _ := heldPair(1, 1, 0, p)
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
	p := dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, 1<<12)
	h := dsmpacket.Header{Kind: dsmpacket.Reply, Status: fault.OK, Request: 7, Floor: 3, Incarnation: 1, Length: 4096}
	s.packetIn(3, reasonMemoryReply, frame.UDP6{
		Src: netip.AddrPortFrom(p.With(dsmpacket.OpAlloc, 12).Addr(), rackaddr.PortDSM), Dst: netip.AddrPortFrom(rackaddr.Node(1), rackaddr.PortDSM), Payload: h.Append(nil),
	}.Append(nil))
	sent := s.refuse(t)
	var answers []dsmpacket.Header
	for _, o := range sent {
		u, err := frame.ParseUDP6(o.frame)
		if err != nil {
			t.Fatal(err)
		}
		if a, _, err := dsmpacket.Parse(u.Payload); err == nil && u.Dst.Addr() == rackaddr.Node(1) {
			answers = append(answers, a)
		}
	}
	want := h
	want.Status, want.Length = fault.NoSpace, 0
	if len(answers) != 1 || answers[0] != want {
		t.Errorf("the client got %+v, want %+v", answers, want)
	}
	if s.leases.Len() != 0 || s.count.Reclaims != 1 {
		t.Errorf("%d regions are left, %d reclaimed", s.leases.Len(), s.count.Reclaims)
	}
}
