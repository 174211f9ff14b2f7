package gatekeeper

import (
	"net/netip"
	"slices"

	"github.com/bifrost-rack/bifrost/gatekeeper/recovery"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
)

// A node that has ended, for whatever reason, is the recovery.Machine's: it has the
// node fenced, first of all, and then either brought back, if it belongs to a
// deployment that goes on, or cleaned up after.
//
//	leave, silence, port, operator ─▶ removeNodes ─▶ Machine ─▶ Unidentify, Fence each memory blade
//	                                                    │              │ all have answered
//	                                                    └──────────────┴─▶ Fenced, Place ─▶ Joined ─▶ Recovered
//
// Until then it is in fallen: its calls wait, and its address and regions are its
// own.

// recover writes down what the recovery Machine has changed, and carries out what
// it wants.
func (c *controller) recover(o recovery.Output) {
	c.keepAll(o.Put, o.Delete)
	c.todo = append(c.todo, o.Actions...)
	if c.working {
		return // whoever works carries them out, after those before them
	}
	c.working = true
	for len(c.todo) > 0 {
		a := c.todo[0]
		c.todo = c.todo[1:]
		c.performRecovery(a)
	}
	c.todo, c.working = nil, false
}

// keepAll puts a core's records into the input's batch.
func (j *journal) keepAll(put []wal.Record, strike []wal.Key) {
	for _, r := range put {
		j.put(r)
	}
	for _, k := range strike {
		j.drop(k.Kind, k.ID)
	}
}

func (c *controller) performRecovery(a recovery.Action) {
	switch a := a.(type) {
	case recovery.Unidentify:
		c.unidentifyNode(a.Node, a.Gone)
	case recovery.Fence:
		c.fence(a)
	case recovery.Fenced:
		c.event(Event{Kind: NodeFenced, Node: a.Node})
	case recovery.Place:
		c.placeAgain(a)
	case recovery.Recovered:
		c.recovered(a)
	}
}

// removeNodes ends nodes that have failed together, or left.
func (c *controller) removeNodes(why string, nodes ...*node) {
	var failures []recovery.Failure
	for _, n := range nodes {
		if n.gone {
			continue
		}
		c.fall(n, why)
		failures = append(failures, recovery.Failure{Node: n.logged(), Gone: !c.goesOn(n), Cause: why})
	}
	for _, f := range failures {
		n := c.fallen[f.Node.Address]
		c.keepNode(n) // as one that is to be brought back, or cleaned up after
		c.keepExports(n)
	}
	c.recover(c.recoveries.Fail(c.now, failures...))
}

// beginAnew starts a node's program anew, since the node says that it shares the fate of another one. Only a deployed program
// can begin anew.
func (c *controller) beginAnew(n *node, why string) {
	if n.gone || !c.fleet.GoesOn(n.address) {
		return
	}
	c.stopInstance(n)
	c.removeNodes(why, n)
}

// fall takes a node out of service.
func (c *controller) fall(n *node, why string) {
	n.gone, n.why = true, why
	c.unhold(n)
	c.told.forget(n.address)
	b := n.blade
	delete(b.nodes, n.address)
	delete(c.nodes, n.address)
	c.fallen[n.address] = n
	c.leases.endOf(n.logged())
	c.goOnLeases()
	c.mains.Fail(n.logged())
	c.displaced(n, why)
	for token, o := range b.joins {
		if o == n {
			delete(b.joins, token)
		}
	}
	for _, x := range n.exports {
		x.away = true
	}
	c.event(Event{Kind: NodeFailed, Blade: b.hello.Blade, Node: n.address, Name: n.name, Message: why})
	c.logger.Info("node has ended", "node", n.address, "name", n.name, "incarnation", n.incarnation, "reason", why)
}

// unidentifyNode takes a node's identity away, so that nothing of it passes the
// switch any more; then its routes.
func (c *controller) unidentifyNode(id wal.Node, gone bool) {
	n := c.fallen[id.Address]
	if n == nil || n.incarnation != id.Incarnation {
		return
	}
	c.missFence(fenceOf(id, false))
	c.change(func(error) {
		if n.farewell != nil {
			n.farewell()
			n.farewell = nil
		}
		c.rememberRow(n)
		c.recover(c.recoveries.Unidentified(id))
	}, c.away(n, gone), append(c.unidentify(n.address, c.ports), c.unwantBatches(n)...))
	var phases []phase
	if !n.rights() {
		phases = split(c.unwant(l3Entry(host(n.address), 0)))
	}
	for _, a := range sortedServices(n.exports) {
		phases = append(phases, c.reroute(c.services[a])...)
	}
	c.change(nil, phases...)
}

