package gatekeeper

import (
	"testing"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
)

// A copy of a free that comes when the first one is done meets no rule and is turned
// around; but nobody was denied anything.
func TestFree_CopyIsNoDenial(t *testing.T) {
	inSmall(t, func(s *small) {
		p := s.m1.alloc(s.a, 1, 1)
		again := func() []dsmpacket.Header {
			h := dsmpacket.Header{Kind: dsmpacket.Request, Request: s.a.request, Floor: 1, Incarnation: s.a.incarnation}
			s.a.send(s.a.address, p.With(dsmpacket.OpFree, 0).Addr(), rackaddr.PortDSM, h.Append(nil))
			return s.a.memoryAnswers()
		}
		s.a.memory(dsmpacket.OpFree, p)
		if got := again(); len(got) != 0 {
			t.Errorf("a copy under way is answered with %+v", got)
		}
		s.m1.serve()
		s.a.memoryAnswers()
		before := s.snapshot().Counters
		if got := again(); len(got) != 1 || got[0].Kind != dsmpacket.Nack {
			t.Errorf("a copy is answered with %+v", got)
		}
		pass(digestWait)
		if c := s.snapshot().Counters; c.Denied != 0 || c.Duplicates != before.Duplicates+1 || c.Frees != 1 {
			t.Errorf("counters %+v, before %+v", c, before)
		}
		s.a.memory(dsmpacket.OpFree, p) // another request is another matter
		pass(digestWait)
		if c := s.snapshot().Counters; c.Denied != 1 {
			t.Errorf("a second free: counters %+v", c)
		}
	})
}

// The latest frees are remembered, and no more.
func TestGrantedFrees_Bounded(t *testing.T) {
	var g grantedFrees
	for i := range uint64(maxGranted + 10) {
		g.note(grantedFree{node: rackaddr.Node(1), request: i})
	}
	if len(g.ring) != maxGranted || g.has(grantedFree{node: rackaddr.Node(1), request: 9}) || !g.has(grantedFree{node: rackaddr.Node(1), request: 10}) {
		t.Errorf("%d frees are remembered", len(g.ring))
	}
}
