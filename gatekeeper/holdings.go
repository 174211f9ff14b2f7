package gatekeeper

import (
	"encoding/json"
	"net/netip"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// base is the first byte of a region.
func (p *population) baseOf(id dsmpacket.RegionID) dsmpacket.Pointer {
	return dsmpacket.Make(p.prefix, p.batches.of[id.Batch()].machine, id)
}

func (p *population) basesOf(ids []dsmpacket.RegionID) (all []netip.Addr) {
	for _, id := range ids {
		all = append(all, p.baseOf(id).Addr())
	}
	return all
}

// holding is how a node that joins again is told what its row has (docs/rights.md, sections 6 and 7). The former incarnation is fenced. This
// one's identity goes on afterwards:
//
//	slots of its blocks ─▶ words of all batches ─▶ open one-ways to it ─▶ identity, Joined ─▶ HoldingsPage … heard
//
// What an answer brings meanwhile has an open slot in the first reading, or is among the words. What a one-way brings has an open slot in
// the second reading of slots: the node will hear of it.
//
// A node that runs may ask what it owns now (section 5). It knows its slots, so the first stage falls away. Any program may ask as often as it likes:
// those who have asked within listEvery are read for together.
type holding struct {
	reading // of the first stage
	node    *node
	now     bool
	stage   int
	asks    bool // for a part of a gather
	held    control.Holdings
	owned   []word
	waits   []waiting // for it
}

// waiting is a request that waits.
type waiting struct {
	port *port
	ask  control.Message
}

// The stages of a holding.
const (
	holdSlots = iota
	holdWords
	holdComing
	holdRead
)

// listEvery is how long it is from one reading of what nodes own now to the next.
const listEvery = time.Second

// listings are the nodes that have asked what they own now, and that wait for the next reading.
type listings struct {
	waits []*holding
	next  time.Time // when that may begin
}

// hold has a node's holdings read, of its join or of now, and then goes on with a request.
func (c *controller) hold(n *node, now bool, p *port, m control.Message) {
	if n.held == nil || n.held.stage == holdRead {
		n.held = &holding{node: n, now: now}
		if now {
			c.listings.waits, c.timers = append(c.listings.waits, n.held), true
		} else {
			c.holdAnew(n.held)
		}
	}
	n.held.waits = append(n.held.waits, waiting{p, m})
	if now {
		c.tickListings()
	} else {
		c.goOnHolding(n.held)
	}
}

// tickListings begins to read what those nodes own that have asked, if it is time.
func (c *controller) tickListings() {
	if len(c.listings.waits) == 0 || c.now.Before(c.listings.next) {
		return
	}
	all := c.listings.waits
	c.listings = listings{next: c.now.Add(listEvery)}
	for _, h := range all {
		if h.node.held == h {
			c.holdAnew(h)
			c.goOnHolding(h)
		}
	}
}

// due says when that is.
func (l *listings) due(earliest func(time.Time)) {
	if len(l.waits) > 0 {
		earliest(l.next)
	}
}

// holdAnew begins a node's holdings from the first stage.
func (c *controller) holdAnew(h *holding) {
	c.giveUpReading(h)
	h.stage, h.asks, h.held, h.owned = holdSlots, false, control.Holdings{}, nil
	if h.now {
		h.reading = reading{}
		return
	}
	h.reading = reading{used: true, blocks: h.node.blocks}.begun()
	if c.rebuild == nil {
		c.hand.begin(h)
	}
}

// giveUpReading gives up what a holding or an ending waits for.
func (c *controller) giveUpReading(j interface {
	handJob
	gatherer
}) {
	c.hand.end(j)
	c.slotGathers.drop(j)
	c.wordGathers.drop(j)
}

// goOnHolding begins the next stage when one is over.
func (c *controller) goOnHolding(h *holding) {
	if c.rebuild != nil && h.stage < holdRead {
		return // it begins anew when the registers are rebuilt
	}
	for h.left == 0 && !h.asks && h.stage < holdRead {
		switch h.stage++; h.stage {
		case holdWords:
			if !h.now {
				h.held.Slots = c.heldSlots(h.slots)
			}
			h.reading, h.asks = reading{}, true
			c.gather(&c.wordGathers, h)
		case holdComing:
			h.owned, h.asks = h.words, true
			c.gather(&c.slotGathers, h)
		case holdRead:
			c.listHoldings(h)
		}
	}
	if h.stage == holdRead {
		all := h.waits
		h.waits = nil
		for _, w := range all {
			c.goOnWith(h.node, w)
		}
	}
	c.reach()
}

func (h *holding) of() uint16 { return h.node.row }

func (h *holding) gathered(slots []slotCell, words []word) {
	h.asks, h.slots, h.words = false, slots, words
}

// heldSlots are slots as a node is told them.
func (p *population) heldSlots(slots []slotCell) (all []control.HeldSlot) {
	for _, k := range slots {
		s := control.HeldSlot{
			Slot: uint32(k.slot), Number: uint64(k.number), Callee: p.rows.of[k.callee], State: control.SlotState(k.state), Place: k.place, Given: k.given,
		}
		if k.state == slotOpen {
			s.Regions = p.basesOf(k.regions)
		}
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b control.HeldSlot) int { return int(a.Slot) - int(b.Slot) })
	return all
}

