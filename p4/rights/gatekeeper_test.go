package rights

// The Gatekeeper: what is on its log outlives it. It does one operation at a time, and packets pass between them.

type gatekeeper struct {
	// On its log.
	leases map[string]*lease
	joins  uint32 // the last incarnation of the rack

	// Lost when it dies.
	ends    map[int]*end // nodes that have crashed
	inc     uint32       // its own numbers
	counter uint64
}

// lease is a standing lease.
type lease struct {
	owner, lessee int
	inc           uint32 // of the owner, with which it ends
	region        Region
	ref           Ref
	state         leaseState
}

type leaseState int

const (
	granting leaseState = iota
	granted
	ending
	resting // what has passed by it is to arrive
	ended
)

// end is how far the end of a node's incarnation has come. Step and what the node says of itself are on the log, once the node
// is gone for good.
type end struct {
	n    *node
	step int
	// Lost when the Gatekeeper dies.
	part   int
	back   bool // it comes back
	words  []Region
	told   map[uint32]Slot
	come   map[Region]bool
	named  []Region
	listed bool
	seized Region
}

// The steps of an end.
const (
	fencing  = iota // identity and control rule off; memory servers refuse it
	deciding        // does it come back?
	failing         // calls of which it is callee
	asking          // about calls of which it is caller
	sweeping
)

// number gives a node that joins its incarnation.
func (w *world) number(own uint32) uint32 {
	w.gk.joins++
	if w.has(rackNumbers) {
		return w.gk.joins
	}
	return own
}

// do does an operation on registers.
func (w *world) do(o Operation) Found {
	o.Election = w.sw.Election
	f := w.sw.Do(&o)
	if err := w.sw.Check(); err != nil && !w.sw.Rebuilding {
		w.fail("INVARIANT after operation %d: %v", o.Op, err)
	}
	return f
}

// restart has the Gatekeeper die: the next one knows what is on the log.
func (w *world) restart() {
	w.log("--- the Gatekeeper dies")
	w.sw.Election++
	w.gk.inc, w.gk.counter = w.number(w.gk.inc+1), 0
	for _, e := range w.gk.ends {
		step := fencing
		if e.n.gone {
			step = max(e.step, failing)
		}
		*e = end{n: e.n, step: step}
	}
}

// turn does one operation of the Gatekeeper, for one of those who wait for it.
func (w *world) turn(gone bool) {
	if w.sw.Rebuilding {
		return
	}
	if w.rnd.Intn(3) == 0 {
		w.auditNobody()
	}
	if ids := sorted(w.gk.leases); len(ids) > 0 && w.rnd.Intn(2) == 0 {
		w.lease(w.gk.leases[ids[w.rnd.Intn(len(ids))]])
	}
	if w.operator && w.rnd.Intn(12) == 0 {
		w.operate()
	}
	addrs := sorted(w.gk.ends)
	if len(addrs) == 0 {
		return
	}
	e := w.gk.ends[addrs[w.rnd.Intn(len(addrs))]]
	w.end(e, e.n.plain || gone && e.n.addr > 10 && w.rnd.Intn(3) == 0)
}

// operate has an operator end a standing lease, or fail a call of which its callee knows nothing: else a READ that has passed may arrive when the caller
// writes. One-ways stay: their regions are their receivers'.
func (w *world) operate() {
	var all []Ref
	for i, k := range w.sw.Slots() {
		if callee := w.nodes[w.addressOf(k.Callee)]; k.State == Open && k.Place == 0 && !k.Given && !k.Standing &&
			(!w.has(unknownFails) || callee != nil && callee.up && callee.find(Ref{i, k.Number}) == nil) {
			all = append(all, Ref{i, k.Number})
		}
	}
	for _, id := range sorted(w.gk.leases) {
		if l := w.gk.leases[id]; l.state == granted && w.rnd.Intn(2) == 0 {
			w.log("--- an operator ends the lease %s", id)
			l.state = ending
			return
		}
	}
	if len(all) > 0 {
		ref := all[w.rnd.Intn(len(all))]
		for i := range w.sw.call(ref.Slot) {
			w.ended[Ref{ref.Slot + i, ref.Number}] = true
		}
		f := w.do(Operation{Op: FailCall, Ref: ref})
		w.log("--- an operator fails slot %d: %d", ref.Slot, f.Outcome)
	}
}

// auditNobody frees what nobody owns, and is alive and not lent.
func (w *world) auditNobody() {
	for i, o := range w.sw.Words() {
		if g := (Region{i, o.Generation}); o.Generation > 0 && o.Owner == Nobody && o.Lent == 0 {
			w.memory[0].free(g)
			w.memory[1].free(g)
		}
	}
}

