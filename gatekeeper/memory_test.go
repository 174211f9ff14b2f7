package gatekeeper

import (
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
)

func TestAlloc_AgainChangesNothing(t *testing.T) {
	inSmall(t, func(s *small) {
		p := s.m1.alloc(s.a, 1, 1)
		s.unchanged("the same answer", func() { s.m1.allocated(s.a, p) })
		if got := s.a.memoryAnswers(); len(got) != 1 || got[0].Status != fault.OK {
			t.Errorf("the second answer became %+v", got)
		}
		s.unchanged("the region for another node", func() { s.m1.allocated(s.b, p) })
		quiet("the region for another node", s.a, s.b)
		// Neither a compute blade nor another memory machine can give regions.
		s.unchanged("somebody else's answer", func() {
			h := dsmpacket.Header{Kind: dsmpacket.Reply, Status: fault.OK, Request: 1, Incarnation: s.a.incarnation}
			q := dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, dsmpacket.IDOf(9, 1)).With(dsmpacket.OpAlloc)
			s.c.send(q.Addr(), s.c.address, rackaddr.PortDSM, h.Append(nil))
			q = dsmpacket.Make(rackaddr.DefaultDSMPrefix, 2, dsmpacket.IDOf(9, 1)).With(dsmpacket.OpAlloc)
			s.m1.send(q.Addr(), s.c.address, rackaddr.PortDSM, h.Append(nil))
		})
		quiet("somebody else's answer", s.c)
	})
}

// A copy of an allocation's answer that comes when the region is freed already
// does not bring it back.
func TestAlloc_LateCopy(t *testing.T) {
	inSmall(t, func(s *small) {
		p := s.m1.alloc(s.a, 1, 1)
		s.a.memory(dsmpacket.OpFree, p)
		s.m1.serve()
		s.a.memoryAnswers()
		s.unchanged("a late copy", func() { s.m1.allocated(s.a, p) })
		quiet("a late copy", s.a)
		if n := len(s.snapshot().Regions); n != 0 {
			t.Errorf("%d regions are back", n)
		}
	})
}

func TestAlloc_ForNobodyIsReclaimed(t *testing.T) {
	inSmall(t, func(s *small) {
		p := dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, dsmpacket.IDOf(3, 1))
		gone := *s.a
		gone.address = rackaddr.Node(77)
		s.m1.allocated(&gone, p)
		s.m1.converse()
		if got := s.m1.reclaimed; len(got) != 1 || got[0] != (control.RegionID{ID: dsmpacket.IDOf(3, 1), Class: 12}) {
			t.Errorf("reclaimed %+v", got)
		}
	})
}

func TestFree_Refused(t *testing.T) {
	inSmall(t, func(s *small) {
		p := s.m1.alloc(s.a, 1, 1)
		nack := func(what string, got []dsmpacket.Header) {
			t.Helper()
			if len(got) != 1 || got[0].Status != fault.PermissionDenied {
				t.Errorf("%s: answered with %+v", what, got)
			}
			if ops := s.m1.serve(); len(ops) != 0 {
				t.Errorf("%s: the memory blade got %v", what, ops)
			}
		}
		nack("a stranger's free", s.b.memory(dsmpacket.OpFree, p))
		nack("a free in the region's middle", s.a.memory(dsmpacket.OpFree, p.Add(64)))
		s.a.call("Arrays", s.a.message("Arrays", "add", p))
		call := s.b.message1()
		nack("a free of what is leased", s.a.memory(dsmpacket.OpFree, p))
		nack("the lessee's free", s.b.memory(dsmpacket.OpFree, p))
		s.b.reply(s.a.address, &call)
		s.a.message1()
		if got := s.a.may(s.m1, p); got != "read+write" {
			t.Errorf("a may %s", got)
		}
	})
}

func TestFree_AnswerLost(t *testing.T) {
	inSmall(t, func(s *small) {
		p := s.m1.alloc(s.a, 1, 1)
		s.a.memory(dsmpacket.OpFree, p)
		if got := len(s.m1.take()); got != 1 { // and its answer is lost
			t.Fatalf("the memory blade got %d requests", got)
		}
		if got := s.a.may(s.m1, p); got != "nothing" {
			t.Errorf("while it is being freed: a may %s", got)
		}
		s.unchanged("the free again", func() { s.a.memory(dsmpacket.OpFree, p) })
		s.m1.serve()
		if got := s.a.memoryAnswers(); len(got) != 1 || got[0].Status != fault.OK {
			t.Errorf("answered with %+v", got)
		}
		if n := len(s.snapshot().Regions); n != 0 {
			t.Errorf("%d regions are left", n)
		}
	})
}

