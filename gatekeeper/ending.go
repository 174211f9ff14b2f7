package gatekeeper

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/pace"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// ending is the end of a node that has a row and is gone for good (docs/rights.md, section 7). It is going, its identity and its control
// rules are off, and memory refuses it:
//
//	read its open slots ─▶ none? read its words ─▶ none lent? forsaken ─▶ seize and reclaim what it owns ─▶ none left? rest ─▶ gone
//	  ▲    └─ fail those of which it is callee, ask about those of which it is caller ─┐        ▲         └──────────┐ │
//	  └──────────────────────────── a pause ◀────────────────────────────────────────-─┘        └────────────────────┘─┘
//
// The log says that the node is going. So the next Gatekeeper fences it again, and begins here anew: each step finds what is left.
type ending struct {
	strokes
	node      *node
	lost      bool // only its ledger is lost: calls end, and that is all
	step      endStep
	asks      bool // for a part of a gather
	slots     []slotCell
	words     []word
	again     time.Time // when it goes on; zero while it waits for answers
	pause     time.Duration
	forsaken  bool // memory has taken back what the node had not decided
	gives     bool // one-ways to it fail: their regions are their senders' again
	seizing   []dsmpacket.RegionID
	reclaimed int // regions
}

type endStep uint8

// The steps of an ending.
const (
	endCalls     endStep = iota // its open slots are read
	endFailing                  // calls of which it is callee fail
	endWords                    // its words are read
	endForsaking                // memory takes back
	endSeizing                  // what it owns is seized
)

// endPauses are those between two readings of the slots of a node that is gone: its callees may take their time.
var endPauses = pace.Pauses{First: 20 * time.Millisecond, Most: time.Second}

// rest is how long nobody gets row, blocks and batches of a node that is gone: what had passed the switch has arrived by then.
const rest = time.Second

// strokes are operations that change something.
type strokes struct {
	ops  []handOp
	done int // that were handed out
	open int // without answer
}

func strokesOf(ops []handOp) strokes { return strokes{ops: ops, open: len(ops)} }

// next implements handJob.
func (e *ending) next() (handOp, bool) {
	if e.done == len(e.ops) {
		return handOp{}, false
	}
	e.done++
	return e.ops[e.done-1], true
}

// took implements handJob. The next reading tells what has become of the operation.
func (e *ending) took(handOp, *handAnswer) { e.open-- }

func (e *ending) of() uint16 { return e.node.row }

func (e *ending) gathered(slots []slotCell, words []word) {
	e.asks, e.slots, e.words = false, slots, words
}

// beginEnding begins the end of a node that is gone for good, when it is fenced.
func (c *controller) beginEnding(n *node) {
	if e := c.endings[n.address]; e != nil && !e.lost {
		return
	}
	c.leases.endWith(n.address)
	c.goOnLeases()
	c.end(&ending{node: n})
}

// beginLosing ends the calls of a node whose ledger is lost with the states of its services: no incarnation of it knows of them. Those to it fail. Its route
// is going, so there come no others. Standing leases that it has stay.
func (c *controller) beginLosing(n *node) {
	if n.rights() {
		c.end(&ending{node: n, lost: true})
	}
}

// end begins an ending, instead of one that is under way.
func (c *controller) end(e *ending) {
	if was := c.endings[e.node.address]; was != nil {
		c.giveUpReading(was)
	}
	c.endings[e.node.address] = e
	if c.rebuild == nil {
		c.readForEnd(e, endCalls)
	}
}

// readForEnd has an ending read slots or words.
func (c *controller) readForEnd(e *ending, step endStep) {
	e.step, e.again, e.strokes, e.asks = step, time.Time{}, strokes{}, true
	if step == endCalls {
		c.gather(&c.slotGathers, e)
	} else {
		c.gather(&c.wordGathers, e)
	}
}

