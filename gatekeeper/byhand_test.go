package gatekeeper

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/internal/control"
)

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
		pass(2 * control.MaxRetry) // the fence is asked for again
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