func TestFree_FailedAtTheBlade(t *testing.T) {
	inSmall(t, func(s *small) {
		p := s.m1.alloc(s.a, 1, 1)
		s.a.memory(dsmpacket.OpFree, p)
		s.m1.take()
		h := dsmpacket.Header{Kind: dsmpacket.Reply, Status: fault.Internal, Request: s.a.request, Incarnation: s.a.incarnation}
		s.m1.send(p.With(dsmpacket.OpFree).Addr(), s.a.address, rackaddr.PortDSM, h.Append(nil))
		if got := s.a.memoryAnswers(); len(got) != 1 || got[0].Status != fault.Internal {
			t.Errorf("answered with %+v", got)
		}
		if got := s.a.may(s.m1, p); got != "read+write" {
			t.Errorf("a may %s", got)
		}
	})
}

// The next incarnation of a node counts its requests anew, so an answer to the one
// before may have the same number.
func TestFree_AnsweredToAnotherIncarnation(t *testing.T) {
	for _, restart := range []bool{false, true} {
		inLogged(t, func(s *small) {
			p := s.m1.alloc(s.a, 1, 1)
			s.a.memory(dsmpacket.OpFree, p)
			s.m1.take()
			if restart {
				s.restart()
			}
			h := dsmpacket.Header{Kind: dsmpacket.Reply, Status: fault.Stale, Request: s.a.request, Incarnation: s.a.incarnation - 1}
			from := p.With(dsmpacket.OpFree).Addr()
			s.m1.send(from, s.a.address, rackaddr.PortDSM, h.Append(nil))
			s.a.take()
			if got := s.a.may(s.m1, p); got != "nothing" {
				t.Errorf("restart %t: while it is being freed: a may %s", restart, got)
			}
			h.Status, h.Incarnation = fault.OK, s.a.incarnation
			s.m1.send(from, s.a.address, rackaddr.PortDSM, h.Append(nil))
			if n := len(s.snapshot().Regions); n != 0 {
				t.Errorf("restart %t: %d regions are left", restart, n)
			}
		})
	}
}

func TestMemory_NoSuchMachine(t *testing.T) {
	inSmall(t, func(s *small) {
		for _, op := range []dsmpacket.Op{dsmpacket.OpRead, dsmpacket.OpAlloc, dsmpacket.OpSettle} {
			got := s.a.memory(op, dsmpacket.Make(rackaddr.DefaultDSMPrefix, 9, dsmpacket.IDOf(1, 1)))
			if len(got) != 1 || got[0].Kind != dsmpacket.Reply || got[0].Status != fault.Unavailable || got[0].Request != s.a.request {
				t.Errorf("%s: answered with %+v", op, got)
			}
		}
	})
}

// A request that has met no home of a machine in service was under way while another blade became the home: it is asked again, not refused.
func TestMemory_HomeComes(t *testing.T) {
	s := newSolo(t)
	a := rackaddr.Node(1)
	request := dsmpacket.Header{Kind: dsmpacket.Request, Request: 2, Floor: 1, Incarnation: s.nodes[a].incarnation}
	for machine, answers := range map[uint8]int{1: 0, 9: 1} {
		before := s.sent
		to := dsmpacket.Make(rackaddr.DefaultDSMPrefix, machine, dsmpacket.IDOf(1, 1)).With(dsmpacket.OpRead)
		s.in(1, reasonNoHome, a, to.Addr(), rackaddr.PortDSM, request.Append(nil))
		if n := s.sent - before; n != answers {
			t.Errorf("machine %d: %d answers, want %d", machine, n, answers)
		}
	}
}

