package gatekeeper

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/control"
)

// The switch's machine comes back empty (docs/rights.md, section 8). Nothing passes then, until the registers are rebuilt:
//
//	empty ─▶ wait ─▶ ask the nodes that are up for their accounts ─▶ who is silent ends ─▶ words, slots ─▶ rebuilt ─▶ readings begin anew
//
// Of a node that had ended before, the image counts that was made of its row then. A rack that begins from a backup has an image of all
// registers, and no nodes that are up.

// rebuildPatience is how long nodes may take to give their accounts, and memory blades to list their regions. Time in which the Gatekeeper
// could not hear them does not count (hearing.go).
const rebuildPatience = 3 * time.Second

// rebuild is the rebuilding of the registers.
type rebuild struct {
	strokes
	id       uint64 // tells this question from others
	step     rebuildStep
	due      time.Time                    // when the step is over at the latest; zero for never
	asking   time.Time                    // when the step began that waits for answers
	overdue  bool                         // it is over when the switch has answered a probe
	up       map[*node]bool               // nodes that were up: others that have joined since have done nothing yet
	asked    map[netip.Addr]uint32        // nodes that have not given their whole accounts yet, with their incarnations
	accounts map[netip.Addr]*nodeAccount  // of those that have begun to
	live     map[dsmpacket.RegionID]uint8 // regions that memory has, and the machine; only if somebody is silent
	lists    int                          // of memory blades that are not complete
	silent   map[netip.Addr]bool          // nodes whose rights nobody knows
}

// nodeAccount is the account of a node's incarnation, as far as it has come.
type nodeAccount struct {
	control.Account
	incarnation uint32
	pages       int
	whole       bool
}

type rebuildStep uint8

// The steps of a rebuilding.
const (
	rebuildWaits  rebuildStep = iota // what had passed the switch arrives
	rebuildAsks                      // nodes give their accounts
	rebuildLists                     // memory blades list their regions
	rebuildEnds                      // those that are silent lose their identities
	rebuildWrites                    // the registers are written
	rebuildOver                      // packets may pass
)

// next implements handJob.
func (r *rebuild) next() (handOp, bool) {
	if r.done == len(r.ops) {
		return handOp{}, false
	}
	r.done++
	return r.ops[r.done-1], true
}

// took implements handJob.
func (r *rebuild) took(handOp, *handAnswer) { r.open-- }

// registersLost begins the rebuilding of registers that are empty, or begins to write them once more.
func (c *controller) registersLost() {
	if r := c.rebuild; r != nil {
		c.hand.end(r)
		switch r.step {
		case rebuildWrites:
			c.writeRegisters(r)
			return
		case rebuildOver: // packets may have passed since, so the accounts are old
		default:
			return
		}
	}
	r := &rebuild{
		id: c.hand.election<<20 ^ uint64(c.now.UnixNano()), due: c.now.Add(rest), asked: map[netip.Addr]uint32{}, //nolint:gosec // any number
		up: map[*node]bool{}, accounts: map[netip.Addr]*nodeAccount{}, silent: map[netip.Addr]bool{}, live: map[dsmpacket.RegionID]uint8{},
	}
	c.rebuild, c.timers = r, true
	if c.saved != nil {
		c.logger.Info("the rack begins from a backup: the switch's registers are written")
	} else {
		c.logger.Warn("the switch's registers are lost: nothing passes until they are rebuilt from what nodes know")
	}
	for _, n := range c.nodes { // what is read now is not what it was
		r.up[n] = n.rights() && n.joined && !n.unheard
		if n.held != nil && n.held.stage < holdRead {
			c.holdAnew(n.held)
		}
	}
	for _, e := range c.endings {
		c.hand.end(e)
	}
	c.endGathers()
	c.hand.end(&c.leases)
	c.leases.lost()
	for _, k := range c.lookings {
		c.hand.end(k)
	}
	c.hand.endSights()
	if s := c.surveys.now; s != nil {
		c.endSurvey(s)
	}
}

