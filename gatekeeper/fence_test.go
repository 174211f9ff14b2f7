package gatekeeper

import (
	"slices"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
)

// fences returns what a memory blade was told to fence.
func (b *testBlade) fences() []control.Fence {
	b.r.settle()
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.fenced)
}

// The regions of a node that is gone are handed on only when the memory blades
// refuse it; what it has sent may be on its way to them until then.
func TestFence_BeforeRegionsAreHandedOn(t *testing.T) {
	inSmall(t, func(s *small) {
		p := s.m1.alloc(s.a, 1, 1)
		s.m1.unfencing = true
		s.a.leave()
		s.m1.converse()
		if len(s.m1.reclaimed) != 0 || len(s.snapshot().Regions) != 1 {
			t.Errorf("not fenced yet: reclaimed %+v, regions %+v", s.m1.reclaimed, s.snapshot().Regions)
		}
		if s.a.memory(dsmpacket.OpRead, p); len(s.m1.take()) != 0 {
			t.Error("the node still reaches its region")
		}
		s.m1.mu.Lock()
		s.m1.unfencing = false
		s.m1.mu.Unlock()
		pass(time.Second) // it is asked again
		if got := s.m1.fences(); len(got) != 1 || got[0] != (control.Fence{Node: s.a.address, Incarnation: s.a.incarnation, Forsaken: true}) {
			t.Errorf("fenced %+v", got)
		}
		s.m1.converse()
		if len(s.m1.reclaimed) != 1 || len(s.snapshot().Regions) != 0 {
			t.Errorf("fenced: reclaimed %+v, regions %+v", s.m1.reclaimed, s.snapshot().Regions)
		}
	})
}

// A memory blade that does not answer holds nobody up for ever: neither one that
// fails, nor one that goes on reporting.
func TestFence_WithoutAnswer(t *testing.T) {
	inSmall(t, func(s *small) {
		s.m1.alloc(s.a, 1, 1)
		s.m1.unfencing = true
		s.a.leave()
		s.beat(commandPatience-time.Second, s.b.testBlade, s.c.testBlade, s.m1)
		if n := len(s.snapshot().Regions); n != 1 {
			t.Errorf("after some heartbeats there are %d regions", n)
		}
		s.beat(2*time.Second, s.b.testBlade, s.c.testBlade, s.m1)
		if n := len(s.snapshot().Regions); n != 0 || s.snapshot().Counters.Failures == 0 {
			t.Errorf("the blade reports but does not answer: %d regions", n)
		}

		answer := func(fences bool) {
			s.m1.mu.Lock()
			defer s.m1.mu.Unlock()
			s.m1.unfencing = !fences
		}
		answer(true)
		s.m1.hello("m1", control.Memory) // it was out of service
		s.m1.alloc(s.b, 1, 2)
		answer(false)
		s.b.leave()
		pass(missedHeartbeats*time.Second + time.Second) // now it is silent, too
		if n := len(s.snapshot().Regions); n != 0 {
			t.Errorf("the blade has failed: %d regions", n)
		}
	})
}

// A memory blade that was out of service while a node failed is told the fence when
// it is back, before the node's late requests can reach it; also by the next
// Gatekeeper.
func TestFence_MissedByABlade(t *testing.T) {
	for _, restart := range []bool{false, true} {
		inLogged(t, func(s *small) {
			s.m1.alloc(s.b, 1, 1)
			s.beat(missedHeartbeats*time.Second+time.Second, s.a.testBlade, s.b.testBlade, s.c.testBlade) // m1 is silent
			s.b.leave()
			if got := s.m1.fences(); len(got) != 0 {
				t.Fatalf("out of service, and told %+v", got)
			}
			if restart {
				s.restart()
			}
			s.m1.hello("m1", control.Memory)
			if got := s.m1.fences(); len(got) != 1 || got[0] != (control.Fence{Node: s.b.address, Incarnation: s.b.incarnation, Forsaken: true}) {
				t.Errorf("restart %v: back, and told %+v", restart, got)
			}
		})
	}
}

// So is one that failed before it had answered: it may not have heard, or may have
// forgotten.
func TestFence_UnansweredByABlade(t *testing.T) {
	for _, restart := range []bool{false, true} {
		inLogged(t, func(s *small) {
			s.m1.alloc(s.b, 1, 1)
			s.m1.unfencing = true
			s.b.leave()
			s.beat(missedHeartbeats*time.Second+time.Second, s.a.testBlade, s.b.testBlade, s.c.testBlade) // m1 is silent
			if restart {
				s.restart()
			}
			s.m1.mu.Lock()
			s.m1.unfencing = false
			s.m1.mu.Unlock()
			s.m1.hello("m1", control.Memory)
			if got := s.m1.fences(); len(got) != 1 || got[0] != (control.Fence{Node: s.b.address, Incarnation: s.b.incarnation, Forsaken: true}) {
				t.Errorf("restart %v: back, and told %+v", restart, got)
			}
		})
	}
}

// A memory blade's answer to a fence names regions that the node may not have heard of.
// Those that nobody else has heard of either are freed, also when the blade was out of
// service and is told later.
func TestFence_UnsettledAllocations(t *testing.T) {
	for _, late := range []bool{false, true} {
		inLogged(t, func(s *small) {
			known := s.m1.alloc(s.a, 1, 1)
			lost := dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, dsmpacket.IDOf(2, 1))
			for _, p := range []dsmpacket.Pointer{known, lost} {
				s.m1.unsettled.Regions = append(s.m1.unsettled.Regions, control.RegionID{ID: p.ID(), Class: 12, Owner: s.b.address})
			}
			if late {
				s.beat(missedHeartbeats*time.Second+time.Second, s.a.testBlade, s.b.testBlade, s.c.testBlade) // m1 is silent
			}
			s.b.leave()
			if late {
				s.m1.hello("m1", control.Memory)
			}
			s.m1.converse()
			s.m1.expectReclaimed("what nobody has heard of", lost.ID())
			if may := s.a.may(s.m1, known); may != "read+write" {
				t.Errorf("the owner of a known region may %s", may)
			}
		})
	}
}
