package gatekeeper

import (
	"testing"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
)

// over says that a durable main has come to its end.
func (n *testNode) over(name string, index uint32) error {
	return n.ask(control.KindCalls, control.NodeCalls{
		Node: n.address, Incarnation: n.incarnation, Main: &control.EndedMain{Execution: control.ExecutionID(endpoint.MainID(name)), Index: index},
	}, nil)
}

// runs asks to run a durable main.
func (n *testNode) runs(name string) (part control.StatePart, err error) {
	err = n.ask(control.KindState, control.State{Node: n.address, Incarnation: n.incarnation, Name: name, Main: true}, &part)
	return part, err
}

// TestMain_Over: a node says that its durable main is over. That is logged when the answer comes, and may be told again. A new
// run at that node begins afresh, above the former one's operations.
func TestMain_Over(t *testing.T) {
	withLedgers(t, func(r *rack, c1, m1 *testBlade) {
		m1.hello("m1", control.Memory)
		c2 := r.plug(2)
		c2.hello("c2", control.Compute)
		s := &small{rack: r, m1: m1, a: c1.join("c1", "job"), b: c2.join("c2", "job")}
		if p, err := s.a.runs("m"); err != nil || p.Done || !p.Ledger {
			t.Fatalf("the main may begin: %+v, %v", p, err)
		}
		if _, err := s.b.runs("m"); fault.CodeOf(err) != fault.PermissionDenied {
			t.Errorf("another program runs it, too: %v", err)
		}
		if err := s.b.over("m", 9); fault.CodeOf(err) != fault.Stale {
			t.Errorf("another node says that it is over: %v", err)
		}
		for _, again := range []bool{false, true} {
			if err := s.a.over("m", 4); err != nil {
				t.Errorf("it is over, again %v: %v", again, err)
			}
			s.anew()
		}
		if p, err := s.a.runs("m"); err != nil || p.Done || p.Next != 4 || !p.Ledger {
			t.Errorf("a new run begins with %+v, %v", p, err)
		}
	})
}
