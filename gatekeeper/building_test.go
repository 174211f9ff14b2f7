package gatekeeper

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// accountant makes accounts of bytes: few regions, slots and numbers, so that accounts speak of the same ones.
type accountant struct {
	in    *bytes.Reader
	nodes []*node
}

func (a *accountant) below(n int) int {
	b, err := a.in.ReadByte()
	if err != nil {
		return 0
	}
	return int(b) % n
}

func (a *accountant) node() *node { return a.nodes[a.below(len(a.nodes))] }

func (a *accountant) address() netip.Addr {
	if a.below(8) == 7 {
		return rackaddr.Node(77) // nobody's
	}
	return a.node().address
}

func (a *accountant) region() rpcpacket.Region {
	p := dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, dsmpacket.IDOf(uint32(64+a.below(4)), uint32(1+a.below(2)))) //nolint:gosec // few
	if a.below(16) == 15 {
		return rpcpacket.Region(a.below(256)) << 48 // none
	}
	return rpcpacket.RegionOf(p)
}

func (a *accountant) regions(most int) (all []rpcpacket.Region) {
	for range a.below(most + 1) {
		all = append(all, a.region())
	}
	return all
}

// attempt is one of a node's, mostly.
func (a *accountant) attempt(n *node) control.Attempt {
	if a.below(8) == 7 {
		n = a.node()
	}
	at := control.Attempt{
		Slot:   rpcpacket.Slot(n.blocks[0]*rpcpacket.BlockSlots + uint32(a.below(4))), //nolint:gosec // few
		Number: rpcpacket.NumberOf(n.incarnation, 2*uint64(1+a.below(3))),             //nolint:gosec // few
	}
	switch a.below(16) {
	case 13:
		at.Slot |= 1 << (20 + a.below(12))
	case 14:
		at.Number = rpcpacket.NumberOf(n.incarnation+1, 2)
	case 15:
		at.Slot += rpcpacket.BlockSlots - 1
	}
	return at
}

func (a *accountant) call() string { return string(rune('a' + a.below(4))) }

func (a *accountant) account(n *node) (c control.Account) {
	c.Regions = a.regions(3)
	for range a.below(3) {
		c.Given = append(c.Given, control.GivenRegion{Region: a.region(), To: a.address()})
	}
	for range a.below(5) {
		o := control.OpenCall{Attempt: a.attempt(n), Call: a.call(), Callee: a.address(), Slots: a.below(3), Oneway: a.below(4) == 3}
		for range a.below(3) {
			l := control.CallList{Regions: a.regions(2 + 4*(a.below(8)/7))}
			if a.below(2) == 1 {
				l.By = a.attempt(a.node())
			}
			o.Lists = append(o.Lists, l)
		}
		c.Calls = append(c.Calls, o)
	}
	for range a.below(3) {
		c.Last = append(c.Last, a.attempt(n))
	}
	for range a.below(3) {
		c.Taken = append(c.Taken, control.TakenCall{Attempt: a.attempt(a.node()), Call: a.call(), Caller: a.address(), Regions: a.regions(3), Over: a.below(4) == 0})
	}
	return c
}

// heard has callees know most of the calls to them.
func (a *accountant) heard(r *rebuild) {
	for _, n := range a.nodes {
		if r.accounts[n.address] == nil {
			continue
		}
		for _, o := range r.accounts[n.address].Calls {
			callee := r.accounts[o.Callee]
			if callee == nil || a.below(8) == 7 {
				continue
			}
			t := control.TakenCall{Attempt: o.Attempt, Call: o.Call, Caller: n.address, Over: a.below(8) == 7}
			for _, l := range o.Lists {
				t.Regions = append(t.Regions, l.Regions...)
			}
			callee.Taken = append(callee.Taken, t)
		}
	}
}

