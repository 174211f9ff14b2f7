package rights

import (
	"fmt"
	"slices"
)

// Section 8: the switch's machine comes back empty, and accounts rebuild its registers.

func (w *world) loseSwitch() {
	w.log("--- the switch is empty")
	w.sw.Lose()
}

// silentNow reports whether a node gives no account.
func (w *world) silentNow(n *node) bool { return w.silent && !n.up }

// claim is what a node says of a region: it is its own, or it has given it away.
type claim struct {
	n  *node
	to int // the address that got it, as far as the giver knows; 0: it is its own
}

// claims are those of all nodes that give an account.
func (w *world) claims() map[Region][]claim {
	all := map[Region][]claim{}
	for _, a := range sorted(w.nodes) {
		n := w.nodes[a]
		if w.isSwept(n) || w.silentNow(n) {
			continue
		}
		add := func(g Region, to int) { all[g] = append(all[g], claim{n, to}) }
		for _, id := range sorted(n.runs) {
			e := n.runs[id]
			for _, g := range sortedRegions(e.own) {
				add(g, 0)
			}
			if e.dirty {
				for _, at := range sorted(e.allocs) {
					add(e.allocs[at], 0)
				}
			}
		}
		for _, id := range sorted(n.requests) {
			if q := n.requests[id]; q.m.Kind == Alloc || q.m.Kind == Free && (q.r == nil || !q.r.swept) {
				add(q.m.Region, 0)
			}
		}
		for _, id := range sorted(n.ledger) {
			n.ledger[id].claims(n.runs[id] != nil, add)
		}
	}
	for _, id := range sorted(w.gk.leases) { // what is lent by a standing lease has not changed hands
		if l := w.gk.leases[id]; l.state == granted || l.state == ending {
			all[l.region] = append(all[l.region], claim{w.nodes[l.owner], 0})
		}
	}
	return all
}

// claims are those of one record.
func (r *record) claims(runs bool, add func(Region, int)) {
	if !r.swept { // else the frees are tries
		for _, g := range sortedRegions(r.frees) {
			add(g, 0)
		}
	}
	switch {
	case r.done && !r.swept:
		for _, a := range r.result {
			add(a.Region, r.caller)
		}
	case !r.done:
		for _, at := range sorted(r.allocs) {
			add(r.allocs[at], 0)
		}
		for _, c := range r.all() { // what it has lent as its own
			for _, a := range c.sent {
				if a.by == (Ref{}) && !a.handle && !c.oneway {
					add(a.Region, 0)
				}
			}
		}
		if r.program.oneway && !runs {
			for _, a := range r.args {
				add(a.Region, 0)
			}
		}
	}
	for _, c := range r.oneways {
		if !c.over {
			for _, a := range c.sent {
				add(a.Region, c.to)
			}
		}
	}
}

// rebuilding is what the registers are to become.
type rebuilding struct {
	*world
	words map[uint32]Word
	slots map[uint32]Slot
}

// rebuild fills empty registers.
func (w *world) rebuild() {
	for _, m := range slices.Clone(w.flight) { // a second later: what had passed has arrived, or is lost
		if !m.passed {
			continue
		}
		i := slices.Index(w.flight, m)
		if i < 0 {
			continue
		}
		w.deliver(i, w.rnd.Intn(2) == 0, false)
	}
	w.log("--- the switch is rebuilt")
	for _, e := range w.gk.ends { // what was read is read again, and what was failed and asked about is so again
		e.words, e.told, e.come, e.named, e.listed, e.seized = nil, nil, nil, nil, false, Region{}
		e.part = 0
		if e.n.gone {
			e.step = failing
		} else {
			e.step = fencing
		}
	}
	r := rebuilding{w, map[uint32]Word{}, map[uint32]Slot{}}
	r.ownWords()
	r.lastUses()
	for _, a := range sorted(w.nodes) {
		if n := w.nodes[a]; !w.isSwept(n) && !w.silentNow(n) {
			r.callsOf(n)
		}
	}
	r.standing()
	r.closeOrphans()
	r.count()
	for _, i := range sorted(r.words) {
		w.do(Operation{Op: SetWord, First: i, Word: r.words[i]})
	}
	for _, k := range sorted(r.slots) {
		w.do(Operation{Op: SetSlot, First: k, Slot: r.slots[k]})
	}
	for _, a := range sorted(w.nodes) { // who is down is fenced, whether the Gatekeeper has come to it or not
		if !w.nodes[a].up {
			delete(w.sw.Identities, Source{uint16(a), at(a)})
		}
	}
	w.sw.Rebuilding = false
	if err := w.sw.Check(); err != nil {
		w.fail("INVARIANT after a rebuilding: %v", err)
	}
}