// listHoldings lists the regions, when all is read.
func (c *controller) listHoldings(h *holding) {
	coming := map[dsmpacket.RegionID]bool{}
	for _, k := range h.slots {
		if k.given && k.callee == h.node.row {
			for _, id := range k.regions {
				coming[id] = true
			}
		}
	}
	for _, w := range h.owned {
		if w.owner == h.node.row && !coming[w.region] {
			h.held.Regions = append(h.held.Regions, c.baseOf(w.region).Addr())
		}
	}
	slices.SortFunc(h.held.Regions, netip.Addr.Compare)
	h.held.Shared = !h.now && c.leases.former(h.node.logged()) > 0
	h.reading, h.owned = reading{}, nil
}

// goOnWith goes on with a request that has waited for a node's holdings.
func (c *controller) goOnWith(n *node, w waiting) {
	if w.ask.Kind == control.KindJoin {
		c.admitNode(w.port, w.ask, n)
		return
	}
	var q control.HoldingsQuery
	if err := w.ask.Decode(&q); err != nil {
		w.port.fail(w.ask, err)
		return
	}
	c.tellHoldings(n, w.port, w.ask, q.From)
}

// tellHoldings answers with a page of what was read.
func (c *controller) tellHoldings(n *node, p *port, m control.Message, from int) {
	page := n.held.held.Page(from)
	page.Reading = c.cfg.Boot
	p.answer(m, page)
}

// unhold gives up what waits for the holdings of a node that has ended.
func (c *controller) unhold(n *node) {
	if n.held == nil {
		return
	}
	c.giveUpReading(n.held)
	for _, w := range n.held.waits {
		w.port.fail(w.ask, fault.New(fault.Unavailable, w.ask.Kind.String(), "the node has ended meanwhile: %s", n.why))
	}
	n.held = nil
}

// holdings tells a node a page of what its row had when it joined, or of what it owns now. After a restart of the Gatekeeper it is read once more: of a
// node that joins nothing has happened yet.
func (c *controller) holdings(p *port, m control.Message) error {
	var q control.HoldingsQuery
	if err := m.Decode(&q); err != nil {
		return err
	}
	n, err := p.nodeAt("holdings", q.Node, q.Incarnation)
	if err != nil {
		return err
	}
	read := n.held != nil && n.held.stage == holdRead
	switch {
	case q.Heard:
		if read {
			n.held = nil
		}
		if n.unheard {
			n.unheard = false
			c.keepNode(n)
		}
		fallthrough
	case !n.rights(), n.before == 0 && !q.Now:
		p.answer(m, control.HoldingsPage{})
	case q.Now && n.unheard:
		return fault.New(fault.BadRequest, "holdings", "node %s has not heard what it had when it joined", n.address)
	case !q.Now && !n.unheard:
		return fault.New(fault.Stale, "holdings", "node %s has heard what it holds", n.address)
	case !read, q.Now && q.Reading != c.cfg.Boot:
		c.hold(n, q.Now, p, m)
	default:
		c.tellHoldings(n, p, m, q.From)
	}
	return nil
}

// looking reads the words of batches, and then goes on with them.
type looking struct {
	reading
	then func([]word)
}

// look has the words of batches read, when the registers are there.
func (c *controller) look(batches []uint32, then func([]word)) {
	c.lookWith(&looking{reading: reading{batches: batches}, then: then})
}

func (c *controller) lookWith(k *looking) {
	c.lookings = append(c.lookings, k)
	k.reading = reading{batches: k.batches}.begun()
	if c.rebuild == nil {
		c.hand.begin(k)
		c.goOnLooking(k)
		c.reach()
	}
}

// goOnLooking goes on when all words are read.
func (c *controller) goOnLooking(k *looking) {
	if k.left > 0 {
		return
	}
	c.lookings = slices.DeleteFunc(c.lookings, func(o *looking) bool { return o == k })
	k.then(k.words)
}

// fenced takes a memory blade's answer to a fence. The answer names the regions that the blade has made for the incarnation which it was told to refuse. Of those the
// switch may know nothing: the answers were lost. Nobody has a right to them, so they are freed. What an execution has allocated is none of them: its next run
// asks for it.
//
// It goes on when they are on their way, and the function that it returns has been called. Until then the fence is not over: if the Gatekeeper dies, the next one
// asks again, and the blade names them again.
func (c *controller) fenced(b *blade, m control.Message, then func()) (also func()) {
	left := 2
	also = func() {
		if left--; left == 0 {
			then()
		}
	}
	var told control.Fenced
	if m.Status != fault.OK || len(m.Body) == 0 || json.Unmarshal(m.Body, &told) != nil {
		also() // an error is reported by whoever has asked; what it hides waits for an audit
		return also
	}
	var made []dsmpacket.Region
	var batches []uint32
	for _, id := range told.Regions {
		if id.Execution == (control.ExecutionID{}) {
			made = append(made, id.Region(c.cfg.DSMPrefix, b.hello.Machine))
			batches = append(batches, id.ID.Batch())
		}
	}
	if told.More {
		c.logger.Warn("a memory blade has more regions of a node that has ended than it names", "blade", b.hello.Blade)
	}
	if len(made) == 0 {
		also()
		return also
	}
	slices.Sort(batches)
	c.look(slices.Compact(batches), func(words []word) {
		known := map[uint32]uint32{} // generations, by slot
		for _, w := range words {
			known[w.region.Slot()] = w.region.Generation()
		}
		c.reclaim(slices.DeleteFunc(made, func(r dsmpacket.Region) bool { return known[r.Base.ID().Slot()] >= r.Base.ID().Generation() }))
		also()
	})
	return also
}
