package gatekeeper

import (
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/gatekeeper/lease"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/copies"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/share"
)

// freeing is a request to free a region that is out: which one, and of which incarnation
// of the region's controller (the next one counts its requests anew).
type freeing struct {
	request     uint64
	incarnation uint32
	// gone is what the copies of a machine with two have said: whether they have freed the region.
	gone copies.Answers[bool]
}

// answered reports whether an answer is to this very request.
func (f freeing) answered(m *dsmpacket.Header) bool {
	return f.request == m.Request && f.incarnation == m.Incarnation
}

// heldMemoryReply takes the answer to an allocation or a free.
func (c *controller) heldMemoryReply(h *held) {
	p := dsmpacket.FromAddr(h.src)
	b := c.machine(p)
	if b != nil && b.two() && b.port.num != h.port {
		b = c.other(b)
	}
	if b == nil || !b.alive() || b.port.num != h.port {
		c.count.Foreign++
		return
	}
	m, _, err := dsmpacket.Parse(h.payload)
	if err != nil || m.Kind != dsmpacket.Reply || m.Floor > m.Request || m.Request >= refusedBit {
		c.count.Malformed++
		return
	}
	if c.overloaded(c.pressure.stalled) {
		return
	}
	if b.mirror != nil && (m.Mirror.Epoch != b.mirror.epoch || b.mirror.completing()) {
		c.count.Late++ // the copies are about to be others: the client asks again
		return
	}
	switch p.Op() {
	case dsmpacket.OpAlloc:
		c.heldAlloc(b, h, p, &m)
	case dsmpacket.OpFree:
		c.heldFreed(h, p, &m)
	default:
		c.count.Malformed++
	}
}

// heldAlloc gives a new region to the node that asked for it, when the first copy of the machine has answered. The node waits for all.
func (c *controller) heldAlloc(b *blade, h *held, p dsmpacket.Pointer, m *dsmpacket.Header) {
	r, err := dsmpacket.RegionOf(p, m.Length)
	if err != nil || m.Status != fault.OK {
		c.count.Malformed++
		return
	}
	n := c.nodes[h.dst]
	if n == nil || m.Incarnation != n.incarnation { // of one that has ended: a re-run asks for the region again
		c.count.Late++
		if _, known := c.leases.Find(r.Base); !known {
			c.lost(unknownRegion{region: r, node: h.dst, pending: m.Execution != [16]byte{}})
		}
		return
	}
	known := n.allocsAt(p, m)
	handled := func() {
		known.handled(m.Request, false)
		c.keepAllocs(n, p.Machine())
	}
	switch {
	case known.above[m.Request]:
		c.count.Duplicates++
		if b.two() {
			c.reclaim([]dsmpacket.Region{r}) // another copy has made it after that
		}
		c.noRegion(h, r, m)
		return
	case known.late(m.Request):
		c.allocAgain(h, r)
		return
	case known.full(m.Request, c.cfg.Limits.Allocs) || c.pressure.stalled || !c.pressure.fits(0, allocationMark):
		c.count.Overload++
		return
	}
	if _, known := c.leases.Find(r.Base); !known && m.Execution == [16]byte{} {
		c.ofPrograms[r.Base] = true
	}
	c.submit(lease.Alloc{Node: h.dst, Region: r}, verdict(func(s lease.Step, err error) {
		switch {
		case err != nil:
			c.submit(lease.Free{Node: h.dst, Pointer: r.Base}, nil)
			c.submit(lease.Freed{Region: r, OK: true}, nil)
			c.logger.Error("no room for a region's rules", "blade", b.hello.Blade, "region", r)
			c.denyRegion(h, n, r, m)
		case s.Outcome == lease.Done:
			c.count.Allocs++
			handled()
			c.event(Event{Kind: RegionAllocated, Blade: b.hello.Blade, Node: h.dst, Region: r.String()})
			c.release(h)
		case s.Outcome == lease.Again:
			c.count.Duplicates++
			handled() // it was not yet, if we were cut off
			c.release(h)
		case s.Outcome == lease.Duplicate:
			c.count.Duplicates++
		case s.Refusal.Reason == lease.NoNode:
			c.reclaim([]dsmpacket.Region{r}) // it has just left
		default:
			c.count.Foreign++
			c.logger.Error("a memory blade hands out what it had handed out", "blade", b.hello.Blade, "region", r, "error", s.Refusal)
		}
	}))
}

