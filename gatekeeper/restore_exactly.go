package gatekeeper

import (
	"iter"
	"slices"

	"github.com/bifrost-rack/bifrost/gatekeeper/callgraph"
	"github.com/bifrost-rack/bifrost/gatekeeper/execution"
	"github.com/bifrost-rack/bifrost/gatekeeper/lease"
	"github.com/bifrost-rack/bifrost/gatekeeper/log"
	"github.com/bifrost-rack/bifrost/gatekeeper/recovery"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	rpc "github.com/bifrost-rack/bifrost/rpc/packet"
)

// loadCores makes the Table of executions and the recovery Machine what they were.
// Memory blades are restored by then, nodes too.
func (c *controller) loadCores(s *saved) (err error) {
	if c.table, err = execution.Load(0, all(s.exact)); err != nil {
		return err
	}
	s.exact = nil // packets may be large
	if c.recoveries, err = recovery.Load(all(s.recoveries)); err != nil {
		return err
	}
	for _, b := range c.servers {
		c.recoveries.AddServer(b.server()) // Resume tells them what there is to fence
	}
	return nil
}

func all(records []log.Record) iter.Seq2[log.Record, error] {
	return func(yield func(log.Record, error) bool) {
		for _, r := range records {
			if !yield(r, nil) {
				return
			}
		}
	}
}

// resumeExact brings the leases of a running call back, and its place in the call
// graph. One whose outcome is logged has ended its leases, or is about to.
func (c *controller) resumeExact(s savedCall) {
	id := s.call.header.Call
	v, known := c.table.View(id)
	if !known || v.Stage == "done" {
		return
	}
	if v.Stage != "running" {
		c.resumed[id] = true
		return
	}
	c.leases.AddNode(v.Caller)
	c.leases.AddNode(v.Callee.Address)
	if v.Lends {
		c.leases.Resume(lease.Call{ID: id, Parent: v.Header.Parent, Caller: v.Caller, Callee: v.Callee.Address, Pointers: s.pointers})
	}
	k := callgraph.Call{
		ID: id, Parent: v.Header.Parent, Policy: v.Header.Flags.Policy(), Pointers: s.pointers,
		Caller: callgraph.Node{Address: v.Caller, Incarnation: s.caller.Incarnation}, Callee: callgraph.Node(v.Callee),
		Method: v.Header.Method.String(), Oneway: v.Header.Type == rpc.Oneway,
	}
	if n := c.nodeOrFallen(v.Caller); n != nil {
		k.Caller = n.identity()
	}
	if svc := c.services[rackaddr.ServiceOf(v.Header.Service)]; svc != nil {
		k.Service, k.Serial = svc.name, svc.stateful()
		if n := c.nodeOrFallen(v.Callee.Address); n != nil {
			k.Callee, k.Method = n.identity(), svc.methodName(n, v.Header.Method)
		}
	}
	_ = c.enter(k) // it was let in before
}

// resumeCores goes on with what a Gatekeeper that was killed may not have got done,
// and delivers what runs. It needs the switch.
func (c *controller) resumeCores() {
	c.execute(c.table.Resume(c.now))
	c.recover(c.recoveries.Resume())
	var known []recovery.Failure
	for _, v := range c.recoveries.Recoveries() {
		known = append(known, v.Failure)
	}
	for _, n := range c.sortedFallen() {
		if !slices.ContainsFunc(known, func(f recovery.Failure) bool { return f.Node.Address == n.address }) {
			c.recover(c.recoveries.Fail(c.now, recovery.Failure{Node: n.logged(), Gone: !c.goesOn(n), Cause: n.why}))
		}
	}
	c.giveUpFallen()
	for _, b := range c.sortedBlades() {
		for _, n := range b.sortedNodes() {
			c.recover(c.recoveries.Joined(n.logged(), c.now))
		}
	}
	for _, b := range c.sortedBlades() {
		for _, n := range b.sortedNodes() {
			for _, s := range sortedServices(n.exports) {
				if !n.exports[s].away {
					c.up(n, s)
				}
			}
			if n.empties && n.moves {
				c.table.Empty(n.logged())
			}
		}
	}
}

func (c *controller) sortedFallen() []*node {
	out := make([]*node, 0, len(c.fallen))
	for _, n := range c.fallen {
		out = append(out, n)
	}
	slices.SortFunc(out, func(x, y *node) int { return x.address.Compare(y.address) })
	return out
}
