package gatekeeper

import (
	"testing"

	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/frame"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// exceptionsOf are those that a node gets.
func exceptionsOf(t *testing.T, sent []packetOut) (all []rpcpacket.Message) {
	t.Helper()
	for _, o := range sent {
		u, err := frame.ParseUDP6(o.frame)
		if err != nil {
			t.Fatal(err)
		}
		if m, err := rpcpacket.Parse(u.Payload); err == nil && m.Type == rpcpacket.Exception && u.Dst.Addr() == rackaddr.Node(1) {
			all = append(all, m)
		}
	}
	return all
}

// A call ends with its callee. Its caller hears of that when the switch has given it back the right to write and to free what it has lent, and not before,
// however often it asks; nor is an execution taken back before.
func TestCut_Told(t *testing.T) {
	for name, end := range map[string]func(*solo){
		"its incarnation has failed": func(s *solo) { s.cutLoans(wal.Node{Address: rackaddr.Node(2), Incarnation: 2}) },
		"it is gone for good":        func(s *solo) { s.voidLoans(rackaddr.Node(2)) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newSolo(t)
			p := s.region(rackaddr.Node(1), 1)
			call, _ := heldPair(firstSlot, 1, 0, p)
			s.packetIn(1, reasonCall, call)
			s.obey()
			k := s.loans[rpcpacket.PlainID(rackaddr.Node(1), firstSlot, rpcpacket.NumberOf(1, 1))]
			if k == nil || k.over() {
				t.Fatalf("the call is not open: %+v", k)
			}
			end(s)
			s.packetIn(1, reasonCall, call) // it is sent again
			out := s.take()
			if early := exceptionsOf(t, out.packets); len(early) > 0 || len(out.plans) == 0 {
				t.Fatalf("before the switch has obeyed its caller gets %v; %d plans are out", early, len(out.plans))
			}
			if err := s.loansOver(s.nodes[rackaddr.Node(1)], []control.ExecutionID{control.ExecutionID(k.id())}); fault.CodeOf(err) != fault.Overloaded {
				t.Errorf("the call is over: %v", err)
			}
			for len(out.plans) > 0 {
				for _, p := range out.plans {
					p.then(nil)
				}
				more := s.take()
				out.plans, out.packets = more.plans, append(out.packets, more.packets...)
			}
			s.packetIn(1, reasonCall, call)
			told := exceptionsOf(t, append(out.packets, s.take().packets...))
			if len(told) == 0 || told[0].Code != fault.Unavailable {
				t.Errorf("its caller gets %v", told)
			}
			if err := s.loansOver(s.nodes[rackaddr.Node(1)], []control.ExecutionID{control.ExecutionID(k.id())}); err != nil {
				t.Error(err)
			}
		})
	}
}
