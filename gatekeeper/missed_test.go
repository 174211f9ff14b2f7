package gatekeeper

import (
	"slices"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
	rpc "github.com/bifrost-rack/bifrost/rpc/packet"
)

// A durable main's checkpoint commits what the main did, also at a memory blade that was
// out of service or did not answer: it is told when it is back, and not told to take the
// same back, though the main has begun again since.
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
			if got := s.a.message1(); got.Type != rpc.Ack {
				t.Errorf("%+v: the main got %+v", c, got.Header)
			}
			s.a.begin("m") // and what it did since is taken back
			if c.restart {
				s.restart()
			}
			s.m1.obeys(true)
			s.m1.hello("m1", control.Memory)
			s.m1.mu.Lock()
			defer s.m1.mu.Unlock()
			if !slices.Equal(s.m1.undone, []control.Kind{control.KindCommit}) {
				t.Errorf("%+v: back, and told %v", c, s.m1.undone)
			}
		})
	}
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
	m := rpc.Message{Header: rpc.Header{
		Type: rpc.Call, Flags: (rpc.FlagHeld | rpc.FlagCheckpoint).WithPolicy(rpc.PolicyRecover),
		Call: endpoint.ChildID(id, 0, index), Parent: id, Index: index, CallerIncarnation: n.incarnation,
	}}
	n.send(n.address, rackaddr.Gatekeeper, rackaddr.PortRPC, m.Append(nil))
}
