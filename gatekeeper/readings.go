package gatekeeper

import (
	"maps"
	"slices"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// reading is a job that reads the slots of blocks and the words of batches. It is not one moment: packets pass meanwhile.
type reading struct {
	used    bool // all slots are kept that were used, not only the open ones
	blocks  []uint32
	batches []uint32
	at      int // operations that were handed out
	left    int // and those without answer
	slots   []slotCell
	words   []word
}

const (
	readsOfBlock = rpcpacket.BlockSlots / slotsAtOnce
	readsOfBatch = dsmpacket.BatchSlots / wordsAtOnce
)

// begun makes a reading begin.
func (r reading) begun() reading {
	r.left = len(r.blocks)*readsOfBlock + len(r.batches)*readsOfBatch
	return r
}

func (r *reading) next() (handOp, bool) {
	i := r.at
	if i < len(r.blocks)*readsOfBlock {
		r.at++
		return handOp{kind: handReadSlots, slot: r.blocks[i/readsOfBlock]*rpcpacket.BlockSlots + uint32(i%readsOfBlock*slotsAtOnce)}, true //nolint:gosec // small
	}
	if i -= len(r.blocks) * readsOfBlock; i < len(r.batches)*readsOfBatch {
		r.at++
		return handOp{kind: handReadWords, slot: r.batches[i/readsOfBatch]*dsmpacket.BatchSlots + uint32(i%readsOfBatch*wordsAtOnce)}, true //nolint:gosec // small
	}
	return handOp{}, false
}

func (r *reading) took(_ handOp, a *handAnswer) {
	r.left--
	r.keep(a)
}

// keep keeps what was read.
func (r *reading) keep(a *handAnswer) {
	for _, k := range a.slots {
		if r.used && k.number != 0 || k.state == slotOpen {
			r.slots = append(r.slots, k)
		}
	}
	for _, w := range a.words {
		if w.region.Generation() != 0 {
			r.words = append(r.words, w)
		}
	}
}

// allBlocks are those that nodes have, and those of standing leases; allBatches those that some node has or had: their regions may be anybody's.
func (c *controller) allBlocks() []uint32 {
	return append(slices.Sorted(maps.Keys(c.blocks.of)), c.leases.blocks()...)
}
func (p *population) allBatches() []uint32 { return slices.Sorted(maps.Keys(p.batches.of)) }

// gather is a whole reading of the slots or the words for several nodes at once. Each of them gets what its row has to do with. Whoever wants
// one while another one is under way gets the next one: a reading counts that has begun after all that was done before.
type gather struct {
	reading
	parts []gatherer
	rows  map[uint16]bool // theirs
}

// gatherer is what wants a part of a gather: what goes on with a node.
type gatherer interface {
	// of is the node's row.
	of() (row uint16)
	// gathered takes its part.
	gathered(slots []slotCell, words []word)
}

// gathers are the readings of one kind, of slots or of words.
type gathers struct {
	now  *gather
	next []gatherer
}

func (g *gather) took(_ handOp, a *handAnswer) {
	g.left--
	a.slots = slices.DeleteFunc(a.slots, func(k slotCell) bool { return !g.rows[k.caller] && !g.rows[k.callee] })
	a.words = slices.DeleteFunc(a.words, func(w word) bool { return !g.rows[w.owner] })
	g.keep(a)
}

// gather has somebody get what its row has to do with: open slots, or words. All who ask in one input share a reading, which begins at the input's end.
func (c *controller) gather(kind *gathers, j gatherer) {
	kind.next = append(kind.next, j)
}

// drop forgets who wanted a part.
func (g *gathers) drop(j gatherer) {
	same := func(o gatherer) bool { return o == j }
	g.next = slices.DeleteFunc(g.next, same)
	if g.now != nil {
		g.now.parts = slices.DeleteFunc(g.now.parts, same)
	}
}

// begin begins the next reading, if one is wanted and none is under way.
func (g *gathers) begin(r reading) *gather {
	if g.now != nil || len(g.next) == 0 {
		return nil
	}
	g.now, g.next = &gather{reading: r.begun(), parts: g.next, rows: map[uint16]bool{}}, nil
	for _, j := range g.now.parts {
		g.now.rows[j.of()] = true
	}
	return g.now
}

// beginGathers begins the readings that are wanted, if the registers are there, and reports whether there were any.
func (c *controller) beginGathers() (begun bool) {
	if c.rebuild != nil || len(c.slotGathers.next)+len(c.wordGathers.next) == 0 {
		return false
	}
	for _, g := range []*gather{c.slotGathers.begin(reading{blocks: c.allBlocks()}), c.wordGathers.begin(reading{batches: c.allBatches()})} {
		if g != nil {
			begun = true
			c.hand.begin(g)
			c.goOnGather(g)
		}
	}
	c.reach()
	return begun
}

// endGathers gives all readings up: registers are not what they were any more. Who wants a part has to begin anew.
func (c *controller) endGathers() {
	for _, kind := range []*gathers{&c.slotGathers, &c.wordGathers} {
		if kind.now != nil {
			c.hand.end(kind.now)
		}
		*kind = gathers{}
	}
}

// goOnGather hands out the parts of a gather that is complete.
func (c *controller) goOnGather(g *gather) {
	if g.left > 0 {
		return
	}
	for _, kind := range []*gathers{&c.slotGathers, &c.wordGathers} {
		if kind.now == g {
			kind.now = nil
		}
	}
	for len(g.parts) > 0 {
		j := g.parts[0]
		g.parts = g.parts[1:]
		row := j.of()
		j.gathered(
			slices.DeleteFunc(slices.Clone(g.slots), func(k slotCell) bool { return k.caller != row && k.callee != row }),
			slices.DeleteFunc(slices.Clone(g.words), func(w word) bool { return w.owner != row }),
		)
		switch j := j.(type) {
		case *holding:
			c.goOnHolding(j)
		case *ending:
			c.goOnEnding(j)
		case *sight:
			c.goOnSight(j)
		}
	}
}