// ownWords gives each live region an owner. Generations are the memory servers' last ones.
func (r *rebuilding) ownWords() {
	for _, c := range r.memory {
		for slot, s := range c.regions {
			if o := r.words[slot]; s.generation > o.Generation {
				r.words[slot] = Word{Generation: s.generation}
			}
		}
	}
	claims := r.claims()
	for _, slot := range sorted(r.words) {
		o := r.words[slot]
		g := Region{slot, o.Generation}
		if g.Generation == 0 || !r.liveAt(g) {
			continue
		}
		switch n := r.ownerOf(claims[g]); {
		case n != nil:
			o.Owner = n.row
		case r.silent && r.someDown():
			o.Owner = Frozen
		default: // the audit frees it
			o.Owner = Nobody
		}
		r.words[slot] = o
	}
}

func (w *world) someDown() bool {
	for _, n := range w.nodes {
		if !n.up && !n.gone {
			return true
		}
	}
	return false
}

// ownerOf decides between claims: who says that it is its own, or else the end of the chain of those who have given it away.
func (r *rebuilding) ownerOf(claims []claim) (owner *node) {
	given := map[int]int{}
	for _, c := range claims {
		if c.to == 0 {
			owner = c.n
		}
		given[c.n.addr] = c.to
	}
	if owner != nil {
		return owner
	}
	for _, c := range claims {
		if _, further := given[c.to]; !further {
			owner = c.n
		}
	}
	for _, c := range claims { // who might have it cannot say
		if to := r.nodes[c.to]; r.silent && to != nil && !to.up {
			owner = nil
		}
	}
	return owner
}

// lastUses closes each slot that a present incarnation has used, with its last number.
func (r *rebuilding) lastUses() {
	for _, a := range sorted(r.nodes) {
		n := r.nodes[a]
		if !r.has(lastNumbers) || r.isSwept(n) || !n.up {
			continue
		}
		for _, k := range sorted(n.last) {
			ref := n.last[k]
			if ref.Number.Incarnation() != n.inc || ref.Number <= r.slots[k].Number {
				continue
			}
			s := Slot{Number: ref.Number, State: Closed, Caller: n.row, Place: uint8(k - ref.Slot), Slots: 1}
			for i := k + 1; n.last[i] == ref; i++ {
				s.Slots++
			}
			s.Slots += s.Place
			if c := r.nodes[n.lastTo[k]]; c != nil {
				s.Callee = c.row
			}
			r.slots[k] = s
		}
	}
}

// callsOf sets the slots of a node's calls that are not known to be closed, lower numbers first.
func (r *rebuilding) callsOf(n *node) {
	todo := map[Ref]func(){}
	for _, id := range sorted(n.ledger) {
		l := n.ledger[id]
		for _, c := range l.all() {
			if len(c.refs) == 0 || c.over && (l.done || n.up) {
				continue
			}
			ref, is := n.openAs(c)
			if !n.up {
				ref = c.refs[len(c.refs)-1]
			} else if !is || ref.Number.Incarnation() == n.inc {
				continue
			}
			todo[ref] = func() {
				r.set(n, ref, c.slots, c.to, c.id, c.oneway, c.sent)
				if s := r.slots[ref.Slot]; n.up && s.State == Open && s.Number == ref.Number { // it asks at once
					n.asks[ref] = &question{to: c.to, id: c.id, ref: ref}
					n.held[ref] = slices.Clone(s.Regions[:s.Count])
				}
			}
		}
	}
	for _, ref := range sortedRefs(n.asks) {
		var sent []arg
		first := n.told[ref.Slot]
		for i := range uint32(first.Slots) {
			s := n.told[ref.Slot+i]
			for x, g := range s.Regions[:s.Count] {
				a := arg{Region: g, block: int(i)}
				if x == 0 {
					a.by = s.Parent
				}
				sent = append(sent, a)
			}
		}
		q := n.asks[ref]
		todo[ref] = func() { r.set(n, ref, int(first.Slots), q.to, r.idOf(n, ref), first.Given, sent) }
	}
	for _, o := range n.outs() {
		todo[o.m.Ref] = func() { r.set(n, o.m.Ref, o.slots, o.to, o.id, o.oneway, o.sent) }
	}
	for _, ref := range sortedRefs(todo) {
		todo[ref]()
	}
}