// TestBuildFrom: which slots are open in registers that are rebuilt, and with which numbers those are closed that are not.
func TestBuildFrom(t *testing.T) {
	s := newSolo(t)
	s.ask(t, 1, control.KindJoin, control.Join{Blade: "c1", Name: "third", Token: 9})
	all := s.withRights()
	a, b, c := all[0], all[1], all[2]
	at := func(n *node, place uint32, count uint64) control.Attempt {
		return control.Attempt{Slot: rpcpacket.Slot(n.blocks[0]*rpcpacket.BlockSlots + place), Number: rpcpacket.NumberOf(n.incarnation, count)}
	}
	call := func(of control.Attempt, to *node, id string, lists ...control.CallList) control.OpenCall {
		return control.OpenCall{Attempt: of, Call: id, Callee: to.address, Slots: 1, Lists: lists}
	}
	taken := func(of control.Attempt, from *node) control.TakenCall {
		return control.TakenCall{Attempt: of, Call: "?", Caller: from.address}
	}
	former := func(n *node, place uint32, to *node) slotCell {
		return slotCell{slot: at(n, place, 0).Slot, number: rpcpacket.NumberOf(n.incarnation-1, 8), state: slotOpen, length: 1, caller: n.row, callee: to.row}
	}
	known, unknown := former(a, 8, b), former(a, 9, b)
	region := func(slot uint32) rpcpacket.Region {
		return rpcpacket.RegionOf(dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, dsmpacket.IDOf(slot, 1)))
	}
	half, other := former(a, 12, b), former(a, 13, b) // a one-way of which the receiver has got the first list only
	half.length, half.given, half.regions = 2, true, []dsmpacket.RegionID{region(64).ID()}
	other.length, other.given, other.place, other.regions = 2, true, 1, []dsmpacket.RegionID{region(65).ID()}
	a.image = &image{slots: []slotCell{known, unknown, half, other}}
	asked := func(k slotCell) control.Attempt { return control.Attempt{Slot: k.slot, Number: k.number} }
	lends, lost := at(a, 2, 2), at(a, 3, 2)
	letter, two := call(at(a, 7, 2), b, "one-way"), call(at(a, 10, 2), b, "two slots")
	letter.Oneway, two.Slots = true, 2
	lostLetter := call(at(a, 14, 2), b, "one-way that has not come", control.CallList{Regions: []rpcpacket.Region{region(66)}})
	lostLetter.Oneway = true
	five := call(at(a, 15, 2), b, "five regions in a slot", control.CallList{Regions: []rpcpacket.Region{region(67), region(68), region(69), region(70), region(71)}})
	halfTaken := taken(asked(half), a)
	halfTaken.Regions = []rpcpacket.Region{region(64)}
	r := &rebuild{up: map[*node]bool{a: true, b: true, c: true}, silent: map[netip.Addr]bool{c.address: true}, live: map[dsmpacket.RegionID]uint8{}, accounts: map[netip.Addr]*nodeAccount{
		a.address: {incarnation: a.incarnation, whole: true, Account: control.Account{
			Calls: []control.OpenCall{
				call(at(a, 0, 4), b, "later"), call(at(a, 0, 2), b, "earlier"), call(at(a, 1, 2), c, "to who is silent"), call(lends, b, "lends"), call(lost, b, "not come"),
				letter, call(at(a, 10, 4), b, "in one of two slots"), two, lostLetter, five,
			},
			Last:  []control.Attempt{at(a, 5, 6), {Slot: at(b, 5, 0).Slot, Number: rpcpacket.NumberOf(a.incarnation, 6)}, {Slot: at(a, 6, 0).Slot, Number: rpcpacket.NumberOf(a.incarnation+1, 2)}},
			Asked: []control.Attempt{asked(known), asked(unknown), asked(half)},
		}},
		b.address: {incarnation: b.incarnation, whole: true, Account: control.Account{
			Calls: []control.OpenCall{
				call(at(b, 0, 2), c, "lends on", control.CallList{By: lends}), call(at(b, 1, 2), c, "lends on what has not come", control.CallList{By: lost}),
				call(at(b, 2, 2), c, "lends on by another number", control.CallList{By: control.Attempt{Slot: lends.Slot, Number: lends.Number + 2}}),
				call(at(b, 3, 2), c, "lends on by a former incarnation's", control.CallList{By: asked(unknown)}), call(at(b, 4, 2), c, "lends on by a one-way", control.CallList{By: letter.Attempt}),
			},
			Taken:   []control.TakenCall{taken(at(a, 0, 2), a), taken(at(a, 0, 4), a), taken(lends, a), taken(asked(known), a), taken(letter.Attempt, a), taken(two.Attempt, a), taken(at(a, 10, 4), a), halfTaken, taken(five.Attempt, a)},
			Regions: []rpcpacket.Region{region(64)},
		}},
	}}
	got := s.buildFrom(r, &s.leases)
	for what, want := range map[string]struct {
		at    control.Attempt
		state slotState
	}{
		"the later of two calls in a slot":                   {at(a, 0, 4), slotOpen},
		"a call to who is silent":                            {at(a, 1, 2), slotOpen},
		"a call that lends":                                  {lends, slotOpen},
		"a call that has not come":                           {at(a, 3, 1), slotClosed},
		"a slot that was used":                               {at(a, 5, 6), slotClosed},
		"a former incarnation's, which its callee knows":     {asked(known), slotOpen},
		"a former incarnation's, which its callee knows not": {asked(unknown), slotClosed},
		"a call that lends on":                               {at(b, 0, 2), slotOpen},
		"a call that lends on by one that has not come":      {at(b, 1, 1), slotClosed},
		"a call that lends on by another use of a slot":      {at(b, 2, 1), slotClosed},
		"a call that lends on by one that is closed":         {at(b, 3, 1), slotClosed},
		"a call that lends on by a one-way":                  {at(b, 4, 1), slotClosed},
		"a call in one of another's two slots":               {at(a, 10, 4), slotOpen},
		"the other one of the two slots":                     {at(a, 11, 1), slotClosed},
		"a one-way whose receiver has half of it":            {asked(half), slotClosed},
		"the other half":                                     {asked(other), slotClosed},
		"a call with five regions in a slot":                 {control.Attempt{Slot: five.Slot}, 0},
		"a slot of another, who has not used it":             {control.Attempt{Slot: at(b, 5, 0).Slot}, 0},
		"a number of an incarnation to come":                 {control.Attempt{Slot: at(a, 6, 0).Slot}, 0},
	} {
		if k := got.slots[want.at.Slot]; k.number != want.at.Number || k.state != want.state {
			t.Errorf("%s: %v, want number %s, state %d", what, k, want.at.Number, want.state)
		}
	}
	if w := got.words[66]; w.region != region(66).ID() || w.owner != a.row {
		t.Errorf("what a one-way was to hand over that has not come is row %d's, want %d", w.owner, a.row)
	}
}

