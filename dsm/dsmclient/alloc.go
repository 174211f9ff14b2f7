package dsmclient

import (
	"context"
	"slices"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/dsm/internal/transport"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
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
		_, _ = c.carryOut(ctx, dsmpacket.OpFree, p, nil, transport.Scope{})
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
		p, err = c.allocAt(ctx, dsmpacket.Make(rack.DSMPrefix, machine, 0), size, scope, false)
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

// recall gets the region that an earlier run of the execution got, from its machine. If that is away, it waits for some time. A
// region that is lost is Unavailable.
func (c *Client) recall(ctx context.Context, former dsmpacket.Region, lost error, size uint64, scope transport.Scope) (Pointer, error) {
	if lost != nil {
		return Pointer{}, lost
	}
	p, err := c.allocAt(ctx, dsmpacket.Make(former.Base.Prefix(), former.Base.Machine(), 0), size, scope, true)
	if fault.CodeOf(err) == fault.NotFound {
		return Pointer{}, fault.New(fault.Unavailable, "alloc", "an earlier run of the execution has got %s, which is lost", former)
	}
	return p, err
}

// allocAt allocates on one machine.
func (c *Client) allocAt(ctx context.Context, at Pointer, size uint64, scope transport.Scope, recall bool) (Pointer, error) {
	if err := c.link.check(ctx, dsmpacket.OpAlloc, at); err != nil {
		return Pointer{}, err
	}
	if err := c.scope.changes(dsmpacket.OpAlloc, at.Machine()); err != nil {
		return Pointer{}, err
	}
	t := c.link.operations.get()
	t.Op, t.Pointer, t.Size, t.Recall, t.Scope = dsmpacket.OpAlloc, at, size, recall, scope
	c.link.run(ctx, t)
	region, status, local, share := t.Region, t.Status, t.Local, t.Share
	c.link.operations.put(t)
	switch {
	case status == fault.NoSpace:
		return Pointer{}, noSpace(at.Machine(), size, share)
	case status != fault.OK:
		return Pointer{}, failure(ctx, dsmpacket.OpAlloc, at, status, local)
	}
	if c.scope.counts() {
		c.scope.decider.Allocated(scope.Branch, scope.Index, region)
	} else {
		c.link.cache.fresh(region)
	}
	return region.Base, nil
}

// noSpace is why a machine has no room for a region, and what helps.
func noSpace(machine uint8, size uint64, share bool) error {
	why := "it has no block of that size free"
	if share {
		why = "all nodes of this Unix user on this blade together have their share of the machine's memory, or of the rack's regions; what is left is for others"
	}
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