// strike has operations done that change something.
func (c *controller) strike(e *ending, step endStep, ops []handOp) {
	e.step, e.again, e.strokes = step, time.Time{}, strokesOf(ops)
	c.hand.begin(e)
	c.goOnEnding(e)
}

// later has an ending read again after a pause.
func (c *controller) endLater(e *ending) {
	e.pause = endPauses.Next(e.pause)
	e.again, c.timers = c.now.Add(e.pause), true
}

// goOnEnding goes on when all that a step waits for is there.
func (c *controller) goOnEnding(e *ending) {
	if e.asks || e.open > 0 {
		c.reach()
		return
	}
	switch e.step {
	case endCalls:
		c.endSlots(e)
	case endFailing:
		if e.gives { // what its row had is not what it has any more
			e.gives = false
			c.seeRow(e.node)
		}
		c.endLater(e)
	case endWords:
		c.endRegions(e)
	case endForsaking:
		if !c.forsaking(e.node) {
			e.forsaken = true
			c.readForEnd(e, endWords)
			return
		}
		c.endLater(e)
	case endSeizing:
		c.readForEnd(e, endWords)
	}
}

// endSlots looks at the open slots of a node that is gone.
func (c *controller) endSlots(e *ending) {
	if e.lost {
		e.slots = slices.DeleteFunc(e.slots, func(k slotCell) bool { return k.standing })
	}
	var ops []handOp
	for _, k := range e.slots {
		switch {
		case k.place > 0 || k.standing: // leases end by themselves
		case k.callee == e.node.row:
			ops = append(ops, handOp{kind: handFail, slot: uint32(k.slot), number: k.number})
			e.gives = e.gives || k.given
		default:
			c.askInName(e.node, k)
		}
	}
	switch {
	case e.lost && len(e.slots) == 0:
		delete(c.endings, e.node.address)
	case len(e.slots) == 0:
		c.readForEnd(e, endWords)
	case len(ops) == 0:
		c.endLater(e)
	default:
		c.strike(e, endFailing, ops)
	}
}

// askInName asks the callee of a call of a node that is gone what has become of the call, in the name of an incarnation that the node will never have. The
// answer closes the slot, and goes nowhere.
func (c *controller) askInName(n *node, k slotCell) {
	callee := c.nodes[c.rows.of[k.callee]]
	if callee == nil {
		return // it is to come back, or it is gone, too, and the call fails
	}
	m := rpcpacket.Message{Header: rpcpacket.Header{
		Type: rpcpacket.Ask, Flags: rpcpacket.FlagReleased, Slot: k.slot, Number: k.number, CallerIncarnation: n.incarnation + 1,
	}}
	c.send(0, frame.UDP6{
		Src: netip.AddrPortFrom(n.address, rackaddr.PortDirect), Dst: netip.AddrPortFrom(callee.address, rackaddr.PortDirect), Payload: m.Append(nil),
	}.Append(nil))
}

// endRegions looks at the words of a node that is gone, when it has no open slots.
func (c *controller) endRegions(e *ending) {
	var owned []dsmpacket.RegionID
	lent := false
	for _, w := range e.words {
		if w.owner == e.node.row {
			owned = append(owned, w.region)
			lent = lent || w.lent > 0
		}
	}
	var seized []dsmpacket.Region
	for _, id := range e.seizing {
		if !slices.Contains(owned, id) {
			seized = append(seized, dsmpacket.Region{Base: c.baseOf(id), Class: control.AnyClass})
		}
	}
	e.seizing = nil
	c.reclaim(seized)
	e.reclaimed += len(seized)
	switch {
	case lent: // a one-way that was given back may be
		e.step = endFailing
		c.endLater(e)
	case !e.forsaken:
		c.forsakeNode(e)
	case len(owned) == 0:
		c.endNode(e)
	default:
		var ops []handOp
		for _, id := range owned {
			ops = append(ops, handOp{kind: handSeize, regions: []dsmpacket.RegionID{id}, owner: e.node.row})
		}
		e.seizing = owned
		c.strike(e, endSeizing, ops)
	}
}