// registersThere says that the registers have what they should.
func (c *controller) registersThere() {
	if c.rebuild != nil {
		c.endRebuild(c.rebuild)
		return
	}
	c.dropSaved()
	c.rememberAll()
	c.leases.again()
	c.goOnLeases()
}

// tickRebuild goes on when a step's time is over.
func (c *controller) tickRebuild() {
	r := c.rebuild
	if r == nil || !c.connected || r.due.IsZero() || c.now.Before(r.due) {
		return
	}
	r.due = time.Time{}
	switch {
	case r.step == rebuildWaits:
		c.askAccounts(r)
	case r.step == rebuildLists && r.lists == 0:
		c.endSilent(r)
	case r.step == rebuildAsks || r.step == rebuildLists:
		r.overdue = true
		c.probeSwitch()
	}
}

// overdue goes on without those who have not answered, when the switch has answered a probe: what they have said has come by then.
func (c *controller) overdue(r *rebuild) {
	if r == nil || !r.overdue {
		return
	}
	r.overdue = false
	if r.step == rebuildAsks {
		c.accountsOver(r)
	} else {
		c.endSilent(r)
	}
}

// listenAnew gives those who are asked their time once more: they could not be heard, or not be asked.
func (r *rebuild) listenAnew(now time.Time) {
	if r != nil && (r.step == rebuildAsks || r.step == rebuildLists) {
		r.due, r.overdue = now.Add(rebuildPatience), false
	}
}

// askAccounts asks the nodes that are up. One that has joined again, and not heard yet what its row has, has done nothing since.
func (c *controller) askAccounts(r *rebuild) {
	r.step, r.asking, r.due = rebuildAsks, c.now, c.now.Add(rebuildPatience)
	c.timers = true
	for _, n := range c.nodes {
		if !r.up[n] || c.saved != nil || n.blade.port == nil {
			continue
		}
		r.asked[n.address] = n.incarnation
		c.command(n.blade, control.KindGiveAccount, control.GiveAccount{Node: n.address, Incarnation: n.incarnation, Rebuild: r.id}, nil)
	}
	if len(r.asked) == 0 {
		c.accountsOver(r)
	}
}

// account takes a page of a node's account.
func (c *controller) account(p *port, m control.Message) error {
	var page control.AccountPage
	if err := m.Decode(&page); err != nil {
		return err
	}
	if _, err := p.nodeAt("account", page.Node, page.Incarnation); err != nil {
		return err
	}
	p.answer(m, nil)
	r := c.rebuild
	if r == nil || page.Rebuild != r.id || r.step != rebuildAsks || r.asked[page.Node] != page.Incarnation {
		return nil
	}
	a := r.accounts[page.Node]
	if a == nil {
		a = &nodeAccount{incarnation: page.Incarnation}
		r.accounts[page.Node] = a
	}
	if page.Page != a.pages {
		return nil
	}
	a.pages++
	if a.Add(&page.Account); page.Last {
		a.whole = true
		delete(r.asked, page.Node)
		if len(r.asked) == 0 {
			c.accountsOver(r)
		}
	}
	return nil
}

// accountOf is a node's account, nil if there is none.
func (r *rebuild) accountOf(n *node) *nodeAccount {
	if a := r.accounts[n.address]; a != nil && a.whole && a.incarnation == n.incarnation {
		return a
	}
	return nil
}

// accountsOver finds out who is silent. What memory has then, and nobody claims, may be theirs.
func (c *controller) accountsOver(r *rebuild) {
	r.step, r.asking, r.due, r.overdue = rebuildLists, c.now, c.now.Add(rebuildPatience), false
	c.timers = true
	for _, n := range c.withRights() {
		if r.accountOf(n) == nil && c.saved == nil && (r.up[n] || n.image == nil && (n.gone || n.before > 0)) {
			r.silent[n.address] = true
		}
	}
	if len(r.silent) > 0 {
		for _, b := range c.sortedBlades() {
			if b.memory() && b.alive() && b.holds() {
				r.lists++
				c.listLive(r, b, 0)
			}
		}
	}
	if r.lists == 0 {
		c.endSilent(r)
	}
}