// end does one operation for a node that has crashed. gone says whether it is gone for good, if that is not decided yet.
func (w *world) end(e *end, gone bool) {
	switch e.step {
	case fencing:
		w.fence(e)
	case deciding:
		if gone && !e.back {
			w.log("--- node %d is gone for good", e.n.addr)
			e.n.gone = true
			e.step = failing
			if !w.has(forsake) {
				w.forsake(e.n)
			}
		} else {
			w.comeBack(e)
		}
	case failing:
		if w.has(goingRule) {
			w.sw.Routes[at(e.n.addr)] = Route{e.n.row, true}
		}
		for _, ref := range w.openOf(e.n.row, false) {
			if w.rnd.Intn(3) > 0 { // else another time
				f := w.do(Operation{Op: FailCall, Ref: ref})
				w.log("    fail slot %d: %d", ref.Slot, f.Outcome)
			}
		}
		e.step = asking
	case asking:
		w.askInItsName(e)
	case sweeping:
		w.sweep(e)
	}
}

func (w *world) fence(e *end) {
	n := e.n
	switch e.part {
	case 0:
		delete(w.sw.Identities, Source{uint16(n.addr), at(n.addr)})
	case 1:
		delete(w.sw.Controls, Control{n.row, 1, uint32(n.row)})
	case 2, 3:
		w.memory[e.part-2].fence[n.addr] = n.inc
	case 4:
		w.level(n)
		e.step = deciding
	}
	e.part++
}

// comeBack brings a node back: slots are read, then words, then slots again.
func (w *world) comeBack(e *end) {
	n := e.n
	e.back = true
	switch {
	case e.told == nil:
		e.told = map[uint32]Slot{}
		for i := range w.sw.Block {
			k := uint32(n.row)*w.sw.Block + i
			e.told[k] = w.sw.Slot(k)
		}
		if !w.has(reread) {
			e.come = w.coming(n)
		}
	case e.words == nil:
		e.words = w.wordsOf(n)
	case e.come == nil:
		e.come = w.coming(n)
	case !e.listed:
		e.named, e.listed = w.named(n), true
	case e.part < 6:
		n.inc = w.number(n.inc + 1)
		e.part = 6
	case e.part == 6:
		w.sw.Controls[Control{n.row, 1, uint32(n.row)}] = true
		e.part = 7
	case e.part == 7:
		w.sw.Identities[Source{uint16(n.addr), at(n.addr)}] = Identity{Node, n.row, n.inc}
		e.part = 8
	default:
		w.rejoin(n, e)
		delete(w.gk.ends, n.addr)
	}
}

// rejoin has a node's next incarnation begin with what the Gatekeeper has told it.
func (w *world) rejoin(n *node, e *end) {
	w.log("--- node %d is back, i%d", n.addr, n.inc)
	n.runtime = newRuntime()
	n.up, n.told, n.unchecked = true, e.told, true
	n.owned, n.named = without(e.words, e.come), e.named
	for _, k := range sorted(n.told) {
		if s := n.told[k]; s.State == Open && s.Place == 0 && s.Caller == n.row {
			ref := Ref{k, s.Number}
			n.asks[ref] = &question{to: w.addressOf(s.Callee), ref: ref}
			var all []Region
			for i := range uint32(s.Slots) {
				o := n.told[k+i]
				all = append(all, o.Regions[:o.Count]...)
			}
			n.held[ref] = all
		}
	}
	for _, id := range sorted(n.ledger) {
		r := n.ledger[id]
		n.unshareAll(r)
		if r.done {
			for _, at := range sorted(r.calls) {
				if c := r.calls[at]; c.givenUp && !c.over && w.has(askAll) {
					n.askAgain(r, c)
				} else if c.givenUp {
					c.over = true
				}
			}
			continue
		}
		r.oneways = nil
		for _, c := range r.calls {
			if !c.givenUp && !c.decided {
				c.over, c.code = false, ok
			}
		}
		x := n.begin(r, map[Ref]bool{})
		if !r.root {
			x.refs[r.ref] = true
		}
		x.dirty = true
		w.again[id] = n.inc
	}
	w.undone(n)
}

// addressOf is the address of the node that has a row now.
func (w *world) addressOf(r Row) int {
	for _, a := range sorted(w.nodes) {
		if n := w.nodes[a]; n.row == r && !w.isSwept(n) {
			return a
		}
	}
	return 0
}

// openOf are the first slots of open calls of which a row is caller, or callee.
func (w *world) openOf(r Row, caller bool) (all []Ref) {
	for i, k := range w.sw.Slots() {
		if k.State == Open && k.Place == 0 && (caller && k.Caller == r || !caller && k.Callee == r) {
			all = append(all, Ref{i, k.Number})
		}
	}
	return all
}

