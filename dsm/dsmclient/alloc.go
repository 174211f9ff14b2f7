package dsmclient

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/dsm/internal/transport"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/pace"
)

// Alloc makes a region of at least size bytes, all zero, that this node
// controls, and returns the pointer to its first byte. A larger size than any
// memory blade has room for is NoSpace. If the context ends, a region that is
// allocated nevertheless is freed again.
//
// The re-run of an execution gets the pointers that it got before. One that asks
// for another size than before fails as Nondeterminism.
func (c *Client) Alloc(ctx context.Context, size uint64) (Pointer, error) {
	scope, err := c.scope.begin(dsmpacket.OpAlloc)
	if err != nil {
		return Pointer{}, err
	}
	defer c.scope.end()
	if _, ok := dsmpacket.ClassFor(size); !ok {
		return Pointer{}, fault.New(fault.BadRequest, "alloc", "%d bytes; a region has 1 to 2^%d", size, dsmpacket.MaxClass)
	}
	rack := c.link.rack()
	if !c.scope.counts() {
		class, _ := dsmpacket.ClassFor(size)
		if p, ok := c.link.cache.take(class, &rack); ok {
			return p, nil
		}
	}
	if former, had, err := c.scope.former(scope); had || err != nil {
		return c.recall(ctx, former, err, size, scope)
	}
	p, err := c.allocate(ctx, &rack, size, scope)
	if fault.CodeOf(err) != fault.NoSpace {
		return p, err
	}
	kept := c.link.cache.drain()
	for _, p := range kept {
		_ = c.freeNow(ctx, p)
	}
	if len(kept) == 0 {
		return p, err
	}
	return c.allocate(ctx, &rack, size, scope)
}

// allocate tries one memory blade after the other.
func (c *Client) allocate(ctx context.Context, rack *control.Rack, size uint64, scope transport.Scope) (Pointer, error) {
	err := error(fault.New(fault.NoSpace, "alloc", "the rack has no memory blade in service"))
	machines := c.link.candidates(rack.Memories)
	if c.scope.counts() { // its answer would wait for a blade that is away
		slices.SortStableFunc(machines, func(a, b uint8) int { return copiesOf(rack, b) - copiesOf(rack, a) })
	}
	for _, machine := range machines {
		var p Pointer
		p, err = c.allocAt(ctx, rack.DSMPrefix, machine, size, scope)
		if err == nil || !c.elsewhere(fault.CodeOf(err)) {
			return p, err
		}
	}
	return Pointer{}, err
}

// copiesOf is how many blades have a machine's content.
func copiesOf(rack *control.Rack, machine uint8) int {
	for i := range rack.Memories {
		if rack.Memories[i].Machine == machine {
			return rack.Memories[i].Copies
		}
	}
	return 0
}

// elsewhere reports whether an allocation that failed is to be tried on another
// blade. An execution's is not if the blade has not answered: it may have made
// the region, and then a re-run would find one there and one elsewhere.
func (c *Client) elsewhere(status fault.Code) bool {
	return status == fault.NoSpace || status == fault.Unavailable && !c.scope.counts()
}

// recall gets the region that an earlier run of the execution got. If its machine is away, it waits for some time. A
// region that is lost is Unavailable.
func (c *Client) recall(ctx context.Context, former Pointer, lost error, size uint64, scope transport.Scope) (Pointer, error) {
	if lost != nil {
		return Pointer{}, lost
	}
	pause, begun := recallPauses.First, c.link.now()
	for {
		slot, err := c.allocRegion(ctx, former, size, scope)
		switch {
		case slot:
			return Pointer{}, fault.New(fault.Unavailable, "alloc", "an earlier run of the execution has got %s, which is lost", former)
		case fault.CodeOf(err) != fault.Unavailable || c.link.now()-begun >= cmp.Or(c.link.timing.GiveUp, transport.DefaultGiveUp):
			return former, err
		}
		timer := time.NewTimer(pause)
		pause = recallPauses.Next(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return Pointer{}, fault.FromContext("alloc", ctx.Err())
		}
	}
}

// recallPauses are those between two questions for a region whose machine is away.
var recallPauses = pace.Pauses{First: 20 * time.Millisecond, Most: time.Second}

// mostTries is how many slots an allocation tries that turn out not to be free.
const mostTries = 16

