package gatekeeper

import (
	"net/netip"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/share"
)

// ownersOf tells a memory blade whose nodes are.
func (c *controller) ownersOf(p *port, m control.Message) error {
	var q control.Owners
	if err := m.Decode(&q); err != nil {
		return err
	}
	b, err := p.bladeAt("owners")
	if err != nil {
		return err
	}
	if !b.memory() || len(q.Nodes) > control.MaxOwners {
		return fault.New(fault.BadRequest, "owners", "a memory blade asks for %d nodes at most", control.MaxOwners)
	}
	r := control.OwnersReply{Owners: make([]share.Owner, len(q.Nodes))}
	for i, a := range q.Nodes {
		if n := c.nodeOrFallen(a); n != nil {
			r.Owners[i] = n.charged()
		}
	}
	p.answer(m, r)
	return nil
}

// heldNoHome answers a request to a memory machine that is not in service. One that is has got another home since, or is
// about to: the client asks again, and what it did must not fail for that.
func (c *controller) heldNoHome(h *held) {
	if c.sender(h) == nil {
		c.count.Foreign++
		return
	}
	if c.machine(dsmpacket.FromAddr(h.dst)) != nil {
		return
	}
	if f, ok := memoryAnswer(h, fault.Unavailable); ok {
		c.send(0, f)
	} else {
		c.count.Malformed++
	}
}

// memoryAnswer answers a memory request in the memory blade's place. It reports false if it is none.
func memoryAnswer(h *held, code fault.Code) (frame []byte, ok bool) {
	m, _, err := dsmpacket.Parse(h.payload)
	if err != nil || m.Kind != dsmpacket.Request {
		return nil, false
	}
	answer := m // the client knows its own by incarnation and request id
	answer.Kind, answer.Status, answer.Length, answer.Mirror = dsmpacket.Reply, code, 0, dsmpacket.Mirror{}
	return h.reply(answer.Append(nil)), true
}

// reclaim frees regions whose holder is gone. A memory blade that is out of
// service is told when it is back, if it still has them then.
func (c *controller) reclaim(regions []dsmpacket.Region) {
	for _, r := range regions {
		c.count.Reclaims++
		c.keepReclaim(r)
		c.event(Event{Kind: RegionReclaimed, Region: r.String()})
		c.owe(r)
		for _, b := range c.sortedBlades() {
			c.reclaimMore(b)
		}
	}
}

// owe notes a region for the blades that have to free it: every copy of its machine. It
// reports false if there is none.
func (e *estate) owe(r dsmpacket.Region) (owed bool) {
	id := control.RegionID{ID: r.Base.ID(), Class: r.Class}
	for _, b := range e.sortedBlades() {
		if b.memory() && b.hello.Machine == r.Base.Machine() && b.obeys() {
			b.reclaims = append(b.reclaims, id)
			owed = true
		}
	}
	return owed
}

// reclaimMore tells a memory blade what to free; one command is out at a time.
func (c *controller) reclaimMore(b *blade) {
	if !b.alive() || b.reclaiming > 0 || len(b.reclaims) == 0 {
		return
	}
	n := min(len(b.reclaims), control.MaxRegions)
	err := b.port.ask(c.now, control.KindReclaim, control.Reclaim{Boot: b.hello.Boot, Regions: b.reclaims[:n]}, func(m control.Message) {
		var answer control.Reclaimed
		switch {
		case m.Status != fault.OK: // it is asked again at its next heartbeat
			c.count.Failures++
			c.logger.Error("a memory blade does not reclaim", "blade", b.hello.Blade, "error", fault.Remote(m.Status, "reclaim", "%s", m.Body))
			b.reclaiming = 0
			return
		case len(m.Body) > 0 && m.Decode(&answer) == nil:
			for _, r := range answer.Refused {
				c.count.Failures++
				c.logger.Error("a memory blade does not have a region that is to be reclaimed", "blade", b.hello.Blade, "region", r.Region(c.cfg.DSMPrefix, b.hello.Machine))
			}
		}
		done := b.reclaims[:b.reclaiming]
		b.reclaims, b.reclaiming = b.reclaims[b.reclaiming:], 0
		c.dropReclaims(b, done)
		c.reclaimMore(b)
	})
	if err != nil {
		c.logger.Error("cannot ask a memory blade to reclaim", "blade", b.hello.Blade, "error", err)
		return
	}
	b.reclaiming = n
}

// accessDenied takes the switch's word that it has denied an access.
func (c *controller) accessDenied(port uint16, src, dst netip.Addr) {
	p := dsmpacket.FromAddr(dst)
	c.count.Denied++
	d := Denial{Time: c.now, Port: port, Node: src, Op: p.Op().String(), Pointer: p.Bare().String()}
	if len(c.denied) == maxDenied {
		c.denied = append(c.denied[:0], c.denied[1:]...)
	}
	c.denied = append(c.denied, d)
	c.event(Event{Kind: AccessDenied, Node: src, Op: d.Op, Region: d.Pointer})
}
