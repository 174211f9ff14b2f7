package gatekeeper

import (
	"net/netip"

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
	of    map[uint32]netip.Addr
	next  uint32 // from here on no block has been given out
	looks uint32 // the block that was looked at last, once all have been
}

// free is a block that nobody has: one that was never used, if there is any. It is 0 if all are taken.
func (b *blocks) free() uint32 {
	if b.next = max(b.next, 1); b.next < nodeBlocks {
		return b.next
	}
	if len(b.of) >= nodeBlocks-1 {
		return 0
	}
	for range nodeBlocks - 1 {
		if b.looks = b.looks%(nodeBlocks-1) + 1; !b.of[b.looks].IsValid() {
			return b.looks
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
func (p *population) grantBlocks(n *node, want int) {
	more := min(want, rpcpacket.MaxBlocks) - len(n.blocks)
	if more > 0 {
		more = min(more, p.room(n, (*node).blockCount, len(p.blocks.of), nodeBlocks-1))
	}
	for range more {
		block := p.blocks.free()
		if block == 0 {
			return
		}
		p.blocks.has(n.address, block)
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
	n, err := p.nodeAt("blocks", q.Node, q.Incarnation)
	if err != nil {
		return err
	}
	if had := len(n.blocks); had < q.Want {
		if c.grantBlocks(n, q.Want); len(n.blocks) > had {
			c.keepNode(n)
		}
	}
	if !n.rights() {
		p.answer(m, control.BlockReply{Blocks: n.blocks})
		return nil
	}
	c.change(func(err error) {
		if err != nil {
			p.fail(m, fault.New(fault.Internal, "blocks", "the switch refuses the rules of call slots: %v", err))
			return
		}
		p.answer(m, control.BlockReply{Blocks: n.blocks})
	}, c.wantBlocks(n))
	return nil
}

// freeBlocks takes the blocks of a node that is gone for good.
func (p *population) freeBlocks(n *node) {
	for _, block := range n.blocks {
		delete(p.blocks.of, block)
	}
	n.blocks = nil
}