// allocAt allocates on one machine, in a slot that is free.
func (c *Client) allocAt(ctx context.Context, prefix, machine uint8, size uint64, scope transport.Scope) (Pointer, error) {
	for try := 1; ; try++ {
		id, err := c.link.slots.take(ctx, machine)
		if errors.Is(err, errNoSlots) {
			return Pointer{}, noSpace(machine, size, "the node has as many regions as it may, or its Unix user on this blade has")
		}
		if err != nil {
			return Pointer{}, err
		}
		p := dsmpacket.Make(prefix, machine, id)
		slot, err := c.allocRegion(ctx, p, size, scope)
		c.link.slots.done(machine, id, slot)
		switch {
		case err == nil:
			return p, nil
		case !slot || try == mostTries:
			return Pointer{}, err
		}
		if err := c.Settle(ctx, p); err != nil { // one copy may have made it, and must not have it when another one is made
			return Pointer{}, err
		}
	}
}

// allocRegion allocates a region. If it is refused, slot reports whether that is since its slot is not free.
func (c *Client) allocRegion(ctx context.Context, p Pointer, size uint64, scope transport.Scope) (slot bool, err error) {
	if err := c.link.check(ctx, dsmpacket.OpAlloc, p); err != nil {
		return false, err
	}
	if err := c.scope.changes(dsmpacket.OpAlloc, p.Machine()); err != nil {
		return false, err
	}
	t := c.link.operations.get()
	t.Op, t.Pointer, t.Size, t.Scope = dsmpacket.OpAlloc, p, size, scope
	news := c.link.account.add(p) // it may be the node's before the client hears so
	c.link.run(ctx, t)
	status, local, share, slot := t.Status, t.Local, t.Share, t.Slot
	c.link.operations.put(t)
	if status != fault.OK && news {
		c.link.account.drop(p)
	}
	switch {
	case status == fault.NoSpace && share:
		return false, noSpace(p.Machine(), size, "all nodes of this Unix user on this blade together have their share of the machine's memory, or of the rack's regions; what is left is for others")
	case status == fault.NoSpace:
		return slot, noSpace(p.Machine(), size, "it has no block of that size free")
	case status == fault.BadRequest: // the generation is too new for a copy
		return true, noSpace(p.Machine(), size, "its copies do not agree yet which slots are free")
	case status != fault.OK:
		return false, failure(ctx, dsmpacket.OpAlloc, p, status, local)
	}
	region, err := dsmpacket.RegionOf(p, size)
	if err != nil {
		return false, err
	}
	if c.scope.counts() {
		c.scope.decider.Allocated(scope.Branch, scope.Index, region.Base)
	} else {
		c.link.cache.fresh(region)
	}
	return false, nil
}

// noSpace is why a machine has no room for a region, and what helps.
func noSpace(machine uint8, size uint64, why string) error {
	return fault.Remote(fault.NoSpace, "alloc", "%d bytes at memory machine %d: %s. Free regions, or have an operator add memory (bifrost memory --capacity, another memory blade)", size, machine, why)
}

// flush takes what has become ready, unlocks l.mu, and sends and tells it. The
// caller holds l.mu.
func (l *link) flush() {
	ready := l.endpoint.Ready()
	out := getOutbox()
	for i := range ready.Send {
		out.add(&ready.Send[i])
	}
	l.sendLedgers(out)
	l.sendVerdicts(out)
	for _, t := range ready.Done {
		t.Tag.(waiter).ended()
	}
	for _, b := range ready.Passed {
		b.Tag.(chan struct{}) <- struct{}{} // likewise
	}
	l.endpoint.Clear()
	wake := l.endpoint.Wake()
	for _, o := range l.ledgers {
		wake = min(wake, o.core.Wake())
	}
	for _, v := range l.verdicts {
		wake = min(wake, v.core.Wake())
	}
	if wake < l.alarm && l.ended == fault.OK {
		l.alarm = wake
		l.timer.Reset(max(0, wake-l.now()))
	}
	l.mu.Unlock()
	out.send(l.conn)
	putOutbox(out)
}

// tick is the timer's.
func (l *link) tick() {
	l.mu.Lock()
	l.alarm = transport.Never
	if l.ended != fault.OK {
		l.mu.Unlock()
		return
	}
	l.endpoint.Tick(l.now())
	ready := l.endpoint.Ready()
	for _, o := range l.ledgers {
		o.core.Tick(l.now())
	}
	for _, v := range l.verdicts {
		v.core.Tick(l.now())
	}
	told := len(ready.Done)+len(ready.Passed) > 0
	l.flush()
	if told {
		l.interrupt() // whoever reads may have been told just now
	}
	l.standIn()
}
