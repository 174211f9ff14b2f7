package gatekeeper

import (
	"context"
	"net/netip"

	"github.com/bifrost-rack/bifrost/dsm/packet"
	"github.com/bifrost-rack/bifrost/gatekeeper/callgraph"
	"github.com/bifrost-rack/bifrost/internal/fault"
	rpc "github.com/bifrost-rack/bifrost/rpc/packet"
)

// Questions to the call graph. Each is answered in a turn, from the state at one
// moment, and fails with ErrStopped if the Gatekeeper does not run; what is asked
// about has to exist (fault.NotFound).

// NodeCalls is what a node has to do with other nodes' calls.
type NodeCalls struct {
	// Waits are the calls that it has sent and that have not returned, Serves
	// those that were sent to it and that it has not finished; oldest first.
	Waits, Serves []CallState
}

// NodeCalls tells what a node waits for, and what it is working on.
func (g *Gatekeeper) NodeCalls(ctx context.Context, a netip.Addr) (out NodeCalls, err error) {
	err = g.query(ctx, func(c *controller) error {
		n := c.nodes[a]
		if n == nil {
			return fault.New(fault.NotFound, "node", "there is no node %s", a)
		}
		out = NodeCalls{Waits: c.states(c.graph.WaitsFor(n.identity())), Serves: c.states(c.graph.Serves(n.identity()))}
		return nil
	})
	return out, err
}

// Chain returns a call and the calls on whose behalf it was made, innermost first,
// as far as they are under way.
func (g *Gatekeeper) Chain(ctx context.Context, id rpc.ID) (chain []CallState, err error) {
	err = g.query(ctx, func(c *controller) error {
		chain = c.states(c.graph.Chain(id))
		if len(chain) == 0 {
			return fault.New(fault.NotFound, "call", "call %s is not under way", id)
		}
		return nil
	})
	return chain, err
}

// Holders is who has to do with a pointer.
type Holders struct {
	Region RegionState // with its controller and its leases
	// Calls are the calls under way that carry exactly this pointer, newest first.
	Calls []CallState
}

// Holders tells who holds a pointer.
func (g *Gatekeeper) Holders(ctx context.Context, p packet.Pointer) (out Holders, err error) {
	err = g.query(ctx, func(c *controller) error {
		r, ok := c.leases.Find(p)
		if !ok {
			return fault.New(fault.NotFound, "pointer", "%s lies in no region", p)
		}
		out = Holders{Region: regionState(r), Calls: c.states(c.graph.Carrying(p))}
		return nil
	})
	return out, err
}

// FailureDomain is what the failure of a blade would take back.
type FailureDomain struct {
	Nodes []netip.Addr // its nodes, and those that share a fate with one of them
	// Regions are those on a memory blade.
	Regions []RegionState
	// Rerun are the unfinished calls that would run again, the innermost first; Cut
	// those that would fail; Out those that the nodes have sent elsewhere, and that
	// run on; Waiting those elsewhere that wait for one of Rerun or Cut.
	Rerun, Cut, Out, Waiting []CallState
}

// FailureDomain tells what would fail with a blade.
func (g *Gatekeeper) FailureDomain(ctx context.Context, name string) (out FailureDomain, err error) {
	err = g.query(ctx, func(c *controller) error {
		b := c.blades[name]
		if b == nil {
			return fault.New(fault.NotFound, "blade", "there is no blade %q", name)
		}
		out = c.failureDomain(b)
		return nil
	})
	return out, err
}

func (c *controller) failureDomain(b *blade) (out FailureDomain) {
	var failed []callgraph.Node
	for _, n := range b.sortedNodes() {
		failed = append(failed, n.identity())
	}
	d := c.graph.Domain(failed...)
	for _, n := range d.Nodes {
		out.Nodes = append(out.Nodes, n.Address)
	}
	out.Rerun, out.Cut, out.Out, out.Waiting = c.states(d.Rerun), c.states(d.Cut), c.states(d.Out), c.states(d.Waiting)
	if b.memory() {
		for r := range c.leases.Regions() {
			if r.Region.Base.Machine() == b.hello.Machine {
				out.Regions = append(out.Regions, regionState(r))
			}
		}
	}
	return out
}

// states are the calls of views.
func (c *controller) states(views []callgraph.View) (all []CallState) {
	for i := range views {
		all = append(all, c.callState(c.known(&views[i])))
	}
	return all
}

// query has f asked in a turn.
func (g *Gatekeeper) query(ctx context.Context, f func(*controller) error) error {
	var err error
	if stopped := g.do(ctx, func() { err = f(g.ctl) }); stopped != nil {
		return stopped
	}
	return err
}
