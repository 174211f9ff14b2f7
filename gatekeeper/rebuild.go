package gatekeeper

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// The switch's machine comes back empty (docs/rights.md, section 8). Nothing passes then, until the registers are rebuilt:
//
//	empty ─▶ wait ─▶ ask the nodes that are up for their accounts ─▶ who is silent ends ─▶ words, slots ─▶ rebuilt ─▶ readings begin anew
//
// Of a node that had ended before, the image counts that was made of its row then. A rack that begins from a backup has an image of all
// registers, and no nodes that are up.

// rebuildPatience is how long nodes may take to give their accounts, and memory blades to list their regions.
const rebuildPatience = 3 * time.Second

// rebuild is the rebuilding of the registers.
type rebuild struct {
	strokes
	id       uint64 // tells this question from others
	step     rebuildStep
	due      time.Time                    // when the step is over at the latest; zero for never
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
		if r.step >= rebuildWrites {
			c.hand.end(r)
			c.writeRegisters(r)
		}
		return
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
	for _, k := range c.namings {
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
}

// tickRebuild goes on when a step's time is over.
func (c *controller) tickRebuild() {
	r := c.rebuild
	if r == nil || !c.connected || r.due.IsZero() || c.now.Before(r.due) {
		return
	}
	r.due = time.Time{}
	switch r.step {
	case rebuildWaits:
		c.askAccounts(r)
	case rebuildAsks:
		c.accountsOver(r)
	case rebuildLists:
		c.endSilent(r)
	default: // it waits for no time
	}
}

func (c *controller) rebuildDue(earliest func(time.Time)) {
	if r := c.rebuild; r != nil && c.connected && !r.due.IsZero() {
		earliest(r.due)
	}
}

// askAccounts asks the nodes that are up. One that has joined again, and not heard yet what its row has, has done nothing since.
func (c *controller) askAccounts(r *rebuild) {
	r.step, r.due = rebuildAsks, c.now.Add(rebuildPatience)
	c.timers = true
	for _, n := range c.nodes {
		if !r.up[n] || c.saved != nil || n.blade.port == nil {
			continue
		}
		r.asked[n.address] = n.incarnation
		q := control.GiveAccount{Node: n.address, Incarnation: n.incarnation, Rebuild: r.id}
		_ = c.ask(n.blade.port, control.KindGiveAccount, q, func(control.Message) {}) // a node that is not asked is silent
	}
	c.accountsWhole(r)
}

// account takes a page of a node's account.
func (c *controller) account(p *port, m control.Message) error {
	var page control.AccountPage
	if err := m.Decode(&page); err != nil {
		return err
	}
	if _, err := c.nodeAt(p, "account", page.Node, page.Incarnation); err != nil {
		return err
	}
	c.answer(p, m, nil)
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
		c.accountsWhole(r)
	}
	return nil
}

