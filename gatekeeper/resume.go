package gatekeeper

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"github.com/bifrost-rack/bifrost/gatekeeper/p4rtclient"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/frame"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// resumption is what a Gatekeeper has to do when it has begun with a log, once
// the switch is as it should be.
type resumption struct {
	calls  []rpcpacket.ID // to be released again, in the order of the log
	blades []*blade       // memory blades to be asked for what they have
	// mirrors are the machines whose copies are to be told what they are.
	mirrors []*mirror
	cores   bool // what is left to do of recoveries
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
			c.logger.Error("the log does not give a call back", "call", id, "error", err)
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
func (c *controller) releaseAgain(id rpcpacket.ID) error {
	k := c.calls[id]
	if k == nil || k.stage != stageRunning && !k.oneway() {
		return nil
	}
	n := c.nodes[k.callee]
	if n == nil || n.incarnation != k.incarnation || n.blade.port == nil {
		return nil // it ends with its callee
	}
	r, ok, err := c.cfg.Store.Get(wal.KindCall, wal.ID(id))
	if !ok || err != nil {
		return err
	}
	m, err := rpcpacket.Parse(r.Packet)
	if err != nil {
		return err
	}
	m.Flags |= rpcpacket.FlagReleased | rpcpacket.FlagReplay
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
		c.logger.Error("a memory blade does not tell its regions", "blade", b.hello.Blade, "error", err)
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
			c.lookAfterUnknown(c.unknownOf(b, r))
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

// lookAfterUnknown looks after a region that a memory blade has.
func (c *controller) lookAfterUnknown(s unknownRegion) {
	if _, known := c.leases.Find(s.region.Base); known {
		return
	}
	if n := c.nodes[s.node]; n != nil {
		if !slices.Contains(n.unknown, s) {
			n.unknown = append(n.unknown, s)
		}
		return
	}
	c.lost(s)
}

// reclaimAllUnknown reclaims what a node that is gone has never been given. What it
// was given and has freed is not there any more, and never will be.
func (c *controller) reclaimAllUnknown(n *node) {
	for _, s := range n.unknown {
		c.lost(s)
	}
	n.unknown = nil
}

// corrupt says which record makes no sense.
func corrupt(r *wal.Record, format string, args ...any) error {
	return fmt.Errorf("the log is %w: record %d, %s: %s", wal.ErrCorrupt, r.Sequence, r.Key(), fmt.Sprintf(format, args...))
}

// data reads a record's JSON.
func data(r *wal.Record, v any) error {
	if err := json.Unmarshal(r.Data, v); err != nil {
		return corrupt(r, "%v", err)
	}
	return nil
}

// refusalOf reads our own exception back, nil if it is another outcome.
func refusalOf(m *rpcpacket.Message) *fault.Error {
	if m.Type != rpcpacket.Exception || m.Code == fault.OK {
		return nil
	}
	return &fault.Error{Code: m.Code, Op: "call", Msg: string(m.Payload)}
}

// Reconcile reads the switch's tables back, makes them what they should be, and
// returns how many entries that took. What is on its way to the switch meanwhile
// is no difference. It fails with ErrNoSwitch while the switch is away, and with
// ErrStopped if the Gatekeeper does not run.
func (g *Gatekeeper) Reconcile(ctx context.Context) (repaired int, err error) {
	connected, err := g.Connected(ctx)
	if err != nil {
		return 0, err
	}
	if !connected {
		return 0, ErrNoSwitch
	}
	failed := g.writer.between(ctx, g.stopped, func(session context.Context) error {
		var err error
		repaired, err = g.repair(session, g.writer.pending)
		return err
	})
	if failed != nil {
		return repaired, failed
	}
	return repaired, g.do(ctx, func() {
		g.ctl.count.Reconciled += uint64(repaired) //nolint:gosec // a length
		g.ctl.event(Event{Kind: SwitchReconciled})
	})
}

// repair reads the tables back and writes what is wrong, all revocations before
// the first grant. Nobody else writes meanwhile. The entries that except names, if
// it is not nil, are left as they are.
func (g *Gatekeeper) repair(ctx context.Context, except func() map[string]bool) (repaired int, err error) {
	found, err := g.client.Read(ctx)
	if err != nil {
		return 0, err
	}
	groups, err := g.client.Groups(ctx)
	if err != nil {
		return 0, err
	}
	found = append(found, groups...)
	var wanted base
	var left map[string]bool
	err = g.do(ctx, func() {
		wanted = g.ctl.wanted()
		if except != nil {
			left = except()
		}
	})
	if err != nil {
		return 0, err
	}
	revoke, grant := reconcile(wanted, found)
	revoke, grant = revoke.without(left), grant.without(left)
	return len(revoke) + len(grant), g.write(ctx, revoke, grant)
}

// write writes phases one after the other, in batches.
func (g *Gatekeeper) write(ctx context.Context, phases ...phase) error {
	var b batcher
	for _, p := range phases {
		for len(p) > 0 {
			n := min(len(p), maxBatch)
			b.submit(&plan{phases: []phase{p[:n]}, ordered: true})
			p = p[n:]
		}
	}
	for !b.idle() {
		if err := b.answer(g.client.Write(ctx, b.next())); err != nil {
			return err
		}
		for _, p := range b.done() {
			if p.err != nil {
				g.cfg.Logger.Error("the switch refuses a rule", "error", p.err)
			}
		}
	}
	return nil
}

// without leaves out the updates of some entries.
func (p phase) without(keys map[string]bool) (rest phase) {
	for _, u := range p {
		if !keys[u.Entry.Key()] {
			rest = append(rest, u)
		}
	}
	return rest
}

// task is something to be done while nothing is being written.
type task struct {
	do   func(session context.Context) error
	done chan error
}

// between has f carried out by the writer, between two batches, and waits for it.
func (w *writer) between(ctx context.Context, stopped <-chan struct{}, f func(session context.Context) error) error {
	e := task{f, make(chan error, 1)}
	select {
	case w.tasks <- e:
	case <-stopped:
		return ErrStopped
	case <-ctx.Done():
		return ctx.Err()
	}
	return <-e.done // the session's end ends it, too
}

// pending returns the keys of all entries that plans are still to write. None may
// be out.
func (w *writer) pending() map[string]bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	keys := map[string]bool{}
	for _, plans := range [][]*plan{w.b.revokes, w.b.grants, w.b.ordered} {
		for _, p := range plans {
			p.each(func(u *p4rtclient.Update) { keys[u.Entry.Key()] = true })
		}
	}
	return keys
}

// each visits the updates that the plan has still to write.
func (p *plan) each(visit func(*p4rtclient.Update)) {
	for _, f := range p.phases {
		for i := range f {
			visit(&f[i])
		}
	}
}
