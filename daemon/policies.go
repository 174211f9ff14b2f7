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

// maxPolicyTries is how often the daemon begins anew because the policies change
// while it asks for them, until the next heartbeat.
const maxPolicyTries = 8

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
	list, version, err := c.fetchPolicies(ctx)
	if err != nil {
		return err
	}
	c.policies.set.Store(join.NewPolicies(list))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.policies.version, c.policies.list = version, list
	r := c.rack
	r.PolicyVersion = version
	c.setRack(r)
	return nil
}

// fetchPolicies asks the Gatekeeper for all parts of one version.
func (c *Compute) fetchPolicies(ctx context.Context) (list []control.MethodPolicy, version uint64, err error) {
	for range maxPolicyTries {
		list = nil
		for from := 0; ; {
			var part control.PolicyList
			if err := c.reg.ask.Ask(ctx, control.KindPolicies, control.Policies{From: from}, &part); err != nil {
				return nil, 0, err
			}
			if from == 0 {
				version = part.Version
			}
			if part.Version != version {
				break
			}
			list = append(list, part.Policies...)
			switch {
			case len(list) > control.MaxPolicies, part.Next != 0 && part.Next <= from:
				return nil, 0, fault.New(fault.Internal, "policies", "%d of them, and more from %d on", len(list), part.Next)
			case part.Next == 0:
				return list, version, nil
			}
			from = part.Next
		}
	}
	return nil, 0, fault.New(fault.Unavailable, "policies", "they change too fast")
}

// Policies implements join.Session.
func (n *node) Policies() *join.Policies { return n.daemon.policies.set.Load() }
