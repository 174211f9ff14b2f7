package gatekeeper

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
)

// A memory blade is told what it has missed until it has done it: also when it did not
// answer, or answered with an error, and the Gatekeeper was killed meanwhile. Until then
// it serves nobody.
func TestCatchUp_UntilDone(t *testing.T) {
	for name, refuses := range map[string]fault.Code{"silent": fault.OK, "refuses": fault.Internal} {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", restart ", restart), func(t *testing.T) {
				inLogged(t, func(s *small) {
					s.m1.alloc(s.a, 1, 1)
					s.beat(missedHeartbeats*time.Second+time.Second, s.a.testBlade, s.b.testBlade, s.c.testBlade) // m1 is silent
					s.a.leave()
					s.m1.fencing(refuses != fault.OK)
					s.m1.refuses(control.KindFence, refuses)
					if s.m1.says("m1") == nil {
						t.Fatal("the blade is welcome, and has not done what it has missed")
					}
					s.b.leave() // and the blade is to be told that, too
					if restart {
						s.restart()
					}
					s.m1.fencing(true)
					s.m1.refuses(control.KindFence, fault.OK)
					s.m1.hello("m1", control.Memory)
					if a, b := s.fencedBy(s.m1, s.a), s.fencedBy(s.m1, s.b); a != 1 || b != 1 {
						t.Errorf("back, and told of %d and %d fences", a, b)
					}
				})
			})
		}
	}
}

// A memory blade whose hello is refused, after it has been told what it had missed, is
// told what it misses after that, too.
func TestCatchUp_RefusedAndBack(t *testing.T) {
	inLogged(t, func(s *small) {
		s.m1.alloc(s.a, 1, 1)
		if err := s.gk.MarkFailed(context.Background(), "m1", "pulled"); err != nil {
			t.Fatal(err)
		}
		if s.m1.says("m1") == nil {
			t.Fatal("the blade is welcome, though the operator has taken it out of service")
		}
		s.a.leave()
		if err := s.gk.ReturnToService(context.Background(), "m1"); err != nil {
			t.Fatal(err)
		}
		s.m1.hello("m1", control.Memory)
		if got := s.fencedBy(s.m1, s.a); got != 1 {
			t.Errorf("back, and told of %d fences", got)
		}
	})
}

// TestCommand_BladeFails: a memory blade that has failed is not asked any more what it was asked.
func TestCommand_BladeFails(t *testing.T) {
	inLogged(t, func(s *small) {
		s.m1.alloc(s.a, 1, 1)
		s.m1.fencing(false)
		s.a.leave()
		var came atomic.Int64
		count := func([]byte) { came.Add(1) }
		s.m1.tap.Store(&count)
		s.beat(time.Second, s.b.testBlade, s.c.testBlade)
		if came.Load() == 0 {
			t.Fatal("the blade does not answer, and is not asked again")
		}
		if err := s.gk.MarkFailed(context.Background(), "m1", "pulled"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // what is on its way arrives
		came.Store(0)
		s.beat(10*time.Second, s.b.testBlade, s.c.testBlade)
		if n := came.Load(); n > 0 {
			t.Errorf("the blade has failed, and gets %d packets", n)
		}
	})
}

// fencing says whether a memory blade answers fences.
func (b *testBlade) fencing(yes bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.unfencing = !yes
}

// refuses makes a blade answer commands of a kind with an error.
func (b *testBlade) refuses(kind control.Kind, code fault.Code) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refusing = map[control.Kind]fault.Code{kind: code}
}

// says is hello that may be refused, or not be answered.
func (b *testBlade) says(name string) error {
	return b.ask(control.KindHello, control.Hello{Blade: name, Kind: control.Memory, MAC: b.mac.String(), Capacity: 1 << 30, Boot: b.boot, Birth: b.birth}, nil)
}

// fencedBy is how many fences of a node a blade was told.
func (s *small) fencedBy(b *testBlade, n *testNode) (count int) {
	for _, f := range b.fences() {
		if f.Node == n.address && !f.Forsaken {
			count++
		}
	}
	return count
}

// TestMissed_Forsaken: of a node's fences a blade is told the latest, and also the latest that says that
// nobody is left to decide.
func TestMissed_Forsaken(t *testing.T) {
	fence := func(incarnation uint32, forsaken bool) control.Fence {
		return control.Fence{Node: rackaddr.Node(1), Incarnation: incarnation, Forsaken: forsaken}
	}
	var m missed
	for i, c := range []struct {
		fence control.Fence
		noted bool
	}{{fence(1, false), true}, {fence(1, true), true}, {fence(2, false), true}, {fence(1, true), false}, {fence(1, false), false}} {
		if got := m.fence(c.fence); got != c.noted {
			t.Errorf("fence %d: noted %v", i, got)
		}
	}
	if want := []control.Fence{fence(2, false), fence(1, true)}; !slices.Equal(m.Fences, want) {
		t.Errorf("missed %+v, want %+v", m.Fences, want)
	}
}

// A memory blade that answers a command with an error has not done it: it is asked
// again, and has failed if it goes on like that.
func TestCommand_AnsweredWithAnError(t *testing.T) {
	for name, recovers := range map[string]bool{"for a moment": true, "for ever": false} {
		t.Run(name, func(t *testing.T) {
			inLogged(t, func(s *small) {
				awake := []*testBlade{s.a.testBlade, s.b.testBlade, s.c.testBlade, s.m1}
				s.m1.alloc(s.a, 1, 1)
				s.m1.refuses(control.KindFence, fault.Internal)
				s.a.leave()
				s.beat(2*time.Second, awake...)
				if len(s.m1.reclaimed) > 0 {
					t.Error("the blade has refused the fence, and the node's region is freed")
				}
				if recovers {
					s.m1.refuses(control.KindFence, fault.OK)
				}
				s.beat(max(commandPatience, missedHeartbeats*time.Second), awake...)
				up := slices.ContainsFunc(s.snapshot().Blades, func(b BladeState) bool { return b.Name == "m1" && b.Status != StatusFailed })
				if up != recovers {
					t.Errorf("the blade is in service: %v", up)
				}
				if got := s.fencedBy(s.m1, s.a); recovers && got != 1 || !recovers && got != 0 {
					t.Errorf("the blade has obeyed %d times", got)
				}
				s.m1.refuses(control.KindFence, fault.OK)
				if !recovers {
					s.m1.hello("m1", control.Memory)
					if got := s.fencedBy(s.m1, s.a); got != 1 {
						t.Errorf("back, and told of %d fences", got)
					}
				}
			})
		})
	}
}
