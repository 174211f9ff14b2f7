package daemon

import (
	"fmt"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// setPolicies changes what the Gatekeeper says.
func (g *gatekeeperFake) setPolicies(version uint64, n int, policy string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.version, g.policies = version, nil
	for i := range n {
		g.policies = append(g.policies, control.MethodPolicy{Service: "S", Method: fmt.Sprint("m", i), Policy: policy})
	}
	g.reply.Rack.PolicyVersion, g.welcome.Rack.PolicyVersion = version, version
}

// TestPolicies: a node knows the explicit policies when it has joined, and newer
// ones, also none, within a heartbeat; each version is asked for once.
func TestPolicies(t *testing.T) {
	inRack(t, wire.Impairment{}, func(r *rack) {
		r.gk.setPolicies(7, 100, "recover")
		c, _, stop := r.compute(ComputeConfig{})
		n, err := c.Join(r.ctx, "n")
		if err != nil {
			t.Fatal(err)
		}
		says := func(when string, want rpcpacket.Policy, said bool) {
			t.Helper()
			if p, ok := n.Policies().Of("S", "m99"); p != want || ok != said {
				t.Errorf("%s: %s, %t", when, p, ok)
			}
		}
		says("when it has joined", rpcpacket.PolicyRecover, true)
		if rack := n.Rack(); rack.PolicyVersion != 7 || len(rack.Policies) != 100 {
			t.Errorf("version %d with %d policies", rack.PolicyVersion, len(rack.Policies))
		}
		asked := 0
		r.gk.set(func() { asked = r.gk.asked })
		pass(time.Second) // ten heartbeats
		r.gk.set(func() {
			if r.gk.asked != asked || asked != 1 {
				t.Errorf("asked %d times, then %d", asked, r.gk.asked)
			}
		})
		r.gk.setPolicies(8, 100, "tainted")
		pass(300 * time.Millisecond)
		says("after a change", rpcpacket.PolicyTainted, true)
		r.gk.setPolicies(0, 0, "")
		pass(300 * time.Millisecond)
		says("when all are undone", rpcpacket.PolicyNone, false)
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// A Gatekeeper that answers nonsense is asked again with the next heartbeat, not at
// once, and costs no more than that.
func TestPolicies_Nonsense(t *testing.T) {
	inRack(t, wire.Impairment{}, func(r *rack) {
		c, _, stop := r.compute(ComputeConfig{})
		n, err := c.Join(r.ctx, "n")
		if err != nil {
			t.Fatal(err)
		}
		r.gk.setPolicies(9, control.MaxPolicies+1, "recover")
		pass(time.Second)
		if _, said := n.Policies().Of("S", "m0"); said {
			t.Error("too many policies are taken")
		}
		r.gk.setPolicies(10, 1, "recover")
		pass(time.Second)
		if p, _ := n.Policies().Of("S", "m0"); p != rpcpacket.PolicyRecover {
			t.Errorf("after nonsense: %s", p)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}
