package crash

import (
	"math/rand/v2"
	"slices"
)

// Simplify takes distributed memory and states out of three of four programs: half of the services that have a state keep it.
// In half of those without a state, executions still allocate and free memory themselves; if lends is set, in all of
// them, and executions pass the memory on to the calls that they make, and hand it over by one-ways. Two of three durable mains
// become plain clients. Programs whose regions Widen has enlarged stay as they are.
func (p *Program) Simplify(seed uint64, lends bool) {
	g := &generator{r: rand.New(rand.NewPCG(seed, 0x57a1)), p: p}
	if g.chance(1, 4) || p.largest() > mostGenerated {
		return
	}
	own := make([]bool, len(p.Services))
	for i := range p.Services {
		if s := &p.Services[i]; g.chance(1, 2) {
			s.Stateful, s.Deltas = false, false
		}
		own[i] = (g.chance(1, 2) || lends) && !p.Services[i].Stateful
	}
	for i := range p.Clients {
		c := &p.Clients[i]
		c.Main = c.Main && g.chance(1, 3)
		s := simplifier{Program: p, own: own, main: c.Main, service: -1, surely: true, lends: lends}
		s.simplify(&c.Script)
	}
}

// simplifier changes the script of a service, -1 for a client's.
type simplifier struct {
	*Program
	own     []bool // services whose executions have memory of their own
	main    bool   // a durable main's
	service int
	surely  bool // not of a call that may be given up
	trunk   bool // of an execution, and not of a branch
	lends   bool // regions are passed on
	lent    int  // how many this script is lent: its first slots
	given   bool // these are its own: it is a one-way's
}

// simplify drops what a script does with memory. A service that has a state counts in the region that it keeps
// instead, but not in branches, nor in calls that may be given up. In a service that has memory of its own,
// what the script has allocated itself stays.
func (w simplifier) simplify(s *Script) {
	state := w.service >= 0 && w.Services[w.service].Stateful
	has := map[int]bool{} // slots: true if it is the script's own
	for slot := range w.lent {
		has[slot] = w.given
	}
	for i := range s.Ops {
		switch op := &s.Ops[i]; op.Kind {
		case Alloc, Write, Read, Free:
			if state && w.surely && w.trunk && (op.Slot >= w.lent || op.Kind != Read && !w.given) {
				*op = Op{Kind: Bump, N: op.N}
			}
		}
	}
	var left []Op
	for _, op := range s.Ops {
		if w.keeps(&op, has, state) {
			left = append(left, op)
		}
	}
	for slot := range w.lent {
		if w.given && has[slot] { // it was to be passed on beside one that is dropped; a state would keep it
			left = append(left, Op{Kind: Free, Slot: slot})
		}
	}
	s.Ops = left
	if !w.lends || !has[s.Result] {
		s.Result = -1
	}
	if len(has) == 0 && !slices.ContainsFunc(left, func(op Op) bool { return op.Kind == Alloc || op.Kind == Call && op.Slot >= 0 }) {
		s.Slots = 0
	}
}

// keeps reports whether a script keeps an operation, which it may change. It has these regions before,
// and then those after it.
func (w simplifier) keeps(op *Op, has map[int]bool, state bool) bool {
	switch op.Kind {
	case Alloc:
		if w.service >= 0 && w.own[w.service] || w.service < 0 && w.lends && !w.main {
			has[op.Slot] = true
		}
		return has[op.Slot]
	case Write:
		return has[op.Slot]
	case Free:
		if !has[op.Slot] {
			return false
		}
		delete(has, op.Slot)
	case Read:
		_, readable := has[op.Slot]
		return readable
	case Add, Bump:
		return state
	case Checkpoint:
		return w.main
	case Post:
		if !w.Services[op.Service].Stateful {
			return false
		}
	}
	if !w.lends || slices.ContainsFunc(op.Lend, func(slot int) bool { own, ok := has[slot]; return !ok || op.Kind == Post && !own }) {
		op.Lend = nil
	}
	in := w
	if in.given = op.Kind == Post; in.given {
		for _, slot := range op.Lend {
			delete(has, slot)
		}
	}
	in.surely, in.trunk, in.lent = w.surely && op.Kind != Try, op.executes(), len(op.Lend)
	if in.trunk {
		in.main, in.service = false, op.Service
	}
	for j := range op.Body {
		in.simplify(&op.Body[j])
	}
	switch {
	case op.Kind == Call && op.Slot >= 0 && op.Body[0].Result >= 0 && (w.service < 0 && (w.lends || !w.main) || w.service >= 0 && w.own[w.service]):
		has[op.Slot] = true
	case in.trunk:
		op.Slot = -1
		for j := range op.Body {
			op.Body[j].Result = -1
		}
	}
	return true
}