func TestDenied_IsReported(t *testing.T) {
	inSmall(t, func(s *small) {
		events := s.gk.Subscribe(s.t.Context())
		p := s.m1.alloc(s.a, 1, 1)
		for range 3 {
			s.b.memory(dsmpacket.OpWrite, p)
		}
		pass(time.Millisecond)
		snap := s.snapshot()
		if snap.Counters.Denied != 3 || len(snap.Denied) != 3 {
			t.Fatalf("%d denied, remembered %+v", snap.Counters.Denied, snap.Denied)
		}
		want := Denial{Time: snap.Denied[0].Time, Port: s.b.port, Node: s.b.address, Op: "write", Pointer: p.String()}
		if snap.Denied[0] != want {
			t.Errorf("remembered %+v, want %+v", snap.Denied[0], want)
		}
		kinds := map[EventKind]int{}
		for len(events) > 0 {
			kinds[(<-events).Kind]++
		}
		if kinds[AccessDenied] != 3 || kinds[RegionAllocated] != 1 || kinds[RulesGranted] != 1 {
			t.Errorf("events %v", kinds)
		}
	})
}

// TestAllocWindow: a copy is told from a new answer also out of order, and the
// window keeps nothing that the client has settled.
func TestAllocWindow(t *testing.T) {
	a := allocs{above: map[uint64]bool{}}
	for _, id := range []uint64{5, 3} {
		if a.late(id) {
			t.Errorf("request %d is new", id)
		}
		a.handled(id, false)
	}
	for id, late := range map[uint64]bool{3: true, 4: false, 5: true, 6: false} {
		if a.late(id) != late {
			t.Errorf("late(%d) = %v", id, !late)
		}
	}
	a.settle(5)
	a.settle(2) // an old packet
	if !a.late(4) || !a.late(5) || a.late(6) || len(a.above) != 1 {
		t.Errorf("after settling below 5: %+v", a)
	}
}

// TestAllocsAtTheLimit: a node that has settled none of as many allocations as are kept gets
// no more, but for the one at its floor: the others are settled only after that.
func TestAllocsAtTheLimit(t *testing.T) {
	a := allocs{above: map[uint64]bool{}}
	a.settle(3)
	for id := uint64(4); id < 8; id++ {
		a.handled(id, false)
	}
	if a.full(8, 5) || !a.full(8, 4) {
		t.Error("the limit is not kept")
	}
	if a.full(3, 4) {
		t.Error("the allocation for which all others wait is refused")
	}
	a.handled(3, false)
	a.settle(8)
	if a.full(8, 4) {
		t.Errorf("full after all are settled: %+v", a)
	}
}

// A copy of a free that comes when the first one is done meets no rule and is turned
// around; but nobody was denied anything.
func TestFree_CopyIsNoDenial(t *testing.T) {
	inSmall(t, func(s *small) {
		p := s.m1.alloc(s.a, 1, 1)
		again := func() []dsmpacket.Header {
			h := dsmpacket.Header{Kind: dsmpacket.Request, Request: s.a.request, Floor: 1, Incarnation: s.a.incarnation}
			s.a.send(s.a.address, p.With(dsmpacket.OpFree).Addr(), rackaddr.PortDSM, h.Append(nil))
			return s.a.memoryAnswers()
		}
		s.a.memory(dsmpacket.OpFree, p)
		if got := again(); len(got) != 0 {
			t.Errorf("a copy under way is answered with %+v", got)
		}
		s.m1.serve()
		s.a.memoryAnswers()
		before := s.snapshot().Counters
		denied := func(want uint64) {
			s.t.Helper()
			drops, err := s.gk.Drops(s.t.Context())
			var got uint64
			for _, d := range drops {
				got += d.Denied
			}
			if err != nil || got != want {
				s.t.Errorf("of the ports, %d accesses are denied, want %d: %v", got, want, err)
			}
		}
		if got := again(); len(got) != 1 || got[0].Kind != dsmpacket.Nack {
			t.Errorf("a copy is answered with %+v", got)
		}
		pass(time.Millisecond)
		if c := s.snapshot().Counters; c.Denied != 0 || c.Duplicates != before.Duplicates+1 || c.Frees != 1 {
			t.Errorf("counters %+v, before %+v", c, before)
		}
		denied(0)
		s.a.memory(dsmpacket.OpFree, p) // another request is another matter
		pass(time.Millisecond)
		if c := s.snapshot().Counters; c.Denied != 1 {
			t.Errorf("a second free: counters %+v", c)
		}
		denied(1)
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
