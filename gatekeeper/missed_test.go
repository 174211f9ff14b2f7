package gatekeeper

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// A durable main's checkpoint commits what the main did, also at a memory blade that was
// out of service or did not answer: it is told when it is back, and told to take back
// only what came after, since the main has begun again.
func TestCommit_MissedByABlade(t *testing.T) {
	for _, c := range []struct{ silent, restart bool }{{true, false}, {true, true}, {false, false}, {false, true}} {
		inLogged(t, func(s *small) {
			awake := []*testBlade{s.a.testBlade, s.b.testBlade, s.c.testBlade}
			s.m1.alloc(s.a, 1, 1)
			s.a.begin("m")
			s.m1.obeys(false)
			if c.silent {
				s.beat(missedHeartbeats*time.Second+time.Second, awake...)
			}
			s.a.checkpoint("m", 1)
			if !c.silent {
				quiet("before the commit", s.a)
				s.beat(missedHeartbeats*time.Second+time.Second, awake...)
			}
			if got := s.a.message1(); got.Type != rpcpacket.Ack {
				t.Errorf("%+v: the main got %+v", c, got.Header)
			}
			s.a.begin("m") // and what it did since is taken back
			if c.restart {
				s.restart()
			}
			s.m1.obeys(true)
			s.beat(2*time.Second, awake...)
			if got := s.m1.told(); len(got) > 0 {
				t.Errorf("%+v: out of service, and told %+v", c, got) // it has not said what it still has
			}
			s.m1.hello("m1", control.Memory)
			s.m1.mu.Lock()
			defer s.m1.mu.Unlock()
			run := control.Run{Execution: control.ExecutionID(testSecret.ToMemory(endpoint.MainID("m"))), Node: s.a.address, Incarnation: 1, Checkpoint: 1}
			if len(s.m1.undone) > 0 {
				run.Main = s.m1.undone[0].Run.Main
			}
			if !slices.Equal(s.m1.undone, []missedUndo{{control.KindCommit, run}, {control.KindRollback, run}}) {
				t.Errorf("%+v: back, and told %+v, want %+v", c, s.m1.undone, run)
			}
		})
	}
}