// allocAgain takes another copy of an allocation's answer, which is of use only
// while the region is there.
func (c *controller) allocAgain(h *held, r dsmpacket.Region) {
	if state, ok := c.leases.Find(r.Base); ok && state.Region == r && state.Owner == h.dst {
		c.count.Duplicates++
		c.release(h)
		return
	}
	c.count.Late++
}

// denyRegion refuses an allocation that a memory blade has carried out: the region goes. Later copies of the blade's answer are refused, too.
func (c *controller) denyRegion(h *held, n *node, r dsmpacket.Region, m *dsmpacket.Header) {
	n.allocsAt(r.Base, m).handled(m.Request, true)
	c.keepAllocs(n, r.Base.Machine())
	c.reclaim([]dsmpacket.Region{r})
	c.noRegion(h, r, m)
}

// ownersOf tells a memory blade whose nodes are.
func (c *controller) ownersOf(p *port, m control.Message) error {
	var q control.Owners
	if err := m.Decode(&q); err != nil {
		return err
	}
	b, err := c.bladeAt(p, "owners")
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
	c.answer(p, m, r)
	return nil
}

// noRegion refuses an allocation in the memory blade's place: the switch has no room for its rules.
func (c *controller) noRegion(h *held, r dsmpacket.Region, m *dsmpacket.Header) {
	answer := *m
	answer.Kind, answer.Status, answer.Flags, answer.Length, answer.Mirror = dsmpacket.Reply, fault.NoSpace, 0, 0, dsmpacket.Mirror{}
	c.send(0, (&held{src: h.dst, dst: r.Base.With(dsmpacket.OpAlloc).Addr(), srcPort: h.dstPort, dstPort: h.srcPort}).reply(answer.Append(nil)))
}

// heldFree takes a request to free a region that the switch has permitted.
func (c *controller) heldFree(h *held) {
	n := c.caller(h)
	if n == nil {
		return
	}
	p := dsmpacket.FromAddr(h.dst).Bare()
	m, _, err := dsmpacket.Parse(h.payload)
	if err != nil {
		c.count.Malformed++
		return
	}
	if m.Incarnation != n.incarnation {
		c.count.Late++ // of one that has failed
		return
	}
	c.submit(lease.Free{Node: n.address, Pointer: p}, verdict(func(s lease.Step, err error) {
		switch {
		case err != nil || s.Outcome == lease.Refused:
			c.count.Refused++
			c.memoryAnswer(h, dsmpacket.Nack, fault.PermissionDenied)
		case s.Outcome == lease.Duplicate:
			c.count.Duplicates++
		case n.gone:
			if r, ok := c.leases.Find(p); ok && c.frees[p] == (freeing{}) {
				c.submit(lease.Freed{Region: r.Region}, nil) // it failed while it waited
			}
		default:
			if !c.frees[p].answered(&m) {
				c.frees[p] = freeing{request: m.Request, incarnation: m.Incarnation}
			}
			c.granted.note(grantedFree{n.address, p, m.Request})
			if r, ok := c.leases.Find(p); ok {
				c.keepRegion(r.Region)
			}
			c.release(h)
		}
	}))
}

// heldFreed takes the answer to a free: the region's last rule goes, for which nobody
// has to wait, as there is nothing behind it any more; or all come back. An answer to another request than the free that is out decides nothing.
func (c *controller) heldFreed(h *held, p dsmpacket.Pointer, m *dsmpacket.Header) {
	r, ok := c.leases.Find(p.Bare())
	gone := m.Status == fault.OK || m.Status == fault.NotFound
	if !ok || !r.Freeing || r.Region.Base != p.Bare() || r.Controller != h.dst || !c.frees[p.Bare()].answered(m) {
		c.release(h)
		return
	}
	if !c.freedByAll(p.Bare(), m, gone) {
		c.release(h) // the region's last rule goes when the other copy has answered
		return
	}
	released := false
	c.submit(lease.Freed{Region: r.Region, OK: gone}, verdict(func(s lease.Step, _ error) {
		if s.Outcome == lease.Duplicate {
			c.count.Duplicates++
			return
		}
		delete(c.frees, p.Bare())
		if s.Outcome == lease.Done && gone {
			c.count.Frees++
			c.event(Event{Kind: RegionFreed, Node: h.dst, Region: r.Region.String()})
		}
		if !released {
			released = true
			c.release(h)
		}
	}))
	if _, there := c.leases.Find(p.Bare()); gone && !there && !released { // it is judged, and written down
		released = true
		c.release(h)
	}
}

