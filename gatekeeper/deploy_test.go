package gatekeeper

import (
	"testing"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/internal/frame"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// TestCallOfWhatMoves: the caller of a call to a service that moves is told that nobody
// has got it, with a pointer or without, and no record is kept of the call.
func TestCallOfWhatMoves(t *testing.T) {
	s := newSolo(t)
	p := s.region(rackaddr.Node(1), 1)
	s.emptyNode(resources.EmptyNode{Node: resources.Node{Address: rackaddr.Node(2), Incarnation: 1}, Moves: true})
	s.obey()
	for why, pointers := range map[reason][]dsmpacket.Pointer{reasonCall: {p}, reasonNoRoute: nil} {
		call, _ := heldPair(1, 1, 0, pointers...)
		s.packetIn(1, why, call)
		sent := s.take().packets
		if len(sent) != 1 {
			t.Fatalf("%v: %d packets were sent, want 1", why, len(sent))
		}
		u, err := frame.ParseUDP6(sent[0].frame)
		if err != nil {
			t.Fatal(err)
		}
		m, err := rpcpacket.Parse(u.Payload)
		if err != nil || m.Type != rpcpacket.Ack || m.Flags&rpcpacket.FlagUnbegun == 0 || m.Flags&rpcpacket.FlagReleased == 0 ||
			m.Call != rpcpacket.SessionID(rpcpacket.SessionOf(rackaddr.Node(1), 1), 1) || u.Dst.Addr() != rackaddr.Node(1) {
			t.Errorf("%v: sent %+v to %s, %v", why, m.Header, u.Dst, err)
		}
		if len(s.calls) != 0 {
			t.Errorf("%v: %d calls are on record", why, len(s.calls))
		}
	}
}