// set sets the slots of a call to what its caller says. They are open if its callee knows the call.
func (r *rebuilding) set(n *node, ref Ref, slots, to int, id string, oneway bool, sent []arg) {
	slots = max(1, slots)
	for i := range uint32(slots) { // a slot that was used again: its former call was answered
		s := r.slots[ref.Slot+i]
		if ref.Number < s.Number {
			return
		}
		if s.State == Open && s.Number < ref.Number {
			r.closeCall(ref.Slot+i, s)
		}
	}
	c := r.nodes[to]
	known := c != nil && !r.isSwept(c) && (r.knows(c, id) || r.silentNow(c))
	for i := range uint32(slots) {
		s := Slot{Number: ref.Number, State: Closed, Caller: n.row, Place: uint8(i), Slots: uint8(slots)}
		if c != nil {
			s.Callee = c.row
		}
		switch {
		case known:
			s.State, s.Given = Open, oneway
			for _, a := range sent {
				if a.block == int(i) && !a.handle {
					s.list(a.Region)
					if a.by != (Ref{}) {
						s.Parent = a.by
					}
				}
			}
		case ref.Number.Incarnation() == n.inc && n.up: // its copy opens it again
			s = Slot{Number: ref.Number - 1, State: Closed, Slots: 1}
		}
		r.slots[ref.Slot+i] = s
	}
}

// knows reports whether a callee has a call.
func (w *world) knows(c *node, id string) bool {
	return !w.silentNow(c) && (c.ledger[id] != nil || c.runs[id] != nil)
}

// closeCall closes all slots of a call that one of its slots is of.
func (r *rebuilding) closeCall(k uint32, s Slot) {
	for i := range uint32(s.Slots) {
		if o := r.slots[k-uint32(s.Place)+i]; o.Number == s.Number {
			o.State = Closed
			r.slots[k-uint32(s.Place)+i] = o
		}
	}
}

// standing opens the slots of standing leases, which are on the Gatekeeper's log.
func (r *rebuilding) standing() {
	for _, id := range sorted(r.gk.leases) {
		l := r.gk.leases[id]
		if l.state == ended || l.state == resting || l.ref == (Ref{}) {
			continue
		}
		if owner, lessee := r.nodes[l.owner], r.nodes[l.lessee]; l.state != granting && lessee != nil && r.words[l.region.Slot].Generation == l.region.Generation {
			s := Slot{Number: l.ref.Number, State: Open, Standing: true, Slots: 1, Caller: owner.row, Callee: lessee.row}
			s.list(l.region)
			r.slots[l.ref.Slot] = s
		}
	}
}

// closeOrphans closes what lends on from a slot that is not open.
func (r *rebuilding) closeOrphans() {
	for more := true; more; {
		more = false
		for _, k := range sorted(r.slots) {
			s := r.slots[k]
			if s.State != Open || s.Parent == (Ref{}) {
				continue
			}
			if p := r.slots[s.Parent.Slot]; p.State != Open || p.Number != s.Parent.Number {
				r.closeCall(k, s)
				more = true
			}
		}
	}
}

// count counts what is lent, and children.
func (r *rebuilding) count() {
	for _, k := range sorted(r.slots) {
		s := r.slots[k]
		if s.State != Open {
			continue
		}
		if p := r.slots[s.Parent.Slot]; s.Parent != (Ref{}) {
			p.Children++
			r.slots[s.Parent.Slot] = p
		}
		for _, g := range s.Regions[:s.Count] {
			if o := r.words[g.Slot]; !s.Given && o.Generation == g.Generation {
				o.Lent++
				r.words[g.Slot] = o
			}
		}
	}
}

// idOf finds the call that a former incarnation has made in a slot.
func (w *world) idOf(n *node, ref Ref) string {
	for _, id := range sorted(n.ledger) {
		for _, c := range n.ledger[id].all() {
			if slices.Contains(c.refs, ref) {
				return c.id
			}
		}
	}
	for _, a := range sorted(w.nodes) {
		if r := w.nodes[a].find(ref); r != nil && r.caller == n.addr {
			return r.id
		}
	}
	return fmt.Sprint("unknown ", ref)
}
