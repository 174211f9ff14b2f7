package crash

import (
	"maps"
	"slices"
)

// died reports whether a plain client was hit and has come to nothing: nobody
// starts it again.
func (r *Run) died(client int) bool {
	_, finished := r.ledger.outcome(client)
	return !finished && !r.p.Clients[client].Main && r.crash.wasHit(r.p.clientName(client))
}

// withoutTheDead is what must be when plain clients have died, and callers have given up
// calls: each of these calls and one-ways has run as a whole or not at all, and those that
// somebody has seen the end of have.
func (r *Run) withoutTheDead(want *Expectation) *Expectation {
	e := &Expectation{
		Values: want.Values, Refused: want.Refused, Tries: want.Tries, Bumps: slices.Clone(want.Bumps), Effects: maps.Clone(want.Effects), unsure: map[int]uint64{}, loose: map[int]int{},
	}
	for _, adds := range want.Adds {
		e.Adds = append(e.Adds, maps.Clone(adds))
	}
	for i := range r.p.Clients {
		r.doubt(e, &r.p.Clients[i].Script, r.died(i))
	}
	return e
}

// doubt takes from what is expected what has not happened of the calls that nobody has seen
// the end of: those of a script whose client is dead, and those that were given up.
func (r *Run) doubt(e *Expectation, s *Script, dead bool) {
	for i := range s.Ops {
		op := &s.Ops[i]
		if dead && op.Kind == Effect {
			e.Effects[op.N] = 0
		}
		inner := dead
		switch op.Kind {
		case Hurry:
			inner = false
			if !r.maybe(e, op) {
				continue
			}
		case Call, Risk, Post:
			inner = false
			if dead && !r.maybe(e, op) {
				continue
			}
		case Try:
			inner = false
		}
		for j := range op.Body {
			r.doubt(e, &op.Body[j], inner)
		}
	}
}

// maybe takes from what is expected a call that nobody has seen the end of, unless it shows
// that it has run, or an execution has given it up, which has its callee's word that it runs; then maybe reports true.
func (r *Run) maybe(e *Expectation, call *Op) bool {
	if _, ok := r.ledger.trials()[call.N]; ok || r.ledger.seen(call.N) || r.ledger.promised(call.N) && !r.wasAway() {
		return true
	}
	adds, bumps, ran := map[int][]int{}, map[int]uint64{}, false
	shows, chance := false, map[int]bool{} // whether an entry is there if the call has run; operations of calls that it may give up
	for i := range call.Body {
		call.Body[i].each(call.Service, func(service int, op *Op) {
			switch op.Kind {
			case Hurry, Try, Risk:
				op.Body[0].each(op.Service, func(_ int, in *Op) { chance[in.N] = true })
			case Add:
				adds[service] = append(adds[service], op.N)
				shows = shows || !chance[op.N]
				ran = ran || slices.ContainsFunc(r.audited[service].marks, func(m Mark) bool { return m.Op == op.N })
			case Bump:
				bumps[service]++
			case Effect:
				e.Effects[op.N] = 0
			}
		})
	}
	if ran {
		return true
	}
	for service, ops := range adds {
		for _, op := range ops {
			delete(e.Adds[service], op)
		}
	}
	for service, n := range bumps {
		e.Bumps[service] -= n
		if !shows || r.wasAway() { // nobody can tell
			e.unsure[service] += n
		}
	}
	return false
}