// A memory blade is told what it has missed until it has done it: also when it did not
// answer, or answered with an error, and the Gatekeeper was killed meanwhile. Until then
// it serves nobody.
func TestCatchUp_UntilDone(t *testing.T) {
	for name, refuses := range map[string]fault.Code{"silent": fault.OK, "refuses": fault.Internal} {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", restart ", restart), func(t *testing.T) {
				inLogged(t, func(s *small) {
					s.m1.alloc(s.a, 1, 1)
					s.a.begin("m")
					s.beat(missedHeartbeats*time.Second+time.Second, s.a.testBlade, s.b.testBlade, s.c.testBlade) // m1 is silent
					s.a.begin("m")
					s.m1.obeys(refuses != fault.OK)
					s.m1.refuses(control.KindRollback, refuses)
					if s.m1.says("m1") == nil {
						t.Fatal("the blade is welcome, and has not done what it has missed")
					}
					s.b.leave() // and the blade is to be told that, too
					if restart {
						s.restart()
					}
					s.m1.obeys(true)
					s.m1.refuses(control.KindRollback, fault.OK)
					s.m1.hello("m1", control.Memory)
					if got := s.m1.told(); len(got) != 1 || got[0].Kind != control.KindRollback || s.fencedBy(s.m1, s.b) != 1 {
						t.Errorf("back, and told %+v", got)
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
		s.a.begin("m")
		if err := s.gk.MarkFailed(context.Background(), "m1", "pulled"); err != nil {
			t.Fatal(err)
		}
		if s.m1.says("m1") == nil {
			t.Fatal("the blade is welcome, though the operator has taken it out of service")
		}
		s.a.begin("m")
		if err := s.gk.ReturnToService(context.Background(), "m1"); err != nil {
			t.Fatal(err)
		}
		s.m1.hello("m1", control.Memory)
		if got := s.m1.told(); len(got) != 1 || got[0].Kind != control.KindRollback {
			t.Errorf("back, and told %+v", got)
		}
	})
}

// A memory blade that answers a command with an error has not done it: it is asked
// again, and has failed if it goes on like that.
func TestCommand_AnsweredWithAnError(t *testing.T) {
	for name, recovers := range map[string]bool{"for a moment": true, "for ever": false} {
		t.Run(name, func(t *testing.T) {
			inLogged(t, func(s *small) {
				awake := []*testBlade{s.a.testBlade, s.b.testBlade, s.c.testBlade, s.m1}
				s.m1.alloc(s.a, 1, 1)
				s.a.begin("m")
				s.m1.refuses(control.KindCommit, fault.Internal)
				s.a.checkpoint("m", 1)
				quiet("before the commit", s.a)
				s.beat(2*time.Second, awake...)
				quiet("the blade has refused it", s.a)
				if recovers {
					s.m1.refuses(control.KindCommit, fault.OK)
				}
				s.beat(max(commandPatience, missedHeartbeats*time.Second), awake...)
				if got := s.a.message1(); got.Type != rpcpacket.Ack {
					t.Errorf("the main got %+v", got.Header)
				}
				up := slices.ContainsFunc(s.snapshot().Blades, func(b BladeState) bool { return b.Name == "m1" && b.Status != StatusFailed })
				if up != recovers {
					t.Errorf("the blade is in service: %v", up)
				}
				if got := s.m1.told(); recovers && (len(got) != 1 || got[0].Run.Checkpoint != 1) || !recovers && len(got) != 0 {
					t.Errorf("the blade has done %+v", got)
				}
				s.m1.refuses(control.KindCommit, fault.OK)
				if !recovers {
					s.m1.hello("m1", control.Memory)
					if got := s.m1.told(); len(got) != 1 || got[0].Kind != control.KindCommit {
						t.Errorf("back, and told %+v", got)
					}
				}
			})
		})
	}
}

// told returns the commits and rollbacks that a memory blade has done.
func (b *testBlade) told() []missedUndo {
	b.r.settle()
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.undone)
}

// refuses makes a blade answer commands of a kind with an error.
func (b *testBlade) refuses(kind control.Kind, code fault.Code) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refusing = map[control.Kind]fault.Code{kind: code}
}

// says is hello that may be refused, or not be answered.
func (b *testBlade) says(name string) error {
	return b.ask(control.KindHello, control.Hello{Blade: name, Kind: control.Memory, MAC: b.mac.String(), Capacity: 1 << 30, Boot: b.boot}, nil)
}

// fencedBy is how many fences of a node a blade was told.
func (s *small) fencedBy(b *testBlade, n *testNode) (count int) {
	for _, f := range b.fences() {
		if f.Node == n.address {
			count++
		}
	}
	return count
}

// obeys says whether a memory blade answers commits and rollbacks.
func (b *testBlade) obeys(yes bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.undoing = !yes
}

// begin begins a durable main, or begins it again.
func (n *testNode) begin(name string) {
	n.r.t.Helper()
	if err := n.ask(control.KindState, control.State{Node: n.address, Incarnation: n.incarnation, Name: name, Main: true}, nil); err != nil {
		n.r.t.Error(err)
	}
}

// checkpoint sends a main's checkpoint.
func (n *testNode) checkpoint(name string, index uint32) {
	id := endpoint.MainID(name)
	m := rpcpacket.Message{Header: rpcpacket.Header{
		Type: rpcpacket.Call, Flags: (rpcpacket.FlagHeld | rpcpacket.FlagCheckpoint).WithPolicy(rpcpacket.PolicyRecover),
		Call: endpoint.ChildID(testSecret.Main(id), id, 0, index), Parent: id, Index: index, CallerIncarnation: n.incarnation,
	}}
	n.send(n.address, rackaddr.Gatekeeper, rackaddr.PortRPC, m.Append(nil))
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