// fence has a memory blade refuse a node.
func (c *controller) fence(a recovery.Fence) {
	b := c.blades[string(a.Server)]
	if b == nil || !b.alive() {
		return // RemoveServer follows, or has been
	}
	f := fenceOf(a.Node, false)
	c.command(b, control.KindFence, f, func(reply control.Message) {
		c.level(b, f, reply, c.fenced(b, reply, func() { c.recover(c.recoveries.Fenced(a.Server, a.Node)) }))
	})
}

// fenceOf is the fence of a node that has ended. What it has not decided is taken back when its calls are closed, if it is gone for good: others may read it
// until then (forsakeNode).
func fenceOf(n wal.Node, forsaken bool) control.Fence {
	return control.Fence{Node: n.Address, Incarnation: n.Incarnation, Forsaken: forsaken}
}

// placeAgain goes on after a fence: the registry has the node started elsewhere, if it is to be.
func (c *controller) placeAgain(a recovery.Place) {
	if n := c.fallen[a.Node.Address]; n != nil && n.incarnation == a.Node.Incarnation {
		if !a.Keep && !n.rights() {
			c.deleteLedger(n)
		}
		if !a.Keep {
			var phases []phase
			for _, s := range sortedServices(n.exports) {
				phases = append(phases, c.withdraw(n, s)...)
			}
			c.change(nil, phases...)
		}
	}
	c.act(c.fleet.Ended(a.Node.Address, a.Node.Incarnation, a.Keep, c.now))
	c.admitJoins(a.Node.Address)
}

// recovered ends a recovery. A node that is gone for good ends when its calls have (beginEnding); one that has no row has made none.
func (c *controller) recovered(a recovery.Recovered) {
	n := c.fallen[a.Node.Address]
	if n == nil || n.incarnation != a.Node.Incarnation {
		took := c.now.Sub(a.Since)
		c.event(Event{Kind: NodeRecovered, Node: a.Node.Address, Message: "took " + took.String()})
		c.logger.Info("node recovered", "node", a.Node.Address, "took", took)
		return
	}
	if n.rights() {
		c.beginEnding(n)
		return
	}
	delete(c.fallen, n.address)
	c.drop(wal.KindNode, wal.AddrID(n.address))
	c.disownMains(n)
	c.disownUnused()
	c.event(Event{Kind: NodeLeft, Blade: n.blade.hello.Blade, Node: n.address, Name: n.name, Message: n.why})
	c.logger.Info("node left", "node", n.address, "name", n.name, "reason", n.why)
}

// succeed makes a node that joins the next incarnation of one that has fallen.
func (p *population) succeed(n *node) {
	old := p.fallen[n.address]
	if old == nil {
		return
	}
	delete(p.fallen, n.address)
	p.left = slices.DeleteFunc(p.left, func(a netip.Addr) bool { return a == n.address })
	n.exports, n.ledger, n.owes, n.blocks, n.batches, n.row = old.exports, old.ledger, old.owes, old.blocks, old.batches, old.row
	n.image = old.image
	n.unheard = n.rights()
	n.first, n.before, n.afterExit, n.whyBefore = old.first, old.incarnation, old.exited, old.why
	for _, x := range n.exports {
		x.node = n
	}
}

// giveUpFallen ends the recovery of nodes that nobody wants back: they belong to a
// deployment that has been taken back, or made smaller.
func (c *controller) giveUpFallen() {
	for _, n := range c.sortedFallen() {
		if _, awaited := c.recoveries.Awaits(n.address); awaited && !c.comesBack(n) {
			c.unwanted(n, "it is not wanted any more")
		}
	}
}

// stopInstance ends a program that runs, but must begin again.
func (c *controller) stopInstance(n *node) {
	if n.blade.alive() && n.instance != "" {
		c.command(n.blade, control.KindStop, control.Stop{Name: n.instance}, nil)
	}
}

// server names a memory blade as the recovery Machine knows it.
func (b *blade) server() recovery.Server { return recovery.Server(b.hello.Blade) }
