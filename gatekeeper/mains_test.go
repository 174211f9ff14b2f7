package gatekeeper

import (
	"encoding/json"
	"testing"
	"time"

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
func (n *testNode) runs(name string) (part control.BegunMain, err error) {
	err = n.ask(control.KindMain, control.BeginMain{Node: n.address, Incarnation: n.incarnation, Name: name}, &part)
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
		if p, err := s.a.runs("m"); err != nil || p.Over {
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
			s.restart()
		}
		if p, err := s.a.runs("m"); err != nil || p.Over || p.Index != 4 {
			t.Errorf("a new run begins with %+v, %v", p, err)
		}
	})
}

// TestByHand_Fenced: a program that goes on as a node which waits for it joins when the node's former incarnation is fenced, and
// not before.
func TestByHand_Fenced(t *testing.T) {
	withLedgers(t, func(r *rack, c1, m1 *testBlade) {
		m1.hello("m1", control.Memory)
		j := c1.joined("c1")
		m1.converse()
		e := control.Export{Node: j.Address, Incarnation: 1, Service: "Counter", Stateful: true, Methods: []control.Method{{Name: "add"}}}
		if err := c1.ask(control.KindExport, e, nil); err != nil {
			t.Fatal(err)
		}
		m1.mu.Lock()
		m1.unfencing = true
		m1.mu.Unlock()
		if err := c1.ask(control.KindLeave, control.Leave{Node: j.Address, Incarnation: 1, Crashed: true}, nil); err != nil {
			t.Fatal(err)
		}
		c1.tokens++
		if err := c1.ask(control.KindJoin, control.Join{Blade: "c1", Name: "program", Token: c1.tokens}, nil); err == nil || err.Error() != "no reply to join" {
			t.Errorf("it joins before the fence: %v", err)
		}
		m1.mu.Lock()
		m1.unfencing = false
		m1.mu.Unlock()
		pass(2 * control.Retries.Most) // the fence is asked for again
		m1.converse()
		var again control.Joined
		for _, m := range c1.converse() {
			if err := json.Unmarshal(m.Body, &again); err != nil {
				t.Fatal(err)
			}
		}
		if again.Address != j.Address || again.Incarnation != 2 || again.Ledger == nil || *again.Ledger != *j.Ledger {
			t.Errorf("it is %+v, and was %+v", again, j)
		}
		if all := r.snapshot().Nodes; len(all) != 1 || !all[0].Awaited.IsZero() {
			t.Errorf("nodes are %+v", all)
		}
		pass(time.Second)
	})
}