// forsakeNode has memory take back what a node that is gone has not decided. A memory blade that is away does it before it serves again.
func (c *controller) forsakeNode(e *ending) {
	e.step = endForsaking
	f := fenceOf(e.node.logged(), true)
	c.missFence(f)
	for _, b := range slices.Clone(c.servers) {
		c.forsakeNodeAt(b, e)
	}
	c.goOnEnding(e)
}

func (c *controller) forsakeNodeAt(b *blade, e *ending) {
	f := fenceOf(e.node.logged(), true)
	c.command(b, control.KindFence, f, func(reply control.Message) {
		c.level(b, f, reply, c.fenced(b, reply, func() { c.wakeEnding(e) }))
	})
}

// forsakeAlso has a memory blade that comes into service take back what it may not have been told to: the one that it was filled from may not have
// done it yet.
func (c *controller) forsakeAlso(b *blade) {
	for _, node := range slices.SortedFunc(maps.Keys(c.endings), netip.Addr.Compare) {
		if e := c.endings[node]; e.step == endForsaking && !b.asked(fenceOf(e.node.logged(), true)) {
			c.forsakeNodeAt(b, e)
		}
	}
}

// wakeEnding has an ending look again at what it waits for.
func (c *controller) wakeEnding(e *ending) {
	if e.step == endForsaking && c.endings[e.node.address] == e {
		e.again, c.timers = c.now, true
	}
}

// forsaking reports whether a memory blade is still to take back what a node that is gone has not decided.
func (e *estate) forsaking(n *node) bool {
	f := fenceOf(n.logged(), true)
	return slices.ContainsFunc(e.servers, func(b *blade) bool {
		of := func(x *levelling) bool { return x.fence == f }
		return b.asked(f) || b.mirror != nil && slices.ContainsFunc(b.mirror.levelling, of) || slices.ContainsFunc(b.unlevel, of) ||
			b.mirror.completing() && slices.ContainsFunc(b.mirror.filling.later, func(l laterFence) bool { return l.fence == f })
	})
}

// endNode ends a node of which nothing is left in registers. Its place rests.
func (c *controller) endNode(e *ending) {
	n := e.node
	c.hand.end(e)
	delete(c.endings, n.address)
	c.logger.Info("what a node had is swept", "node", n.address, "regions", e.reclaimed)
	c.deleteLedger(n)
	c.change(nil, c.unwant(nodeRoute(n)))
	c.resting = append(c.resting, resting{n, c.now.Add(rest)})
	c.timers = true
	delete(c.fallen, n.address)
	c.disownMains(n)
	c.disownUnused()
	c.event(Event{Kind: NodeLeft, Blade: n.blade.hello.Blade, Node: n.address, Name: n.name, Message: n.why})
	c.logger.Info("node left", "node", n.address, "name", n.name, "reason", n.why)
}

// resting is a node that is gone, until others may get its row, blocks and batches. Until then it is on the log.
type resting struct {
	node  *node
	until time.Time
}

// rested gives on what has rested.
func (c *controller) rested() {
	for len(c.resting) > 0 && !c.now.Before(c.resting[0].until) {
		n := c.resting[0].node
		c.resting = c.resting[1:]
		if s := c.surveys.now; s != nil {
			s.gone = append(s.gone, n.address)
		}
		c.takeRow(n)
		c.freeBlocks(n)
		c.freeBatches(n)
		c.drop(wal.KindNode, wal.AddrID(n.address))
	}
}

// tickEndings goes on with what is due.
func (c *controller) tickEndings() {
	c.rested()
	for _, e := range c.endings {
		if e.again.IsZero() || c.now.Before(e.again) || c.rebuild != nil {
			continue
		}
		if e.step == endForsaking {
			c.goOnEnding(e)
		} else {
			c.readForEnd(e, endCalls)
		}
	}
}
