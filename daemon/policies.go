package daemon

import (
	"context"
	"sync/atomic"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/join"
)

// policies is what the daemon knows of the rack's explicit policies. The Gatekeeper
// names their version with all that it says of the rack; the daemon asks for them
// when it has another.
type policies struct {
	asking chan struct{} // has room while nobody asks the Gatekeeper
	set    atomic.Pointer[join.Policies]

	// Guarded by Compute.mu:
	version uint64
	list    []control.MethodPolicy
	due     bool // they are being asked for
}

// withPolicies adds the policies that the daemon has to a view of the rack, and has
// newer ones fetched. The caller holds c.mu.
func (c *Compute) withPolicies(r control.Rack) control.Rack {
	if want := r.PolicyVersion; want != c.policies.version && !c.policies.due && c.work.Err() == nil {
		c.policies.due = true
		c.tasks.Go(func() {
			if err := c.learnPolicies(c.work, want); err != nil {
				c.reg.log.Warn("policies", "err", err) // the next heartbeat's reply reminds us
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			c.policies.due = false
		})
	}
	r.PolicyVersion, r.Policies = c.policies.version, c.policies.list
	return r
}

// learnPolicies returns when the daemon has the policies of a version, or newer ones.
func (c *Compute) learnPolicies(ctx context.Context, version uint64) error {
	select {
	case c.policies.asking <- struct{}{}:
		defer func() { <-c.policies.asking }()
	case <-ctx.Done():
		return fault.FromContext("policies", ctx.Err())
	}
	c.mu.Lock()
	known := c.policies.version == version
	c.mu.Unlock()
	if known {
		return nil
	}
	var now control.PolicyList
	if err := c.reg.ask.Ask(ctx, control.KindPolicies, struct{}{}, &now); err != nil {
		return err
	}
	if n := len(now.Policies); n > control.MaxPolicies {
		return fault.New(fault.Internal, "policies", "the Gatekeeper has %d policies: a blade takes at most %d", n, control.MaxPolicies)
	}
	c.policies.set.Store(join.NewPolicies(now.Policies))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.policies.version, c.policies.list = now.Version, now.Policies
	r := c.rack
	r.PolicyVersion = now.Version
	c.setRack(r)
	return nil
}

// Policies implements join.Session.
func (n *node) Policies() *join.Policies { return n.daemon.policies.set.Load() }