// askInItsName asks about calls of a node that is gone, until a whole reading finds none of its calls open.
func (w *world) askInItsName(e *end) {
	n := e.n
	own := w.openOf(n.row, true)
	for _, ref := range own {
		k := w.sw.Slot(ref.Slot)
		if to := w.addressOf(k.Callee); !k.Standing {
			m := &message{Packet: Packet{Kind: Ask, Ref: ref, Incarnation: n.inc + 1}, src: n.addr, dst: to, byGatekeeper: true}
			w.flight = append(w.flight, m)
		}
	}
	if len(own) > 0 || w.has(goingRule) && len(w.openOf(n.row, false)) > 0 {
		e.step = failing
		return
	}
	for _, o := range w.sw.Words() {
		if o.Owner == n.row && o.Lent > 0 { // a one-way that was given back
			return
		}
	}
	if w.has(forsake) {
		w.forsake(n)
	}
	e.step = sweeping
}

// forsake has memory take back what a node that is gone has not decided.
func (w *world) forsake(n *node) {
	for _, c := range w.memory {
		for _, id := range sorted(n.ledger) {
			c.rollback(id)
		}
	}
}

// sweep seizes a region of a node that is gone, or frees what was seized before it.
func (w *world) sweep(e *end) {
	n := e.n
	if e.seized != (Region{}) {
		w.memory[0].free(e.seized)
		w.memory[1].free(e.seized)
		e.seized = Region{}
		return
	}
	for i, o := range w.sw.Words() {
		if o.Owner != n.row || o.Generation == 0 {
			continue
		}
		g := Region{i, o.Generation}
		if w.do(Operation{Op: Seize, Regions: []Region{g}, Owner: n.row}).Outcome == Done {
			e.seized = g
		}
		return
	}
	for _, g := range w.named(n) {
		w.memory[0].free(g)
		w.memory[1].free(g)
	}
	w.log("--- row %d of node %d is free", n.row, n.addr)
	delete(w.sw.Routes, at(n.addr))
	delete(w.sw.Blocks, BlockRule{n.row, uint32(n.row)})
	delete(w.gk.ends, n.addr)
	w.freeRows = append(w.freeRows, n.row)
}

// ---- standing leases

// hears has the Gatekeeper take a request about a standing lease.
func (w *world) hears(m *message) {
	n := w.nodes[m.src]
	if n == nil || !n.up || n.inc != m.Incarnation {
		return
	}
	l := w.gk.leases[m.id]
	if l == nil {
		l = &lease{owner: m.src, inc: m.Incarnation, lessee: m.value, region: m.Region}
		w.gk.leases[m.id] = l
		if m.does == "unshare" {
			l.state = ended // and it will never be
		}
	}
	if m.does == "unshare" && l.state < ending {
		l.state = ending
	}
	does := map[leaseState]string{granted: "shared", ended: "ended"}[l.state]
	if does != "" {
		w.flight = append(w.flight, &message{Packet: Packet{Kind: Plain}, src: gatekeeperAt, dst: m.src, id: m.id, does: does, ref: l.ref, byGatekeeper: true})
	}
}

// lease does one operation for a standing lease.
func (w *world) lease(l *lease) {
	owner, lessee := w.nodes[l.owner], w.nodes[l.lessee]
	if over := w.has(leaseEnds) && (!owner.up || owner.inc != l.inc) || lessee == nil || lessee.gone; over && l.state < ending {
		l.state = ending
	}
	switch l.state {
	case granting:
		if l.ref == (Ref{}) {
			l.ref = w.leaseSlot()
			return
		}
		switch w.do(Operation{Op: Lend, Ref: l.ref, Regions: []Region{l.region}, Owner: owner.row, Lessee: lessee.row}).Outcome {
		case Done, Nothing:
			l.state = granted
		default:
			l.state = ended
		}
	case ending:
		if f := w.do(Operation{Op: FailCall, Ref: l.ref}); f.Outcome != HasChildren {
			l.state = resting
		}
	case resting:
		for _, m := range w.flight {
			if m.Kind == Read && m.Ref == l.ref && m.passed && w.has(leaseRests) {
				return
			}
		}
		l.state = ended
	case granted, ended:
	}
}

// leaseSlot takes a call slot of the Gatekeeper's own block, if one is free.
func (w *world) leaseSlot() Ref {
	taken := map[uint32]bool{}
	for _, l := range w.gk.leases {
		taken[l.ref.Slot] = taken[l.ref.Slot] || l.state != ended && l.ref != (Ref{})
	}
	for k := range w.sw.Block {
		if !taken[k] {
			w.gk.counter += 2
			return Ref{k, MakeNumber(w.gk.inc, w.gk.counter)}
		}
	}
	return Ref{}
}