// heldNoHome answers a request to a memory machine that is not in service. One that is has got another home since, or is
// about to: the client asks again, and what it did must not fail for that.
func (c *controller) heldNoHome(h *held) {
	if c.caller(h) == nil || c.machine(dsmpacket.FromAddr(h.dst)) != nil {
		return
	}
	c.memoryAnswer(h, dsmpacket.Reply, fault.Unavailable)
}

// memoryAnswer answers a memory request in the memory blade's place (Reply), or
// in the switch's (Nack): then the client finds out whether an earlier copy of the
// request was applied.
func (c *controller) memoryAnswer(h *held, kind dsmpacket.Kind, code fault.Code) {
	m, _, err := dsmpacket.Parse(h.payload)
	if err != nil || m.Kind != dsmpacket.Request {
		c.count.Malformed++
		return
	}
	answer := m // the client knows its own by incarnation and request id
	answer.Kind, answer.Status, answer.Length, answer.Mirror = kind, code, 0, dsmpacket.Mirror{}
	c.send(0, h.reply(answer.Append(nil)))
}

// reclaim frees regions whose holder is gone. A memory blade that is out of
// service is told when it is back, if it still has them then.
func (c *controller) reclaim(regions []dsmpacket.Region) {
	for _, r := range regions {
		c.count.Reclaims++
		c.keepReclaim(r)
		delete(c.frees, r.Base)
		c.event(Event{Kind: RegionReclaimed, Region: r.String()})
		c.owe(r)
		for _, b := range c.sortedBlades() {
			c.reclaimMore(b)
		}
	}
}

