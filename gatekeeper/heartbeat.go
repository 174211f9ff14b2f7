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
	if b == nil || b.port != p || b.hello.Blade != h.Blade || b.hello.Boot != h.Boot {
		c.answer(p, m, control.HeartbeatReply{Rack: c.rack()})
		return nil
	}
	b.heard, b.used = c.now, h.Used
	c.reported(b, &h)
	c.askCommands(b)
	reply := control.HeartbeatReply{Known: true, Rack: c.rack(), Leases: c.leasesOf(b)}
	for i, a := range h.Nodes {
		if n := b.nodes[a]; n == nil || i < len(h.Incarnations) && n.incarnation != h.Incarnations[i] {
			reply.Gone = append(reply.Gone, a)
		}
	}
	c.answer(p, m, reply)
	return nil
}

// leasesOf lists the leases that a blade's nodes hold.
func (c *controller) leasesOf(b *blade) []control.NodeLeases {
	var out []control.NodeLeases
	for _, n := range b.sortedNodes() {
		held := c.leases.LeasesOf(n.address)
		if len(held) == 0 {
			continue
		}
		l := control.NodeLeases{Node: n.address, Leases: make(map[string]int, len(held))}
		for r, count := range held {
			l.Leases[r.Base.String()] = count
		}
		out = append(out, l)
	}
	return out
}

// rack is what nodes and daemons have to know of the rack.
func (c *controller) rack() control.Rack {
	_, policies := c.fleet.ExplicitPolicies()
	r := control.Rack{DSMPrefix: c.cfg.DSMPrefix, MTU: c.cfg.MTU, PolicyVersion: policies}
	for _, b := range c.blades {
		if b.memory() && c.open(b) {
			r.Memories = append(r.Memories, control.MemoryBlade{Machine: b.hello.Machine, Free: b.hello.Capacity - min(b.used, b.hello.Capacity)})
		}
	}
	slices.SortFunc(r.Memories, func(x, y control.MemoryBlade) int { return int(x.Machine) - int(y.Machine) })
	return r
}
