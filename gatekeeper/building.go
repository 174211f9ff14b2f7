package gatekeeper

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// What the registers are to have that are rebuilt (rebuild.go): from the accounts of nodes, or from a backup.

// building is what the registers are to have. Who lends a region, and who has children, is counted at the end.
type building struct {
	words map[uint32]word // by slot
	slots map[rpcpacket.Slot]slotCell
	// below are calls of which the number below theirs is closed if they cannot be open: a copy opens them.
	below map[rpcpacket.Slot]bool
	// unclear are the regions that are frozen: nodes say of them what cannot all be, or they may be a node's that is silent.
	unclear []dsmpacket.RegionID
}

func newBuilding() *building {
	return &building{words: map[uint32]word{}, slots: map[rpcpacket.Slot]slotCell{}, below: map[rpcpacket.Slot]bool{}}
}

// buildSaved is what a backup has. All nodes have ended, and nothing of what is in it was settled while it was read. A call counts that
// was there before the words were read; of a one-way, one that was there after them, if its regions had changed hands by then.
func (p *population) buildSaved(i *image) *building {
	b := newBuilding()
	for _, w := range i.words {
		if w.owner != frozen && p.rowOf(w.owner) == nil {
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
	owners := slices.Compact(slices.Sorted(slices.Values(k.owners)))
	if len(owners) > 1 { // who has given it away may not know yet that it is out of its hands
		owners = slices.DeleteFunc(owners, func(row uint16) bool { _, given := k.given[row]; return given })
	}
	switch {
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
func (p *population) buildFrom(r *rebuild, standing *leases) *building {
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
	for _, n := range p.withRights() {
		a := r.accountOf(n)
		if a == nil {
			silent[n.row] = r.silent[n.address]
			calls = append(calls, r.claimImage(n, of)...)
			continue
		}
		known[n.row] = map[taken]*control.TakenCall{}
		for i := range a.Taken {
			t := &a.Taken[i]
			known[n.row][taken{caller: p.rowOfAddr(t.Caller), Attempt: t.Attempt}] = t
			known[n.row][taken{caller: p.rowOfAddr(t.Caller), id: t.Call}] = t
		}
		for _, id := range idsOf(a.Regions) {
			of(id).owners = append(of(id).owners, n.row)
		}
		for _, g := range a.Given {
			of(g.Region.ID()).given[n.row] = p.rowOfAddr(g.To)
		}
		for _, l := range a.Last {
			if at := b.slots[l.Slot]; p.blocks.owner(l.Slot) == n.address && l.Number.Incarnation() == n.incarnation && l.Number > at.number {
				b.slots[l.Slot] = slotCell{slot: l.Slot, number: l.Number, state: slotClosed, caller: n.row, length: 1}
			}
		}
		for i := range a.Calls {
			if k := p.callOf(n, &a.Calls[i]); k != nil {
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
	standing.build(b, of)
	for id, k := range all {
		owner := k.owner(func(row uint16) bool { return silent[row] })
		if w := b.words[id.Slot()]; w.region < id {
			b.words[id.Slot()] = word{region: id, owner: owner}
		}
		if owner == frozen {
			b.unclear = append(b.unclear, id)
		}
	}
	for id := range r.live { // perhaps of a node that is silent
		if w := b.words[id.Slot()]; w.region < id || w.region == id && w.owner == 0 {
			b.words[id.Slot()] = word{region: id, owner: frozen}
			b.unclear = append(b.unclear, id)
		}
	}
	slices.Sort(b.unclear)
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
			k.known = p.rows.of[first.callee].IsValid()
		}
		b.put(k)
	}
	b.finish()
	return b
}

// claimImage takes what the row of a node had that has ended, and returns the calls of it that were open.
func (r *rebuild) claimImage(n *node, of func(dsmpacket.RegionID) *claims) (calls []openCall) {
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
func (p *population) callOf(n *node, o *control.OpenCall) *openCall {
	length := max(o.Slots, 1, len(o.Lists))
	last := o.Slot + rpcpacket.Slot(length) - 1 //nolint:gosec // checked below
	if length > rpcpacket.MaxLists || last.Block() != o.Slot.Block() || p.blocks.owner(o.Slot) != n.address || o.Number.Incarnation() != n.incarnation {
		return nil
	}
	k := &openCall{present: true, id: o.Call}
	var all []dsmpacket.RegionID
	for i := range length {
		cell := slotCell{
			slot: o.Slot + rpcpacket.Slot(i), number: o.Number, state: slotOpen, caller: n.row, callee: p.rowOfAddr(o.Callee), //nolint:gosec // at most four
			place: uint8(i), length: uint8(length), given: o.Oneway, //nolint:gosec // at most four
		}
		if i < len(o.Lists) {
			l := &o.Lists[i]
			if cell.regions = idsOf(l.Regions); len(cell.regions) > rpcpacket.ListRegions {
				return nil
			}
			cell.parent, cell.lender = l.By.Slot, l.By.Number
		}
		all = append(all, cell.regions...)
		k.slotCells = append(k.slotCells, cell)
	}
	if slices.Sort(all); len(slices.Compact(all)) < len(all) {
		return nil // the switch would have refused it
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