// owe notes a region for the blades that have to free it: every copy of its machine. It
// reports false if there is none.
func (c *controller) owe(r dsmpacket.Region) (owed bool) {
	id := control.RegionID{ID: r.Base.ID(), Class: r.Class}
	for _, b := range c.sortedBlades() {
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
	err := c.ask(b.port, control.KindReclaim, control.Reclaim{Boot: b.hello.Boot, Regions: b.reclaims[:n]}, func(m control.Message) {
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

// accessDenied takes the switch's word that it has denied an access. A late copy of a free that was granted finds no rule any more, so the
// switch denies it and counts it; nobody was denied anything.
func (c *controller) accessDenied(port uint16, src, dst netip.Addr, request uint64) {
	p := dsmpacket.FromAddr(dst)
	if p.Op() == dsmpacket.OpFree && c.granted.has(grantedFree{src, p.Bare(), request}) {
		c.count.Duplicates++
		if c.excused == nil {
			c.excused = map[uint16]uint64{}
		}
		c.excused[port]++ // below 512: the switch has no more ports
		return
	}
	c.count.Denied++
	d := Denial{Time: c.now, Port: port, Node: src, Op: p.Op().String(), Pointer: p.Bare().String()}
	if len(c.denied) == maxDenied {
		c.denied = append(c.denied[:0], c.denied[1:]...)
	}
	c.denied = append(c.denied, d)
	c.event(Event{Kind: AccessDenied, Node: src, Op: d.Op, Region: d.Pointer})
}

// allocKey is a memory machine id.
type allocKey uint8

// allocs are a node's allocations at one machine that this Gatekeeper has given
// rules to and that the node has not settled: a window with a floor, like the
// memory server's own. Without it, a copy of an allocation's answer that comes
// after the region was freed would look like a new region, and its rules would
// stay for ever.
type allocs struct {
	floor uint64
	above map[uint64]bool // by request id: whether it was refused
}

// refusedBit marks in the log the requests that were refused. Clients count their requests from 1, and never get there.
const refusedBit = 1 << 63

// late reports whether an answer is a copy of one that was handled before, and
// whose region the lease machine may have forgotten since.
func (a *allocs) late(request uint64) bool {
	_, known := a.above[request]
	return known || request < a.floor
}

// full reports whether an allocation has to wait, because the node has settled none of too
// many. The one at the floor never has to: the node settles the others only after it.
func (a *allocs) full(request uint64, most int) bool {
	return request > a.floor && len(a.above) >= most
}

// handled notes that an allocation has its rules, or was refused.
func (a *allocs) handled(request uint64, refused bool) {
	if request >= a.floor {
		a.above[request] = refused
	}
}

// settle moves the floor up to the client's.
func (a *allocs) settle(floor uint64) {
	if floor <= a.floor {
		return
	}
	a.floor = floor
	maps.DeleteFunc(a.above, func(id uint64, _ bool) bool { return id < floor })
}

// kept is what the log keeps of the requests above the floor: 8 bytes for each, with refusedBit if it was refused.
func (a *allocs) kept() []byte {
	data := make([]byte, 0, 8*len(a.above))
	for _, request := range slices.Sorted(maps.Keys(a.above)) {
		if a.above[request] {
			request |= refusedBit
		}
		data = binary.BigEndian.AppendUint64(data, request)
	}
	return data
}

// allocsOf is kept's other way round.
func allocsOf(floor uint64, kept []byte) *allocs {
	a := &allocs{floor: floor, above: map[uint64]bool{}}
	for ; len(kept) >= 8; kept = kept[8:] {
		request := binary.BigEndian.Uint64(kept)
		a.above[request&^refusedBit] = request&refusedBit != 0
	}
	return a
}

// allocsAt returns the node's window at a machine, settled as the packet says.
func (n *node) allocsAt(p dsmpacket.Pointer, m *dsmpacket.Header) *allocs {
	k := allocKey(p.Machine())
	a := n.allocs[k]
	if a == nil {
		a = &allocs{above: map[uint64]bool{}}
		if n.allocs == nil {
			n.allocs = map[allocKey]*allocs{}
		}
		n.allocs[k] = a
	}
	a.settle(m.Floor)
	return a
}

// maxGranted is how many frees are remembered: more than clients have out.
const maxGranted = 1024

// grantedFree is a free that was let go on. Its rules were revoked before that, so a copy
// that its client sends meanwhile, because the network or the memory blade is slow,
// meets none: the switch denies it, and the client finds out that the first one was
// applied. That is no denial for people to look at.
type grantedFree struct {
	node    netip.Addr
	region  dsmpacket.Pointer
	request uint64
}

// grantedFrees are the latest, from next on round the ring.
type grantedFrees struct {
	ring []grantedFree
	next int
}

func (g *grantedFrees) note(f grantedFree) {
	if len(g.ring) < maxGranted {
		g.ring = append(g.ring, f)
		return
	}
	g.ring[g.next] = f
	g.next = (g.next + 1) % maxGranted
}

func (g *grantedFrees) has(f grantedFree) bool {
	for i := range g.ring {
		if g.ring[i] == f {
			return true
		}
	}
	return false
}

// A node controls a region on behalf of its exactly-once executions and durable mains, or its program has it as its own. Of the former the node's
// ledger knows, and the node frees them. The latter go with the incarnation, unless the node has a service with state. So the Gatekeeper keeps of a region
// who controls it, and whether it is the program's own (controller.ofPrograms).

// forsake frees the regions of a node that has failed and is to come back, which its
// program had on its own account: the next one knows nothing of them, unless it is
// told by the state of its service.
func (c *controller) forsake(n *node) {
	if !n.serial() {
		c.abandon(n, true)
	}
}

// abandon frees what a node's program has on its own account, or all else that the node has.
func (c *controller) abandon(n *node, own bool) {
	for _, r := range c.leases.ControlledBy(n.address) {
		if c.ofPrograms[r.Base] == own {
			c.steps(c.leases.Abandon(r, n.address))
		}
	}
}

// gets notes that a node has got the regions of pointers, and whether its program has them on its own account.
func (c *controller) gets(pointers []dsmpacket.Pointer, own bool) {
	for _, p := range pointers {
		if v, ok := c.leases.Find(p); ok {
			c.gotRegion(v.Region, own)
		}
	}
}

func (c *controller) gotRegion(r dsmpacket.Region, own bool) {
	if own {
		c.ofPrograms[r.Base] = true
	} else {
		delete(c.ofPrograms, r.Base)
	}
}

// controlled notes that nodes have got control of regions: for executions of theirs, or for their programs.
func (c *controller) controlled(s lease.Step) {
	if s.Outcome == lease.Done {
		switch e := s.Event.(type) {
		case lease.Oneway:
			k := c.loans[e.ID]
			c.gets(e.Pointers, k == nil || k.atMostOnce())
		case lease.Reply:
			k := c.loans[e.ID]
			c.gets(e.Results, k == nil || !k.id().Derived())
		}
	}
	for _, r := range s.Changed {
		if e, is := s.Event.(lease.Withdrawn); is {
			c.gotRegion(r, e.Parent.IsZero())
		}
		if v, ok := c.leases.Find(r.Base); !ok || v.Region != r {
			delete(c.ofPrograms, r.Base)
		}
	}
}
