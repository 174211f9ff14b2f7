package gatekeeper

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/gatekeeper/recovery"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
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
func (c *controller) keepAll(put []wal.Record, strike []wal.Key) {
	for _, r := range put {
		c.put(r)
	}
	for _, k := range strike {
		c.drop(k.Kind, k.ID)
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

// removeNode is removeNodes for one.
func (c *controller) removeNode(n *node, why string) { c.removeNodes(why, n) }

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
	c.removeNode(n, why)
}

// fall takes a node out of service.
func (c *controller) fall(n *node, why string) {
	n.gone, n.why = true, why
	c.forgetTold(n.address)
	b := n.blade
	delete(b.nodes, n.address)
	delete(c.nodes, n.address)
	c.fallen[n.address] = n
	c.mainsFailed(n)
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
	c.missFence(fenceOf(id, gone))
	c.change(func(error) {
		if n.farewell != nil {
			n.farewell()
			n.farewell = nil
		}
		c.recover(c.recoveries.Unidentified(id))
	}, c.unidentify(n.address))
	phases := split(c.base.unwant(l3Entry(host(n.address), 0)))
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
	f := fenceOf(a.Node, a.Gone)
	c.command(b, control.KindFence, f, func(reply control.Message) {
		c.fenced(b, reply)
		c.level(b, f, reply, func() { c.recover(c.recoveries.Fenced(a.Server, a.Node)) })
	})
}

func fenceOf(n wal.Node, gone bool) control.Fence {
	return control.Fence{Node: n.Address, Incarnation: n.Incarnation, Forsaken: gone}
}

// placeAgain goes on after a fence: calls of policy none to the node end, and the
// registry has it started elsewhere, if it is to be.
func (c *controller) placeAgain(a recovery.Place) {
	if n := c.fallen[a.Node.Address]; n != nil && n.incarnation == a.Node.Incarnation {
		if !a.Keep {
			c.deleteLedger(n)
		}
		c.cutLoans(a.Node)
		c.dropAllocs(n)
		c.reclaimAllUnknown(n)
		if a.Keep {
			c.forsake(n)
		} else {
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

// recovered ends a recovery. Of a node that is gone for good, the regions go after
// their last leases.
func (c *controller) recovered(a recovery.Recovered) {
	n := c.fallen[a.Node.Address]
	if n == nil || n.incarnation != a.Node.Incarnation {
		took := c.now.Sub(a.Since)
		c.event(Event{Kind: NodeRecovered, Node: a.Node.Address, Message: "took " + took.String()})
		c.logger.Info("node recovered", "node", a.Node.Address, "took", took)
		return
	}
	delete(c.fallen, n.address)
	c.drop(wal.KindNode, wal.AddrID(n.address))
	c.voidLoans(n.address)
	c.steps(c.leases.RemoveNode(n.address))
	c.loansGone(n.address)
	c.endExecutions(n.address)
	c.disownMains(n)
	c.disownUnused()
	c.event(Event{Kind: NodeLeft, Blade: n.blade.hello.Blade, Node: n.address, Name: n.name, Message: n.why})
	c.logger.Info("node left", "node", n.address, "name", n.name, "reason", n.why)
}

// succeed makes a node that joins the next incarnation of one that has fallen.
func (c *controller) succeed(n *node) {
	old := c.fallen[n.address]
	if old == nil {
		return
	}
	delete(c.fallen, n.address)
	c.left = slices.DeleteFunc(c.left, func(a netip.Addr) bool { return a == n.address })
	n.exports, n.ledger, n.owes, n.afterExit = old.exports, old.ledger, old.owes, old.exited
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

// A re-run of an execution must get the regions that the runs before it got: its calls
// pass their pointers. Memory blades know who has allocated what, and a re-run asks all
// of them. Two cases they cannot see, so an allocation's answer is compared with what
// the execution was given before, here:
//
//	the region was on a machine that has started anew ─▶ unavailable: no run can ever have it again
//	an earlier run's answer was lost, and a later run
//	got another region while the blade was away      ─▶ not found here; the first region is reclaimed
//
// What is known goes when the execution has ended, or its changes were committed.

// origin names an allocation: which one, of which execution.
type origin struct {
	execution rpcpacket.ID
	branch    uint64 // a main's has its last checkpoint in the upper half
	index     uint32
}

// originOf is the allocation that a memory header speaks of, the zero origin if it is
// not an execution's.
func (c *controller) originOf(m *dsmpacket.Header) origin {
	if m.Execution == ([16]byte{}) {
		return origin{}
	}
	return origin{c.executionOf(m.Execution), m.Branch, m.Index}
}

// originSize is how many bytes append adds.
const originSize = 16 + 8 + 4

func (o origin) append(b []byte) []byte {
	b = append(b, o.execution[:]...)
	b = binary.BigEndian.AppendUint64(b, o.branch)
	return binary.BigEndian.AppendUint32(b, o.index)
}

func parseOrigin(b []byte) origin {
	return origin{rpcpacket.ID(b[:16]), binary.BigEndian.Uint64(b[16:]), binary.BigEndian.Uint32(b[24:])}
}

// origins are the allocations of executions that have not ended.
type origins struct {
	of     map[dsmpacket.Pointer]origin // by a region's base
	region map[origin]dsmpacket.Region
	lost   map[dsmpacket.Pointer]bool // regions whose machine has lost them
	all    map[rpcpacket.ID][]origin
	node   map[rpcpacket.ID]netip.Addr // of each execution
}

func newOrigins() origins {
	return origins{
		of: map[dsmpacket.Pointer]origin{}, region: map[origin]dsmpacket.Region{}, lost: map[dsmpacket.Pointer]bool{}, all: map[rpcpacket.ID][]origin{},
		node: map[rpcpacket.ID]netip.Addr{},
	}
}

// note says which allocation of a node's execution a region is.
func (s *origins) note(o origin, r dsmpacket.Region, node netip.Addr) {
	if o == (origin{}) {
		return
	}
	s.of[r.Base], s.region[o], s.node[o.execution] = o, r, node
	s.all[o.execution] = append(s.all[o.execution], o)
}

// on reports whether an execution has regions on a memory machine.
func (s *origins) on(e rpcpacket.ID, machine uint8) bool {
	return slices.ContainsFunc(s.all[e], func(o origin) bool {
		r := s.region[o]
		return r.Base.Machine() == machine && !s.lost[r.Base]
	})
}

// lose says that a machine has lost its content, and returns the regions that executions
// may ask for again.
func (s *origins) lose(machine uint8) (lost []dsmpacket.Region) {
	for o, r := range s.region {
		if r.Base.Machine() == machine && s.of[r.Base] == o && !s.lost[r.Base] {
			s.lost[r.Base] = true
			lost = append(lost, r)
		}
	}
	return lost
}

// forget drops a region.
func (s *origins) forget(r dsmpacket.Region) {
	o, known := s.of[r.Base]
	if !known {
		return
	}
	delete(s.of, r.Base)
	delete(s.lost, r.Base)
	delete(s.region, o)
	rest := slices.DeleteFunc(s.all[o.execution], func(x origin) bool { return x == o })
	if len(rest) == 0 {
		delete(s.all, o.execution)
		delete(s.node, o.execution)
	} else {
		s.all[o.execution] = rest
	}
}

// end drops what an execution has allocated before a checkpoint, the zero checkpoint
// standing for its end. It returns the lost regions among it.
func (s *origins) end(e rpcpacket.ID, checkpoint uint32) (lost []dsmpacket.Region) {
	for _, o := range slices.Clone(s.all[e]) {
		r := s.region[o]
		if checkpoint != 0 && o.branch>>32 >= uint64(checkpoint) {
			continue
		}
		if s.lost[r.Base] {
			lost = append(lost, r)
		}
		s.forget(r)
	}
	return lost
}

// loseMachine says that a memory blade's machine has lost its content: the blade has
// started anew, and begins above all that it had.
func (c *controller) loseMachine(b *blade) {
	for _, r := range c.origins.lose(b.hello.Machine) {
		c.keepLost(r)
	}
	if m := b.mirror; m != nil {
		m.copies, m.lost = nil, b.begin // it begins as another copy, which enroll writes down
	}
	c.steps(c.leases.RemoveMachine(c.cfg.DSMPrefix, b.hello.Machine, b.begin))
}

// restoreLost tells the lease machine what machines have lost.
func (c *controller) restoreLost() {
	for _, b := range c.blades {
		if b.memory() && b.mirror == nil && b.begin > 0 {
			c.leases.RemoveMachine(c.cfg.DSMPrefix, b.hello.Machine, b.begin)
		}
	}
	for _, m := range c.mirrors {
		if m.lost > 0 {
			c.leases.RemoveMachine(c.cfg.DSMPrefix, m.machine, m.lost)
		}
	}
}

// keepLost writes down that a region is lost that an execution may ask for again.
func (c *controller) keepLost(r dsmpacket.Region) {
	o := c.origins.of[r.Base]
	c.put(wal.Record{
		Kind: wal.KindRegion, ID: wal.AddrID(r.Base.Addr()), Callee: wal.Node{Address: c.origins.node[o.execution]}, Data: o.append([]byte{r.Class, regionLost}),
	})
}

// endOrigins forgets what an execution has allocated before a checkpoint, or until its
// end.
func (c *controller) endOrigins(e rpcpacket.ID, checkpoint uint32) {
	for _, r := range c.origins.end(e, checkpoint) {
		c.drop(wal.KindRegion, wal.AddrID(r.Base.Addr()))
	}
}

// disownOrigins forgets what is on record as a durable main's that begins only now: programs have named the main's id at
// memory blades, which everybody knows. From now on such an id is no name of the main (executionOf).
func (c *controller) disownOrigins(main rpcpacket.ID) {
	for _, o := range slices.Clone(c.origins.all[main]) {
		r := c.origins.region[o]
		lost := c.origins.lost[r.Base]
		c.origins.forget(r)
		c.holdings.release(r)
		if lost {
			c.drop(wal.KindRegion, wal.AddrID(r.Base.Addr()))
		} else {
			c.keepRegion(r)
		}
	}
}

// endedOrigins forgets the allocations of executions whose nodes are gone for good, after a restart.
func (c *controller) endedOrigins() {
	for e, node := range c.origins.node {
		if !c.remains(node) {
			c.endOrigins(e, 0)
		}
	}
}

// otherRegion refuses the answer to an allocation for which the execution was given
// another region before.
func (c *controller) otherRegion(h *held, r dsmpacket.Region, m *dsmpacket.Header, known *allocs) bool {
	had, there := c.origins.region[c.originOf(m)]
	if !there || had == r {
		return false
	}
	why := fault.NotFound // a re-run goes on looking, and finds the other one
	if c.origins.lost[had.Base] {
		why = fault.Unavailable
	}
	if !known.late(m.Request) {
		known.handled(m.Request) // a later copy of the answer gives nobody the region
		c.keepAllocs(c.nodes[h.dst], r.Base.Machine())
		c.reclaim([]dsmpacket.Region{r})
	}
	c.noRegion(h, r, m, why)
	return true
}
