package gatekeeper

import (
	"slices"

	"github.com/bifrost-rack/bifrost/internal/control"
)

// heartbeat keeps a blade in service and brings it up to date.
func (c *controller) heartbeat(p *port, m control.Message) error {
	var h control.Heartbeat
	if err := m.Decode(&h); err != nil {
		return err
	}
	b := p.blade
	if b == nil || b.port != p || b.hello.Blade != h.Blade || b.hello.Boot != h.Boot || b.anew {
		c.answer(p, m, control.HeartbeatReply{Rack: c.rack()})
		return nil
	}
	b.heard, b.used, b.ledgers = c.now, h.Used, h.Ledgers
	if b.reserve(h.Addresses) {
		c.keepMissed(b)
	}
	if h.Ledgers != nil && h.Ledgers.Birth != b.hello.Birth {
		b.hello.Birth = h.Ledgers.Birth // it has forgotten what another rack had
		c.keepMissed(b)
		if b.mirror != nil && b.mirror.has(b) {
			c.enroll(b)
		}
	}
	if h.Diverged > 0 && b.two() && h.MirrorEpoch == b.mirror.epoch {
		c.disagree(b.mirror, "the copies answer differently")
	}
	c.quit(b, "blade "+h.Blade+" is to have no copy", nil)
	c.filled(b, h.Fill)
	c.pairUp(b.mirror)
	c.reported(b, &h)
	c.removeNodes("its blade does not run it", b.ghosts(&h)...)
	c.askCommands(b)
	c.reclaimMore(b) // what found no room among the messages under way
	reply := control.HeartbeatReply{Known: true, Rack: c.rack(), Leases: c.leasesOf(b)}
	for i, a := range h.Nodes {
		if n := b.nodes[a]; n == nil || i < len(h.Incarnations) && n.incarnation != h.Incarnations[i] {
			reply.Gone = append(reply.Gone, a)
		}
	}
	c.answer(p, m, reply)
	return nil
}

// ghosts are the nodes that a blade does not have, by its heartbeat: of a program that
// has ended long since, a copy of whose join has come to a Gatekeeper which did not
// know that one.
func (b *blade) ghosts(h *control.Heartbeat) (ghosts []*node) {
	for _, n := range b.sortedNodes() {
		i := slices.Index(h.Nodes, n.address)
		here := i >= 0 && i < len(h.Incarnations) && h.Incarnations[i] == n.incarnation
		if !here && n.token <= h.Token && !slices.Contains(h.Unsettled, n.token) {
			ghosts = append(ghosts, n)
		}
	}
	return ghosts
}

// leasesOf lists the leases that a blade's nodes hold.
func (c *controller) leasesOf(b *blade) []control.NodeLeases {
	var out []control.NodeLeases
	room := control.MaxLeases
	for _, n := range b.sortedNodes() {
		held := c.leases.LeasesOf(n.address)
		if len(held) == 0 {
			continue
		}
		l := control.NodeLeases{Node: n.address, Leases: make(map[string]int, min(len(held), room))}
		for r, count := range held {
			if room == 0 {
				l.More++
				continue
			}
			room--
			l.Leases[r.Base.String()] = count
		}
		out = append(out, l)
	}
	return out
}

// free is how many bytes a memory machine has room for: with two copies, or when the second
// one is being filled, as many as the smaller one has.
func (c *controller) free(b *blade) uint64 {
	n := b.hello.Capacity - min(b.used, b.hello.Capacity)
	switch {
	case b.two():
		o := c.other(b)
		n = min(n, o.hello.Capacity-min(o.used, o.hello.Capacity))
	case b.mirror.fills(b):
		o := c.blades[b.mirror.filling.blade]
		n = min(n, o.hello.Capacity-min(b.used, o.hello.Capacity))
	}
	return n
}

// rack is what nodes and daemons have to know of the rack.
func (c *controller) rack() control.Rack {
	_, policies := c.fleet.ExplicitPolicies()
	r := control.Rack{DSMPrefix: c.cfg.DSMPrefix, MTU: c.cfg.MTU, PolicyVersion: policies}
	for _, b := range c.blades {
		switch {
		case !b.memory() || !b.first():
		case !c.open(b):
			r.Others = append(r.Others, int(b.hello.Machine))
		default:
			r.Memories = append(r.Memories, control.MemoryBlade{Machine: b.hello.Machine, Free: c.free(b)})
		}
	}
	slices.Sort(r.Others)
	slices.SortFunc(r.Memories, func(x, y control.MemoryBlade) int { return int(x.Machine) - int(y.Machine) })
	return r
}