// FuzzAccounts: whatever nodes say when the registers are lost, the registers that are made of it contradict themselves nowhere, and give no
// node what only others claim.
func FuzzAccounts(f *testing.F) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		b := make([]byte, 300)
		for i := range b {
			b[i] = byte(r.Uint32()) //nolint:gosec // any
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s := newSolo(t)
		s.ask(t, 1, control.KindJoin, control.Join{Blade: "c1", Name: "third", Token: 9})
		a := &accountant{in: bytes.NewReader(b), nodes: s.withRights()}
		if len(a.nodes) != 3 {
			t.Fatalf("%d nodes have rights", len(a.nodes))
		}
		r := &rebuild{up: map[*node]bool{}, accounts: map[netip.Addr]*nodeAccount{}, silent: map[netip.Addr]bool{}, live: map[dsmpacket.RegionID]uint8{}}
		for _, n := range a.nodes {
			r.up[n] = true
			if a.below(6) == 5 {
				r.silent[n.address] = true
				r.live[a.region().ID()] = 1
				continue
			}
			r.accounts[n.address] = &nodeAccount{Account: a.account(n), incarnation: n.incarnation, whole: true}
		}
		a.heard(r)
		checkBuilding(t, s.controller, r, s.buildFrom(r, &s.leases))
	})
}

