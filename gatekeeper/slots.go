package gatekeeper

import (
	"encoding/binary"
	"net/netip"

	"github.com/bifrost-rack/bifrost/gatekeeper/lease"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Call slots (docs/design.md). Nodes have them in blocks; the record of a node names its blocks. A node keeps them through its
// incarnations. When it is gone for good they are given to others as they are: later incarnations have higher numbers.

// joinBlocks is how many blocks a node gets when it joins.
const joinBlocks = 2

// blocks says who has which block.
type blocks struct {
	of   map[uint32]netip.Addr
	next uint32 // from here on no block has been given out
}

// free is a block that nobody has: one that was never used, if there is any. It is 0 if all are taken.
func (b *blocks) free() uint32 {
	if b.next = max(b.next, 1); b.next < rpcpacket.Blocks {
		return b.next
	}
	for i := uint32(1); i < rpcpacket.Blocks && len(b.of) < rpcpacket.Blocks-1; i++ {
		if !b.of[i].IsValid() {
			return i
		}
	}
	return 0
}

// owner is the node that has a slot; the zero Addr if nobody has.
func (b *blocks) owner(s rpcpacket.Slot) netip.Addr { return b.of[s.Block()] }

// has notes that a node has a block.
func (b *blocks) has(node netip.Addr, block uint32) {
	b.of[block] = node
	b.next = max(b.next, block+1)
}

// grantBlocks gives a node blocks until it has so many, as far as there are some and its owner has not its share.
func (c *controller) grantBlocks(n *node, want int) {
	for want = min(want, rpcpacket.MaxBlocks); len(n.blocks) < want && c.room(n, (*node).blockCount, len(c.blocks.of), rpcpacket.Blocks-1); {
		block := c.blocks.free()
		if block == 0 {
			return
		}
		c.blocks.has(n.address, block)
		n.blocks = append(n.blocks, block)
	}
}

func (n *node) blockCount() int { return len(n.blocks) }

// moreBlocks gives a node more call slots, and lists those that it has.
func (c *controller) moreBlocks(p *port, m control.Message) error {
	var q control.BlockQuery
	if err := m.Decode(&q); err != nil {
		return err
	}
	n, err := c.nodeAt(p, "blocks", q.Node, q.Incarnation)
	if err != nil {
		return err
	}
	if had := len(n.blocks); had < q.Want {
		if c.grantBlocks(n, q.Want); len(n.blocks) > had {
			c.keepNode(n)
		}
	}
	if !n.rights() {
		c.answer(p, m, control.BlockReply{Blocks: n.blocks})
		return nil
	}
	c.change(func(err error) {
		if err != nil {
			c.fail(p, m, fault.New(fault.Internal, "blocks", "the switch refuses the rules of call slots: %v", err))
			return
		}
		c.answer(p, m, control.BlockReply{Blocks: n.blocks})
	}, c.wantBlocks(n))
	return nil
}

// freeBlocks takes the blocks of a node that is gone for good.
func (c *controller) freeBlocks(n *node) {
	c.forgetSlots(n)
	for _, block := range n.blocks {
		delete(c.blocks.of, block)
	}
	n.blocks = nil
}

// The Gatekeeper has a record of a call with pointers until nobody asks for it any more. What protects against late copies from then on
// is the call's number: its slot's own, and that which its callee has told.

// calledIn is what is known of the calls of a slot.
type calledIn struct {
	last rpcpacket.Number // of the calls with pointers: copies of those below are late
	over rpcpacket.Number // no message below lends or hands over anything any more; on the log
}

// uses notes the number of a call with pointers.
func (c *controller) uses(s rpcpacket.Slot, n rpcpacket.Number) {
	k := c.called[s]
	k.last = max(k.last, n)
	c.called[s] = k
}

// lateIn reports whether a call with pointers is late.
func (c *controller) lateIn(s rpcpacket.Slot, n rpcpacket.Number) bool {
	return n < max(c.called[s].last, c.called[s].over)
}

// keepOver notes that no message up to a number of a slot lends or hands over anything any more. The slot must be somebody's.
func (c *controller) keepOver(s rpcpacket.Slot, n rpcpacket.Number) {
	if k := c.called[s]; n >= k.over {
		k.over = n + 1
		c.called[s] = k
		c.keepNumber(c.blocks.owner(s), s, k.over)
	}
}

// keepNumber writes down what is over in a slot: of its own, or by the word of a callee.
func (c *controller) keepNumber(by netip.Addr, s rpcpacket.Slot, n rpcpacket.Number) {
	c.put(wal.Record{Kind: wal.KindReturned, ID: slotID(by, s), Callee: wal.Node{Address: by}, Order: uint64(n)})
}

// slotID names a slot, and the node that has spoken of it.
func slotID(by netip.Addr, s rpcpacket.Slot) (id wal.ID) {
	a := by.As16()
	binary.BigEndian.PutUint32(id[:], uint32(s))
	copy(id[8:], a[8:])
	return id
}

// forgetSlots drops what is known of a node's slots: the calls of its former incarnations are late in any case.
func (c *controller) forgetSlots(n *node) {
	for _, block := range n.blocks {
		for s := rpcpacket.Slot(block * rpcpacket.BlockSlots); s.Block() == block; s++ {
			if c.called[s].over > 0 {
				c.drop(wal.KindReturned, slotID(n.address, s))
			}
			delete(c.called, s)
		}
	}
	c.handedOver.forget(func(callee lease.Node, s rpcpacket.Slot) bool {
		if c.blocks.owner(s) != n.address {
			return false
		}
		c.drop(wal.KindReturned, slotID(callee, s))
		return true
	})
}

// forgetCallee drops what a node that is gone has said of others' slots.
func (c *controller) forgetCallee(node lease.Node) {
	for s := range c.handedOver[node] {
		c.drop(wal.KindReturned, slotID(node, s))
	}
	delete(c.handedOver, node)
}

// restoreReturned brings back what is over in a slot, unless one of the two nodes is gone.
func (c *controller) restoreReturned(r *wal.Record) error {
	by, s, n := r.Callee.Address, rpcpacket.Slot(binary.BigEndian.Uint32(r.ID[:])), rpcpacket.Number(r.Order)
	owner := c.blocks.owner(s)
	switch {
	case !by.IsValid() || !s.Valid() || r.ID != slotID(by, s) || n == 0:
		return corrupt(r, "slot %d, by the word of %s, up to number %s", s, by, n)
	case c.nodeOrFallen(by) == nil || !owner.IsValid():
		c.drop(r.Kind, r.ID)
	case owner == by:
		c.called[s] = calledIn{over: n}
	default:
		c.handedOver.end(by, s, n-1, c.cfg.Limits.NodeSlots)
	}
	return nil
}

// handedOver has, for each callee and each slot of a caller, the number of the first call of which an
// answer may still hand regions over. A late copy of an answer to an earlier call must not: the callee
// may have the regions again by then. The callee says so itself, so nobody else suffers if it lies. It
// is on the log, and goes with the callee, and with the incarnation of the caller.
type handedOver map[lease.Node]map[rpcpacket.Slot]rpcpacket.Number

func (o handedOver) late(callee lease.Node, s rpcpacket.Slot, n rpcpacket.Number) bool {
	return n < o[callee][s]
}

// full reports whether a callee may not have a slot: it has a number of them at most.
func (o handedOver) full(callee lease.Node, s rpcpacket.Slot, most int) bool {
	_, known := o[callee][s]
	return !known && len(o[callee]) >= most
}

// end notes that nobody asks for the answer to a call any more. It reports whether that is news.
func (o handedOver) end(callee lease.Node, s rpcpacket.Slot, n rpcpacket.Number, most int) bool {
	if o.full(callee, s, most) || n < o[callee][s] {
		return false // no call in this slot has handed anything over; or a later call has ended
	}
	if o[callee] == nil {
		o[callee] = map[rpcpacket.Slot]rpcpacket.Number{}
	}
	o[callee][s] = n + 1
	return true
}

// forget drops what is meant.
func (o handedOver) forget(meant func(callee lease.Node, s rpcpacket.Slot) bool) {
	for callee, slots := range o {
		for s := range slots {
			if meant(callee, s) {
				delete(slots, s)
			}
		}
		if len(slots) == 0 {
			delete(o, callee)
		}
	}
}
