package gatekeeper

import (
	"encoding/json"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// Nodes have memory blades keep or take back what executions have changed, as their ledgers say. The Gatekeeper tells blades
// which incarnations of nodes have ended, and looks after regions of which nobody else knows.

// excuse waits no longer for a memory blade that has failed or begun anew. It is told of fences when it is back.
func (c *controller) excuse(b *blade) {
	for _, o := range b.commands {
		if f, ok := o.body.(control.Fence); ok {
			b.missed.fence(f)
		}
	}
	b.commands, b.unlevel = nil, nil
	c.keepMissed(b)
}

func (c *controller) nodeOrFallen(a netip.Addr) *node {
	if n := c.nodes[a]; n != nil {
		return n
	}
	return c.fallen[a]
}

// A region comes up at a memory blade when that handles the request, and here when
// the answer comes by. If its node fails in between, and the answer is lost, nobody
// asks again, and nobody but the memory blade knows the region. So its answer to a
// fence names the regions whose allocations the node had not settled:
//
//	fence ─▶ unsettled allocations ─▶ known here? it is somebody's ─▶ nothing to do
//	                                          └─ no ─▶ an execution's that is not committed: its next run finds it, or its commit frees it
//	                                               └─▶ else: reclaimed
//
// What is lost with the Gatekeeper's own end, the audit of its successor finds.

// fenced takes a memory blade's answer to a fence.
func (c *controller) fenced(b *blade, m control.Message) {
	var told control.Fenced
	if m.Status != fault.OK || len(m.Body) == 0 || json.Unmarshal(m.Body, &told) != nil {
		return // an error is reported by whoever has asked; what it hides waits for an audit
	}
	if c.cfg.Rights {
		c.checkNamed(b, &told)
		return
	}
	for _, id := range told.Regions {
		c.lost(c.unknownOf(b, id))
	}
	if told.More {
		c.audit(b)
	}
}

// unknownRegion is a region of a memory blade that nobody here knows, which node has allocated it, and whether that was on
// behalf of an execution that has not been committed.
type unknownRegion struct {
	region  dsmpacket.Region
	node    netip.Addr
	pending bool
}

// unknownOf is a region that a memory blade names.
func (c *controller) unknownOf(b *blade, id control.RegionID) unknownRegion {
	return unknownRegion{region: id.Region(c.cfg.DSMPrefix, b.hello.Machine), node: id.Owner, pending: id.Execution != control.ExecutionID{}}
}

// lost looks after a region whose owner, an incarnation of a node, has ended, and may
// not have heard of it. If the node goes on, an execution may yet ask for what it has allocated. When the node commits the
// execution, the memory blade frees what that has not asked for again. What a run has asked for, and has not waited for, goes when the node
// is gone for good.
func (c *controller) lost(s unknownRegion) {
	if n := c.nodeOrFallen(s.node); s.pending && n != nil && c.remains(s.node) {
		n.knowLater(s)
		return
	}
	if _, known := c.leases.Find(s.region.Base); !known {
		c.reclaim([]dsmpacket.Region{s.region})
	}
}

// remains reports whether a node is there, or is to come back.
func (c *controller) remains(node netip.Addr) bool {
	_, awaited := c.recoveries.Awaits(node)
	return awaited || c.nodes[node] != nil
}

// freeRegions takes a node's word that regions go which it has. What it does not have is left alone: it says so again if it has failed meanwhile.
func (c *controller) freeRegions(n *node, all []netip.Addr) error {
	if len(all) > control.MaxFrees {
		return fault.New(fault.BadRequest, "calls", "node %s frees too many regions at a time", n.address)
	}
	for _, a := range all {
		if v, ok := c.leases.Find(dsmpacket.FromAddr(a)); ok && v.Controller == n.address {
			c.count.Frees++
			c.steps(c.leases.Abandon(v.Region, n.address))
		}
	}
	return nil
}

// A memory blade that is out of service, but has not begun anew, still has its
// regions and what executions did to them. When it says hello again, it is told of the fences that it
// has missed, before the first request reaches it:
//
//	hello ─▶ fences ─▶ in service
//	         each is struck out when the blade has done it
//
// If the blade answers one of them with an error, its hello fails, and it says hello
// again.

// missed is what a memory blade was not there for.
type missed struct {
	Fences []control.Fence `json:"fences,omitempty"`
}

// fence adds a fence, instead of one of an earlier incarnation. It reports whether it did. That an
// incarnation is forsaken stays, though a later one is fenced.
func (m *missed) fence(f control.Fence) bool {
	i := slices.IndexFunc(m.Fences, func(o control.Fence) bool { return o.Node == f.Node && o.Forsaken == f.Forsaken })
	switch {
	case i < 0:
		m.Fences = append(m.Fences, f)
	case m.Fences[i].Incarnation >= f.Incarnation:
		return false
	default:
		m.Fences[i] = f
	}
	return true
}

// done strikes out what the blade has done.
func (m *missed) done(f control.Fence) {
	m.Fences = slices.DeleteFunc(m.Fences, func(o control.Fence) bool { return o == f })
}

// portAddress is a blade's switch port, and from which address it speaks there.
type portAddress struct {
	port uint16
	mac  string
}

// absent yields the memory blades that are out of service.
func (c *controller) absent(yield func(*blade) bool) {
	for _, b := range c.sortedBlades() {
		if b.memory() && !b.alive() && b.holds() && !yield(b) {
			return
		}
	}
}

// missFence notes a fence for the blades that are not there.
func (c *controller) missFence(f control.Fence) {
	for b := range c.absent {
		if b.missed.fence(f) {
			c.keepMissed(b)
		}
	}
}

// catchUp tells a memory blade what it has missed, and then goes on with its hello. What
// an earlier hello has begun to tell is given up.
func (c *controller) catchUp(p *port, hello control.Message, b *blade) error {
	p.cancel()
	return c.catchUpMore(p, hello, b)
}

func (c *controller) catchUpMore(p *port, hello control.Message, b *blade) error {
	if len(b.missed.Fences) == 0 {
		var h control.Hello
		if err := hello.Decode(&h); err != nil {
			return err
		}
		b, err := c.admit(p, &h) // things may have changed meanwhile
		if err != nil {
			return err
		}
		return c.register(p, hello, b, h)
	}
	f := b.missed.Fences[0]
	return c.ask(p, control.KindFence, f, func(m control.Message) {
		if m.Status == fault.OK {
			c.fenced(b, m)
		}
		if c.caughtUp(p, hello, m, b) {
			b.missed.done(f)
			c.keepMissed(b)
			c.goOn(p, hello, c.catchUpMore(p, hello, b))
		}
	})
}

// caughtUp reports whether a blade has done what catchUp has asked, and still waits for
// its hello.
func (c *controller) caughtUp(p *port, hello, m control.Message, b *blade) bool {
	switch {
	case b.alive() || m.Status == fault.Stale: // meanwhile; or there is another Gatekeeper
		return false
	case m.Status == fault.OK:
		return true
	}
	err := fault.Remote(m.Status, m.Kind.String(), "%s", m.Body)
	c.count.Failures++
	c.logger.Error("a memory blade does not catch up, and stays out of service", "blade", b.hello.Blade, "command", m.Kind, "error", err)
	c.goOn(p, hello, err)
	return false
}

// goOn answers a hello with an error, if there is one: the daemon says hello again.
func (c *controller) goOn(p *port, hello control.Message, err error) {
	if err != nil {
		c.fail(p, hello, err)
	}
}

// audit asks a memory blade for its regions and looks after those that are not on
// the log: their allocation was not answered before we were cut off. While their
// owner is there it may still ask; after that they are reclaimed.
func (c *controller) audit(b *blade) {
	c.reclaimMore(b)
	if c.cfg.Rights {
		return // the switch knows whose regions are
	}
	if err := c.auditFrom(b, 0); err != nil {
		c.count.Failures++
		c.logger.Error("a memory blade does not tell its regions", "blade", b.hello.Blade, "error", err)
	}
}

func (c *controller) auditFrom(b *blade, from dsmpacket.RegionID) error {
	if !b.alive() {
		return nil
	}
	boot := b.hello.Boot
	return c.ask(b.port, control.KindRegions, control.Regions{From: from, Max: control.MaxRegions}, func(m control.Message) {
		if b.hello.Boot != boot {
			return // it has lost them
		}
		page, err := regionList(m)
		for _, r := range page.Regions {
			c.lookAfterUnknown(c.unknownOf(b, r), r.Settled)
		}
		if err == nil && page.Next > from {
			err = c.auditFrom(b, page.Next)
		}
		if err != nil {
			c.count.Failures++
			c.logger.Error("a memory blade does not tell its regions", "blade", b.hello.Blade, "error", err)
		}
	})
}

// regionList reads a page of the answer.
func regionList(m control.Message) (page control.RegionList, err error) {
	switch m.Status {
	case fault.OK:
		err = json.Unmarshal(m.Body, &page)
	case fault.Unavailable: // it does not serve memory yet, so it has none
	default:
		err = fault.Remote(m.Status, "regions", "%s", m.Body)
	}
	return page, err
}

// lookAfterUnknown looks after a region that a memory blade has. A node that says that it has had the answer has not: we have not let it through.
func (c *controller) lookAfterUnknown(s unknownRegion, settled bool) {
	if _, known := c.leases.Find(s.region.Base); known {
		return
	}
	if n := c.nodes[s.node]; n != nil && !settled {
		n.knowLater(s)
		return
	}
	c.lost(s)
}

// knowLater notes a region that the node may yet ask for.
func (n *node) knowLater(s unknownRegion) {
	if n.unknown == nil {
		n.unknown = map[dsmpacket.Region]unknownRegion{}
	}
	n.unknown[s.region] = s
}

// reclaimAllUnknown reclaims what an incarnation of a node that has ended has never been given. What it
// was given and has freed is not there any more, and never will be.
func (c *controller) reclaimAllUnknown(n *node) {
	all := n.unknown
	n.unknown = nil
	for _, r := range slices.SortedFunc(maps.Keys(all), func(a, b dsmpacket.Region) int { return slices.Compare(a.Base[:], b.Base[:]) }) {
		c.lost(all[r])
	}
}

// How many bytes of regions nobody may know at a memory blade, as a part of what it has, and how often it is asked for them.
const (
	leakPart  = 64
	leakAgain = 10 * time.Second
)

// auditLeaks asks a memory blade for its regions if it has many more than are known here: those of answers that got lost, which the switch does when
// there are too many. Their nodes ask again, but for one that has gone, or that does not mean to.
func (c *controller) auditLeaks(b *blade, regions uint64) {
	if c.cfg.Rights || !b.memory() || !b.holds() || regions <= c.leases.Bytes(b.hello.Machine)+b.hello.Capacity/leakPart || c.now.Sub(b.audited) < leakAgain {
		return
	}
	b.audited = c.now
	c.audit(b)
}
