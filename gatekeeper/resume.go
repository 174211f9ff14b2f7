package gatekeeper

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"github.com/bifrost-rack/bifrost/gatekeeper/log"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/frame"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	rpc "github.com/bifrost-rack/bifrost/rpc/packet"
)

// resumption is what a Gatekeeper has to do when it has begun with a log, once
// the switch is as it should be.
type resumption struct {
	calls  []rpc.ID // to be released again, in the order of the log
	blades []*blade // memory blades to be asked for what they have
	// mirrors are the machines whose copies are to be told what they are.
	mirrors []*mirror
	cores   bool // what is left to do of exactly-once calls and recoveries
}

// due reports whether there is something left.
func (r *resumption) due() bool { return len(r.calls)+len(r.blades)+len(r.mirrors) > 0 || r.cores }

// resume does a part of what is left. A call that was logged may not have been
// released, so it is now; one that was is a duplicate to its callee. Replies wait
// for their callers to ask.
func (c *controller) resume() {
	if !c.connected {
		return
	}
	if c.resuming.cores {
		c.resuming.cores = false
		c.resumeCores()
		c.evict()
	}
	n := min(len(c.resuming.calls), c.cfg.Limits.Resume)
	for _, id := range c.resuming.calls[:n] {
		if err := c.releaseAgain(id); err != nil {
			c.count.Failures++
			c.log.Error("the log does not give a call back", "call", id, "error", err)
		}
	}
	if c.resuming.calls = c.resuming.calls[n:]; len(c.resuming.calls) == 0 {
		c.resuming.calls = nil
	}
	for _, m := range c.resuming.mirrors {
		c.resumeMirror(m)
	}
	c.resuming.mirrors = nil
	for _, b := range c.resuming.blades {
		if b.alive() {
			c.audit(b)
			c.reconcileLedgers(b)
		}
	}
	c.resuming.blades = nil
}

// releaseAgain releases a logged call, unless it has ended since.
func (c *controller) releaseAgain(id rpc.ID) error {
	k := c.calls[id]
	if k == nil || k.stage != stageRunning && !k.oneway() {
		return nil
	}
	n := c.nodes[k.callee]
	if n == nil || n.incarnation != k.incarnation || n.blade.port == nil {
		return nil // it ends with its callee
	}
	r, ok, err := c.cfg.Store.Get(log.KindCall, log.ID(id))
	if !ok || err != nil {
		return err
	}
	m, err := rpc.Parse(r.Packet)
	if err != nil {
		return err
	}
	m.Flags |= rpc.FlagReleased | rpc.FlagReplay
	c.count.Resumed++
	c.send(hopOf(n.blade.port.num), frame.UDP6{
		Src: netip.AddrPortFrom(k.caller, rackaddr.PortRPC), Dst: netip.AddrPortFrom(k.to, rackaddr.PortRPC), Payload: m.Append(nil),
	}.Append(nil))
	c.callEvent(CallReleased, k)
	return nil
}

// audit asks a memory blade for its regions and looks after those that are not on
// the log: their allocation was not answered before we were cut off. While their
// owner is there it may still ask; after that they are reclaimed.
func (c *controller) audit(b *blade) {
	c.reclaimMore(b)
	if err := c.auditFrom(b, 0); err != nil {
		c.count.Failures++
		c.log.Error("a memory blade does not tell its regions", "blade", b.hello.Blade, "error", err)
	}
}

func (c *controller) auditFrom(b *blade, from uint64) error {
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
			c.stray(c.strayOf(b, r), r.Owner)
		}
		if err == nil && page.Next > from {
			err = c.auditFrom(b, page.Next)
		}
		if err != nil {
			c.count.Failures++
			c.log.Error("a memory blade does not tell its regions", "blade", b.hello.Blade, "error", err)
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

// stray looks after a region that a memory blade has.
func (c *controller) stray(s stray, owner netip.Addr) {
	if _, known := c.leases.Find(s.region.Base); known {
		return
	}
	if n := c.nodes[owner]; n != nil {
		if !slices.Contains(n.strays, s) {
			n.strays = append(n.strays, s)
		}
		return
	}
	c.lost(s, owner)
}

// reclaimStrays reclaims what a node that is gone has never been given. What it
// was given and has freed is not there any more, and never will be.
func (c *controller) reclaimStrays(n *node) {
	for _, s := range n.strays {
		c.lost(s, n.address)
	}
	n.strays = nil
}

// corrupt says which record makes no sense.
func corrupt(r *log.Record, format string, args ...any) error {
	return fmt.Errorf("the log is %w: record %d, %s: %s", log.ErrCorrupt, r.Sequence, r.Key(), fmt.Sprintf(format, args...))
}

// data reads a record's JSON.
func data(r *log.Record, v any) error {
	if err := json.Unmarshal(r.Data, v); err != nil {
		return corrupt(r, "%v", err)
	}
	return nil
}

// refusalOf reads our own exception back, nil if it is another outcome.
func refusalOf(m *rpc.Message) *fault.Error {
	if m.Type != rpc.Exception || m.Code == fault.OK {
		return nil
	}
	return &fault.Error{Code: m.Code, Op: "call", Msg: string(m.Payload)}
}
