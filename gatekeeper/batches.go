package gatekeeper

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// Region slots (docs/rights.md, section 3). A node has them in batches, each on one memory machine, and allocates there by itself. The
// machine's copies know whose each batch is. A node keeps its batches through its incarnations. When it is gone for good they are given to
// others as they are: the machine knows the last generation of each slot.

// batchOf is where a batch is, and who has it; the zero Addr if nobody has.
type batchOf struct {
	machine uint8
	node    netip.Addr
}

// batches says who has which batch. Batch 0 is nobody's.
type batches struct {
	of   map[uint32]batchOf
	idle map[uint8][]uint32 // by machine: those that were somebody's; the last one is the next to be given out
	next uint32             // from here on no batch has been given out
	most int                // how many there may be: the switch has room for rules of all their regions
}

// free is a batch of a machine that nobody has: one that was somebody's, or one that was never used. It is 0 if all are taken.
func (b *batches) free(machine uint8) uint32 {
	if idle := b.idle[machine]; len(idle) > 0 {
		return idle[len(idle)-1]
	}
	if b.next = max(b.next, 1); b.next < dsmpacket.Batches {
		return b.next
	}
	return 0
}

// set notes who has a batch.
func (b *batches) set(number uint32, o batchOf) {
	if was, known := b.of[number]; known && !was.node.IsValid() {
		idle := b.idle[was.machine]
		at := len(idle) - 1
		for idle[at] != number { // but when the log is read, it is the last one
			at--
		}
		b.idle[was.machine] = slices.Delete(idle, at, at+1)
	}
	if !o.node.IsValid() {
		b.idle[o.machine] = append(b.idle[o.machine], number)
	}
	b.of[number] = o
	b.next = max(b.next, number+1)
}

// idleCount is how many batches nobody has that were somebody's.
func (b *batches) idleCount() (all int) {
	for _, idle := range b.idle {
		all += len(idle)
	}
	return all
}

// batchCount is how many batches a node has.
func (n *node) batchCount() (all int) {
	for _, some := range n.batches {
		all += len(some)
	}
	return all
}

// grantBatches gives a node batches of a machine until it has so many there, as far as there are some and its owner has not its share.
func (c *controller) grantBatches(n *node, machine uint8, want int) (news []control.BatchOf) {
	more := min(want-len(n.batches[machine]), dsmpacket.MaxBatches-n.batchCount())
	if more > 0 {
		more = min(more, c.room(n, (*node).batchCount, len(c.batches.of)-c.batches.idleCount(), c.batches.most))
	}
	for range more {
		number := c.batches.free(machine)
		if number == 0 {
			break
		}
		c.has(n, number, machine)
		c.keepBatch(number, c.batches.of[number])
		news = append(news, n.batch(number))
	}
	return news
}

// has makes a batch a node's.
func (p *population) has(n *node, number uint32, machine uint8) {
	p.batches.set(number, batchOf{machine, n.address})
	if n.batches == nil {
		n.batches = map[uint8][]uint32{}
	}
	n.batches[machine] = append(n.batches[machine], number)
}

// moreBatches gives a node more region slots on a machine, and lists those that it has there. The machine's copies are told. One that the node
// reaches sooner has it ask again.
func (c *controller) moreBatches(p *port, m control.Message) error {
	var q control.BatchQuery
	if err := m.Decode(&q); err != nil {
		return err
	}
	n, err := p.nodeAt("batches", q.Node, q.Incarnation)
	if err != nil {
		return err
	}
	if b := c.machines[q.Machine]; b == nil {
		return fault.New(fault.Unavailable, "batches", "memory machine %d is not in service", q.Machine)
	}
	if news := c.grantBatches(n, q.Machine, q.Want); len(news) > 0 {
		c.grant(q.Machine, news)
	}
	if !n.rights() {
		p.answer(m, control.BatchReply{Batches: n.batches[q.Machine]})
		return nil
	}
	c.change(func(err error) {
		if err != nil {
			p.fail(m, fault.New(fault.Internal, "batches", "the switch refuses the rules of region slots: %v", err))
			return
		}
		p.answer(m, control.BatchReply{Batches: n.batches[q.Machine]})
	}, c.wantBatches(n))
	return nil
}

// batch says that the node has a batch, and who is charged for what it allocates there.
func (n *node) batch(number uint32) control.BatchOf {
	return control.BatchOf{Batch: number, Node: n.address, Incarnation: n.incarnation, Owner: n.charged()}
}

// grant tells the copies of a machine whose batches are.
func (c *controller) grant(machine uint8, all []control.BatchOf) {
	for _, b := range c.sortedBlades() {
		if b.memory() && b.hello.Machine == machine && b.alive() && b.obeys() {
			c.command(b, control.KindGrant, control.Grant{Batches: all}, nil)
		}
	}
}

// grants lists whose the batches of a machine are.
func (p *population) grants(machine uint8) (all []control.BatchOf) {
	for number, o := range p.batches.of {
		if n := p.nodeOrFallen(o.node); n != nil && o.machine == machine {
			all = append(all, n.batch(number))
		}
	}
	slices.SortFunc(all, func(a, b control.BatchOf) int { return int(a.Batch) - int(b.Batch) })
	return all
}

// batchesAt are the batches of a machine that some node has or had.
func (p *population) batchesAt(machine uint8) (all []uint32) {
	for number, o := range p.batches.of {
		if o.machine == machine {
			all = append(all, number)
		}
	}
	slices.Sort(all)
	return all
}

// grantAll tells a memory blade whose the batches of its machine are.
func (c *controller) grantAll(b *blade) {
	if all := c.grants(b.hello.Machine); len(all) > 0 {
		c.command(b, control.KindGrant, control.Grant{Batches: all}, nil)
	}
}

// grantsAt is grants for a memory blade with a copy.
func (p *population) grantsAt(b *blade) []control.BatchOf {
	if !b.memory() || !b.holds() {
		return nil
	}
	return p.grants(b.hello.Machine)
}

// freeBatches takes the batches of a node that is gone for good.
func (c *controller) freeBatches(n *node) {
	for machine, all := range n.batches {
		for _, number := range all {
			c.batches.set(number, batchOf{machine: machine})
			c.keepBatch(number, c.batches.of[number])
		}
	}
	n.batches = nil
}

// keepBatch writes down who has a batch.
func (j *journal) keepBatch(number uint32, o batchOf) {
	j.put(wal.Record{Kind: wal.KindBatch, ID: batchID(number), Callee: wal.Node{Address: o.node}, Attempt: uint32(o.machine)})
}

func batchID(number uint32) (id wal.ID) {
	binary.BigEndian.PutUint32(id[:], number)
	return id
}

// restoreBatch brings a batch back. It is nobody's if its node is gone.
func (c *controller) restoreBatch(r *wal.Record) error {
	number := binary.BigEndian.Uint32(r.ID[:])
	if number == 0 || number >= dsmpacket.Batches || r.ID != batchID(number) || r.Attempt == 0 || r.Attempt > 255 {
		return corrupt(r, "batch %d of machine %d", number, r.Attempt)
	}
	machine := uint8(r.Attempt)
	if n := c.nodeOrFallen(r.Callee.Address); n != nil {
		c.has(n, number, machine)
		if !n.gone {
			c.wantBatches(n)
		}
		return nil
	}
	c.batches.set(number, batchOf{machine: machine})
	return nil
}
