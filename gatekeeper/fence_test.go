package gatekeeper

import (
	"slices"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/wal"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/control"
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
		if len(s.m1.reclaimed) != 0 {
			t.Errorf("not fenced yet: reclaimed %+v", s.m1.reclaimed)
		}
		if s.a.memory(dsmpacket.OpRead, p); len(s.m1.take()) != 0 {
			t.Error("the node still reaches its region")
		}
		s.m1.mu.Lock()
		s.m1.unfencing = false
		s.m1.mu.Unlock()
		s.beat(2*time.Second, s.b.testBlade, s.c.testBlade, s.m1) // it is asked again
		if got := s.m1.fences(); len(got) != 2 || got[0] != fenceOf(wal.Node{Address: s.a.address, Incarnation: s.a.incarnation}, false) || got[1] != fenceOf(wal.Node{Address: s.a.address, Incarnation: s.a.incarnation}, true) {
			t.Errorf("fenced %+v", got)
		}
		s.m1.converse()
		if len(s.m1.reclaimed) != 1 {
			t.Errorf("fenced: reclaimed %+v", s.m1.reclaimed)
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
			if got := s.m1.fences(); len(got) != 2 || got[0] != fenceOf(wal.Node{Address: s.b.address, Incarnation: s.b.incarnation}, false) || got[1] != fenceOf(wal.Node{Address: s.b.address, Incarnation: s.b.incarnation}, true) {
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
			if got := s.m1.fences(); len(got) != 2 || got[0] != fenceOf(wal.Node{Address: s.b.address, Incarnation: s.b.incarnation}, false) || got[1] != fenceOf(wal.Node{Address: s.b.address, Incarnation: s.b.incarnation}, true) {
				t.Errorf("restart %v: back, and told %+v", restart, got)
			}
		})
	}
}