// listLive has a memory blade list its regions.
func (c *controller) listLive(r *rebuild, b *blade, from dsmpacket.RegionID) {
	err := b.port.ask(c.now, control.KindRegions, control.Regions{From: from, Max: control.MaxRegions}, func(m control.Message) {
		page, err := regionList(m)
		for _, o := range page.Regions {
			r.live[o.ID] = b.hello.Machine
		}
		if err == nil && page.Next > from && b.alive() {
			c.listLive(r, b, page.Next)
			return
		}
		r.listed(c)
	})
	if err != nil {
		r.listed(c)
	}
}

func (r *rebuild) listed(c *controller) {
	if r.lists--; r.lists == 0 && r.step == rebuildLists && c.rebuild == r {
		r.due, c.timers = c.now, true // not at once: the last one may not have been asked yet
	}
}

// endSilent ends the nodes that are up and have not given their accounts: they come back by a join. In a rack that begins from a backup all have
// ended before.
func (c *controller) endSilent(r *rebuild) {
	r.step, r.due, r.overdue = rebuildEnds, time.Time{}, false
	var ended []*node
	for _, n := range c.nodes {
		if r.up[n] && (r.silent[n.address] || c.saved != nil) {
			ended = append(ended, n)
		}
	}
	slices.SortFunc(ended, func(a, b *node) int { return a.address.Compare(b.address) })
	why := "it has not said what rights it has, and the switch has lost them"
	if c.saved != nil {
		why = "the rack has begun from a backup"
	}
	for _, n := range ended {
		c.stopInstance(n)
	}
	c.removeNodes(why, ended...)
	c.change(func(error) { // after the rules that this takes
		if c.rebuild == r {
			c.writeRegisters(r)
		}
	}, phase(nil))
}

// writeRegisters writes what the registers are to have.
func (c *controller) writeRegisters(r *rebuild) {
	var b *building
	if c.saved != nil {
		b = c.buildSaved(c.saved)
	} else {
		b = c.buildFrom(r, &c.leases)
	}
	for _, id := range b.unclear {
		c.event(Event{Kind: RegionFrozen, Region: c.baseOf(id).String()})
		c.logger.Error("whose a region is nobody can say since the switch's registers were lost: bifrost free frees it", "region", c.baseOf(id).Addr())
	}
	var ops []handOp
	for _, slot := range slices.Sorted(maps.Keys(b.words)) {
		ops = append(ops, handOp{kind: handSetWord, slot: slot, word: b.words[slot].value()})
	}
	for _, slot := range slices.Sorted(maps.Keys(b.slots)) {
		k := b.slots[slot]
		ops = append(ops, handOp{kind: handSetSlot, slot: uint32(slot), cell: k.appendTo(nil)})
	}
	r.step, r.strokes = rebuildWrites, strokesOf(ops)
	c.hand.begin(r)
	c.goOnRebuild(r)
}

// goOnRebuild goes on when all operations of a step are answered.
func (c *controller) goOnRebuild(r *rebuild) {
	switch {
	case c.rebuild != r || r.open > 0:
	case r.step == rebuildWrites:
		r.step, r.strokes = rebuildOver, strokesOf([]handOp{{kind: handRebuilt}})
		c.hand.begin(r)
	case r.step == rebuildOver:
		c.endRebuild(r)
	}
	c.reach()
}

// endRebuild goes on with what has waited for the registers.
func (c *controller) endRebuild(r *rebuild) {
	c.hand.end(r)
	c.rebuild, c.timers = nil, true
	c.dropSaved()
	c.logger.Info("the switch's registers are rebuilt", "nodes", len(r.accounts), "silent", len(r.silent))
	for _, n := range c.nodes {
		if n.held != nil && n.held.stage < holdRead {
			c.holdAnew(n.held)
			c.goOnHolding(n.held)
		}
	}
	for _, e := range c.endings {
		c.readForEnd(e, endCalls)
	}
	lookings := c.lookings
	c.lookings = nil
	for _, k := range lookings {
		c.lookWith(k)
	}
	c.rememberAll()
	c.leases.again()
	c.goOnLeases()
	c.beginSurvey()
	c.reach()
}
