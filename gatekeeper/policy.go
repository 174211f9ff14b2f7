package gatekeeper

import (
	"context"

	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/internal/control"
)

// What operators and deployments say of methods goes before what callers ask for.
// The daemons learn its version with all that they are told of the rack, and ask for
// the rest when that changes; so a runtime goes by it within a heartbeat.

// SetPolicy sets the policy of a method, or with method "" of all methods of a service
// for which nothing else is set, for calls that are sent from when their nodes know,
// within a heartbeat. The policy is as packet.Policy writes it; "" undoes what was set.
// Nobody needs to export the method yet. It outlives the Gatekeeper.
func (g *Gatekeeper) SetPolicy(ctx context.Context, service, method, policy string) error {
	text := policy
	if text == "" {
		text = "default"
	}
	return g.operate(ctx, Event{Kind: PolicySet, Service: service, Method: method, Message: text}, func(c *controller) ([]resources.Action, error) {
		return nil, c.fleet.SetPolicy(service, method, policy)
	})
}

// Policies returns the policy of every method that somebody exports, or about which
// an operator or a deployment has said something, by service and method; entries
// without a method are for all others of a service.
func (g *Gatekeeper) Policies(ctx context.Context) (all []resources.MethodPolicy, err error) {
	err = g.do(ctx, func() { all = g.ctl.fleet.AllPolicies() })
	return all, err
}

// Policy is that of one method, or with method "" of all others of a service.
func (g *Gatekeeper) Policy(ctx context.Context, service, method string) (p resources.MethodPolicy, err error) {
	err = g.do(ctx, func() { p = g.ctl.fleet.PolicyOf(service, method) })
	return p, err
}

// policies tells a daemon the explicit policies.
func (c *controller) policies(p *port, m control.Message) error {
	explicit, version := c.fleet.ExplicitPolicies()
	list := make([]control.MethodPolicy, 0, len(explicit))
	for _, p := range explicit {
		list = append(list, control.MethodPolicy{Service: p.Service, Method: p.Method, Policy: p.Policy.String()})
	}
	c.answer(p, m, control.PolicyList{Version: version, Policies: list})
	return nil
}