// accountsWhole goes on when all nodes have given their accounts.
func (c *controller) accountsWhole(r *rebuild) {
	if r.step == rebuildAsks && len(r.asked) == 0 {
		c.accountsOver(r)
	}
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
	r.step, r.due = rebuildLists, c.now.Add(rebuildPatience)
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
	err := c.ask(b.port, control.KindRegions, control.Regions{From: from, Max: control.MaxRegions}, func(m control.Message) {
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
	r.step = rebuildEnds
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
		b = c.buildFrom(r)
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
	namings := c.namings
	c.namings = nil
	for _, k := range namings {
		c.name(k)
	}
	c.rememberAll()
	c.beginSurvey()
	c.reach()
}

// withRights are the nodes that have rows, those that have ended too.
func (c *controller) withRights() (all []*node) {
	for _, nodes := range []map[netip.Addr]*node{c.nodes, c.fallen} {
		for _, n := range nodes {
			if n.rights() {
				all = append(all, n)
			}
		}
	}
	slices.SortFunc(all, func(a, b *node) int { return a.address.Compare(b.address) })
	return all
}

// building is what the registers are to have. Who lends a region, and who has children, is counted at the end.
type building struct {
	words map[uint32]word // by slot
	slots map[rpcpacket.Slot]slotCell
	// below are calls of which the number below theirs is closed if they cannot be open: a copy opens them.
	below map[rpcpacket.Slot]bool
}

func newBuilding() *building {
	return &building{words: map[uint32]word{}, slots: map[rpcpacket.Slot]slotCell{}, below: map[rpcpacket.Slot]bool{}}
}

// buildSaved is what a backup has. All nodes have ended, and nothing of what is in it was settled while it was read. A call counts that
// was there before the words were read; of a one-way, one that was there after them, if its regions had changed hands by then.
func (c *controller) buildSaved(i *image) *building {
	b := newBuilding()
	for _, w := range i.words {
		if w.owner != frozen && c.rowOf(w.owner) == nil {
			w.owner = 0
		}
		w.lent = 0
		b.words[w.region.Slot()] = w
	}
	for _, k := range i.slots {
		b.slots[k.slot] = k
	}
	for _, k := range i.later {
		if was := b.slots[k.slot]; k.given && k.number > was.number {
			b.slots[k.slot] = k
		}
	}
	b.finish()
	return b
}

// frozen is the owner of regions of which a person decides.
const frozen = 4095

// claims are what nodes say of a region: that it is theirs, or whom they have given it to.
type claims struct {
	owners []uint16
	given  map[uint16]uint16
}

// owner decides between claims: who says that a region is its own, or else the end of the chain of those who have given it away. It is frozen
// if claims contradict each other, or if who might have it is silent; 0 if nobody claims it.
func (k *claims) owner(silent func(row uint16) bool) uint16 {
	owners := slices.Clone(k.owners)
	if slices.Sort(owners); len(slices.Compact(owners)) > 1 { // who has given it away may not know yet that it is out of its hands
		owners = slices.DeleteFunc(owners, func(row uint16) bool { _, given := k.given[row]; return given })
	}
	switch owners = slices.Compact(owners); {
	case len(owners) == 1:
		return owners[0]
	case len(k.owners) > 0:
		return frozen
	}
	owner := uint16(0)
	for _, from := range slices.Sorted(maps.Keys(k.given)) {
		to := k.given[from]
		if silent(to) {
			return frozen
		}
		if _, further := k.given[to]; !further {
			if owner != 0 {
				return frozen
			}
			owner = from
		}
	}
	return owner
}

// openCall is a call that may be open.
type openCall struct {
	slotCells []slotCell         // one for each of its slots
	present   bool               // of its caller's incarnation that is up: a copy of it comes
	known     bool               // its callee knows it, or cannot say
	id        string             // "" if it is not known
	taken     *control.TakenCall // as its callee knows it; nil if it cannot say, or knows it not
}

// buildFrom is what accounts, and the images of nodes that have ended, add up to.
func (c *controller) buildFrom(r *rebuild) *building {
	b := newBuilding()
	all := map[dsmpacket.RegionID]*claims{}
	of := func(id dsmpacket.RegionID) *claims {
		k := all[id]
		if k == nil {
			k = &claims{given: map[uint16]uint16{}}
			all[id] = k
		}
		return k
	}
	silent := map[uint16]bool{}
	var calls []openCall
	type taken struct {
		caller uint16
		control.Attempt
		id string // or this
	}
	known := map[uint16]map[taken]*control.TakenCall{} // of callees that have given accounts
	for _, n := range c.withRights() {
		a := r.accountOf(n)
		if a == nil {
			silent[n.row] = r.silent[n.address]
			calls = append(calls, c.claimImage(r, n, of)...)
			continue
		}
		known[n.row] = map[taken]*control.TakenCall{}
		for i := range a.Taken {
			t := &a.Taken[i]
			known[n.row][taken{caller: c.rowOfAddr(t.Caller), Attempt: t.Attempt}] = t
			known[n.row][taken{caller: c.rowOfAddr(t.Caller), id: t.Call}] = t
		}
		for _, id := range idsOf(a.Regions) {
			of(id).owners = append(of(id).owners, n.row)
		}
		for _, g := range a.Given {
			of(g.Region.ID()).given[n.row] = c.rowOfAddr(g.To)
		}
		for _, l := range a.Last {
			if at := b.slots[l.Slot]; c.blocks.owner(l.Slot) == n.address && l.Number.Incarnation() == n.incarnation && l.Number > at.number {
				b.slots[l.Slot] = slotCell{slot: l.Slot, number: l.Number, state: slotClosed, caller: n.row, length: 1}
			}
		}
		for i := range a.Calls {
			if k := c.callOf(n, &a.Calls[i]); k != nil {
				calls = append(calls, *k)
				if k.slotCells[0].given {
					for _, cell := range k.slotCells {
						for _, id := range cell.regions {
							of(id).given[n.row] = cell.callee
						}
					}
				}
			}
		}
		if n.image != nil {
			for _, asked := range a.Asked {
				if cells := callAt(n.image.slots, n.row, asked); cells != nil {
					calls = append(calls, openCall{slotCells: cells})
				}
			}
		}
	}
	for id, k := range all {
		owner := k.owner(func(row uint16) bool { return silent[row] })
		if w := b.words[id.Slot()]; w.region < id {
			b.words[id.Slot()] = word{region: id, owner: owner}
		}
		if owner == frozen {
			c.logger.Error("who owns a region is not clear since the switch's registers were lost: an operator may free it", "region", c.baseOf(id).Addr())
		}
	}
	for id := range r.live { // perhaps of a node that is silent
		if w := b.words[id.Slot()]; w.region < id || w.region == id && w.owner == 0 {
			b.words[id.Slot()] = word{region: id, owner: frozen}
		}
	}
	slices.SortFunc(calls, func(a, b openCall) int { return cmp.Compare(a.slotCells[0].number, b.slotCells[0].number) })
	for i := range calls {
		k := &calls[i]
		first := k.slotCells[0]
		if knows, account := known[first.callee]; account {
			k.taken, k.known = knows[taken{caller: first.caller, Attempt: control.Attempt{Slot: first.slot, Number: first.number}}]
			if !k.known && k.id != "" {
				k.taken, k.known = knows[taken{caller: first.caller, id: k.id}]
			}
		} else {
			k.known = c.rows.of[first.callee].IsValid()
		}
		b.put(k)
	}
	b.finish()
	return b
}

// claimImage takes what the row of a node had that has ended, and returns the calls of it that were open.
func (c *controller) claimImage(r *rebuild, n *node, of func(dsmpacket.RegionID) *claims) (calls []openCall) {
	if r.up[n] {
		return nil // the image is older
	}
	if n.held != nil && n.held.stage == holdRead {
		for _, a := range n.held.held.Regions {
			of(dsmpacket.FromAddr(a).ID()).owners = append(of(dsmpacket.FromAddr(a).ID()).owners, n.row)
		}
	}
	if n.image == nil {
		return nil
	}
	for _, w := range n.image.words {
		of(w.region).owners = append(of(w.region).owners, n.row)
	}
	for _, k := range n.image.slots {
		if k.place != 0 || k.state != slotOpen || k.caller != n.row {
			continue
		}
		cells := callAt(n.image.slots, n.row, control.Attempt{Slot: k.slot, Number: k.number})
		calls = append(calls, openCall{slotCells: cells})
		for _, cell := range cells {
			for _, id := range cell.regions {
				if cell.given {
					of(id).given[n.row] = cell.callee
				}
			}
		}
	}
	return calls
}

// callAt finds an open call in an image.
func callAt(slots []slotCell, row uint16, at control.Attempt) (cells []slotCell) {
	for _, k := range slots {
		if k.number == at.Number && k.caller == row && k.state == slotOpen && k.slot == at.Slot+rpcpacket.Slot(k.place) {
			k.children = 0
			cells = append(cells, k)
		}
	}
	slices.SortFunc(cells, func(a, b slotCell) int { return int(a.place) - int(b.place) })
	if len(cells) == 0 || len(cells) != int(cells[0].length) {
		return nil
	}
	return cells
}

// callOf is a call that a node says it has made, nil if it cannot have made it.
func (c *controller) callOf(n *node, o *control.OpenCall) *openCall {
	length := max(o.Slots, 1, len(o.Lists))
	last := o.Slot + rpcpacket.Slot(length) - 1 //nolint:gosec // checked below
	if length > rpcpacket.MaxLists || last.Block() != o.Slot.Block() || c.blocks.owner(o.Slot) != n.address || o.Number.Incarnation() != n.incarnation {
		return nil
	}
	k := &openCall{present: true, id: o.Call}
	for i := range length {
		cell := slotCell{
			slot: o.Slot + rpcpacket.Slot(i), number: o.Number, state: slotOpen, caller: n.row, callee: c.rowOfAddr(o.Callee), //nolint:gosec // at most four
			place: uint8(i), length: uint8(length), given: o.Oneway, //nolint:gosec // at most four
		}
		if i < len(o.Lists) {
			l := &o.Lists[i]
			if cell.regions = idsOf(l.Regions); len(cell.regions) > rpcpacket.ListRegions {
				return nil
			}
			cell.parent, cell.lender = l.By.Slot, l.By.Number
		}
		k.slotCells = append(k.slotCells, cell)
	}
	return k
}

func idsOf(regions []rpcpacket.Region) (ids []dsmpacket.RegionID) {
	for _, r := range regions {
		if r.Valid() {
			ids = append(ids, r.ID())
		}
	}
	return ids
}

// put sets the slots of a call. Those with lower numbers come first: a call one of whose slots was used again was answered.
func (b *building) put(k *openCall) {
	for _, cell := range k.slotCells {
		at := b.slots[cell.slot]
		if at.number > cell.number {
			return
		}
		if at.state == slotOpen && at.number < cell.number {
			b.close(at)
		}
	}
	for _, cell := range k.slotCells {
		if b.below[cell.slot] = k.present; !k.known || cell.given && !k.names(cell.regions) {
			cell = b.closed(cell)
		}
		b.slots[cell.slot] = cell
	}
}

// names reports whether the callee of a one-way may have got regions by it: else it could be made to give back what it never got.
func (k *openCall) names(regions []dsmpacket.RegionID) bool {
	if k.taken == nil || k.taken.Over {
		return true
	}
	got := idsOf(k.taken.Regions)
	return !slices.ContainsFunc(regions, func(id dsmpacket.RegionID) bool { return !slices.Contains(got, id) })
}

// closed is a slot whose call is not open.
func (b *building) closed(k slotCell) slotCell {
	k.state, k.children = slotClosed, 0
	if b.below[k.slot] {
		k = slotCell{slot: k.slot, number: k.number - 1, state: slotClosed, length: 1}
	}
	return k
}

// close closes all slots of a call, of which one slot is given.
func (b *building) close(k slotCell) {
	for i := range k.length {
		at := k.slot - rpcpacket.Slot(k.place) + rpcpacket.Slot(i)
		if o := b.slots[at]; o.number == k.number && o.state == slotOpen {
			b.slots[at] = b.closed(o)
		}
	}
}

// stays reports whether a slot may be open: as if its call had come now, and its parent were there.
func (b *building) stays(k slotCell) bool {
	for i := range k.length {
		o := b.slots[k.slot-rpcpacket.Slot(k.place)+rpcpacket.Slot(i)]
		if o.state != slotOpen || o.number != k.number || o.place != i || o.length != k.length || o.caller != k.caller || o.callee != k.callee || o.given != k.given {
			return false
		}
	}
	var parent slotCell
	if k.lender != 0 {
		if parent = b.slots[k.parent]; k.given || parent.state != slotOpen || parent.given || parent.number != k.lender || parent.callee != k.caller {
			return false
		}
	}
	for _, id := range k.regions {
		w := b.words[id.Slot()]
		switch {
		case w.region != id:
			return false
		case k.given && w.owner == k.caller: // it has not come
			return false
		case k.given, k.standing, w.owner == k.caller:
		case k.lender == 0 || !slices.Contains(parent.regions, id):
			return false
		}
	}
	return true
}

// finish closes what cannot be open, and counts.
func (b *building) finish() {
	for more := true; more; {
		more = false
		for _, at := range slices.Sorted(maps.Keys(b.slots)) {
			if k := b.slots[at]; k.state == slotOpen && !b.stays(k) {
				b.close(k)
				if o := b.slots[at]; o.state == slotOpen && o.number == k.number {
					b.slots[at] = b.closed(o)
				}
				more = true
			}
		}
	}
	for at, k := range b.slots {
		k.children = 0
		b.slots[at] = k
	}
	for _, k := range b.slots {
		if k.state != slotOpen {
			continue
		}
		if k.lender != 0 {
			p := b.slots[k.parent]
			p.children++
			b.slots[k.parent] = p
		}
		for _, id := range k.regions {
			if w := b.words[id.Slot()]; !k.given {
				w.lent++
				b.words[id.Slot()] = w
			}
		}
	}
}

// String tells people of a call slot.
func (k slotCell) String() string {
	return fmt.Sprintf("slot %d, number %s, from row %d to row %d, state %d", k.slot, k.number, k.caller, k.callee, k.state)
}