// checkBuilding holds registers against what always holds in a switch, and against the accounts.
func checkBuilding(t *testing.T, c *controller, r *rebuild, b *building) {
	t.Helper()
	lent, children := map[uint32]uint32{}, map[rpcpacket.Slot]uint8{}
	for at, k := range b.slots {
		if k.slot != at {
			t.Errorf("slot %d has %s", at, k)
		}
		if written := slotOf(uint32(at), k.appendTo(nil)); !reflect.DeepEqual(written, k) {
			t.Errorf("%+v is written as %+v", k, written)
		}
		if k.state != slotOpen {
			continue
		}
		n := c.rowOf(k.caller)
		switch {
		case n == nil || c.blocks.owner(at) != n.address || k.number.Incarnation() != n.incarnation:
			t.Errorf("%s is not its caller's", k)
		case c.rowOf(k.callee) == nil:
			t.Errorf("%s has no callee", k)
		case int(k.place) >= int(k.length) || k.length > rpcpacket.MaxLists || len(k.regions) > rpcpacket.ListRegions:
			t.Errorf("%s is slot %d of %d, with %d regions", k, k.place, k.length, len(k.regions))
		}
		var all []dsmpacket.RegionID
		for i := range k.length {
			o := b.slots[at-rpcpacket.Slot(k.place)+rpcpacket.Slot(i)]
			if o.state != slotOpen || o.number != k.number || o.callee != k.callee || o.place != i {
				t.Errorf("%s is open, and not %s", k, o)
			}
			all = append(all, o.regions...)
		}
		if slices.Sort(all); len(slices.Compact(slices.Clone(all))) != len(all) {
			t.Errorf("%s: the call lists a region twice: %v", k, all)
		}
		p := b.slots[k.parent]
		if k.lender != 0 {
			children[k.parent]++
			if p.state != slotOpen || p.given || p.number != k.lender || p.callee != k.caller {
				t.Errorf("%s lends on from %s", k, p)
			}
		}
		for _, id := range k.regions {
			w := b.words[id.Slot()]
			switch {
			case w.region != id:
				t.Errorf("%s lists %v, and the word has %v", k, id, w.region)
			case k.given && w.owner == k.caller:
				t.Errorf("%s has given %v away, which its caller owns", k, id)
			case !k.given && w.owner != k.caller && (k.lender == 0 || !slices.Contains(p.regions, id)):
				t.Errorf("%s lends %v, which row %d owns", k, id, w.owner)
			}
			if !k.given {
				lent[id.Slot()]++
			}
		}
	}
	checkLast(t, c, r, b)
	for id := range r.live {
		if w := b.words[id.Slot()]; w.region < id || w.region == id && w.owner == 0 {
			t.Errorf("memory has %v, which may be a silent node's, and the word is %+v", id, w)
		}
	}
	for at, k := range b.slots {
		if k.children != children[at] {
			t.Errorf("%s has %d children, counted are %d", k, children[at], k.children)
		}
	}
	for slot, w := range b.words {
		if w.region.Slot() != slot || wordOf(slot, w.value()) != w {
			t.Errorf("word %d is %+v, written as %+v", slot, w, wordOf(slot, w.value()))
		}
		if w.lent != lent[slot] {
			t.Errorf("%v is lent by %d slots, counted are %d", w.region, lent[slot], w.lent)
		}
		checkOwner(t, c, r, w)
	}
}

// checkLast: a slot that a node has used is not as if it had not been: late copies do not open it again. What the node says of calls in it may be newer.
func checkLast(t *testing.T, c *controller, r *rebuild, b *building) {
	t.Helper()
	for _, n := range c.withRights() {
		a := r.accountOf(n)
		if a == nil {
			continue
		}
		for _, l := range a.Last {
			covers := func(o control.OpenCall) bool {
				return o.Slot <= l.Slot && int(l.Slot-o.Slot) < max(o.Slots, 1, len(o.Lists)) && o.Number == l.Number
			}
			if c.blocks.owner(l.Slot) != n.address || l.Number.Incarnation() != n.incarnation || slices.ContainsFunc(a.Calls, covers) {
				continue
			}
			if k := b.slots[l.Slot]; k.number < l.Number {
				t.Errorf("slot %d was used with %s, and has %s", l.Slot, l.Number, k.number)
			}
		}
	}
}

// checkOwner: who owns a region has claimed it, and nobody else does who has not given it away.
func checkOwner(t *testing.T, c *controller, r *rebuild, w word) {
	t.Helper()
	if w.owner == 0 || w.owner == frozen {
		return
	}
	claimed := false
	for _, n := range c.withRights() {
		a := r.accountOf(n)
		if a == nil {
			continue
		}
		owns := slices.Contains(idsOf(a.Regions), w.region)
		gives := slices.ContainsFunc(a.Given, func(g control.GivenRegion) bool { return g.Region.Valid() && g.Region.ID() == w.region })
		for _, o := range a.Calls {
			for _, l := range o.Lists {
				gives = gives || o.Oneway && slices.Contains(idsOf(l.Regions), w.region)
			}
		}
		claimed = claimed || n.row == w.owner && (owns || gives)
		if n.row != w.owner && owns && !gives {
			t.Errorf("row %d owns %v, and row %d claims it", w.owner, w.region, n.row)
		}
	}
	if !claimed {
		t.Errorf("row %d owns %v, which it does not claim", w.owner, w.region)
	}
}
