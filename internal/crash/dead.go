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

// withoutTheDead is what must be when plain clients have died: each of their calls
// and one-ways has run as a whole or not at all, and those that they have seen the
// end of have.
func (r *Run) withoutTheDead(want *Expectation) *Expectation {
	e := &Expectation{
		Values: want.Values, Refused: want.Refused, Tries: want.Tries, Bumps: slices.Clone(want.Bumps), Effects: maps.Clone(want.Effects), unsure: map[int]uint64{}, loose: map[int]int{},
	}
	for _, adds := range want.Adds {
		e.Adds = append(e.Adds, maps.Clone(adds))
	}
	for i := range r.p.Clients {
		if r.died(i) {
			r.p.Clients[i].Script.calls(func(op *Op) { r.maybe(e, op) })
			r.p.Clients[i].Script.each(-1, func(service int, op *Op) {
				if service < 0 && op.Kind == Effect {
					e.Effects[op.N] = 0
				}
			})
		}
	}
	return e
}

// calls calls f for what the client itself calls.
func (s *Script) calls(f func(op *Op)) {
	for i := range s.Ops {
		switch op := &s.Ops[i]; op.Kind {
		case Call, Post:
			f(op)
		case Fork, Race:
			for j := range op.Body {
				op.Body[j].calls(f)
			}
		}
	}
}

// maybe takes from what is expected a call that a dead client may have made, unless
// it shows that it has run.
func (r *Run) maybe(e *Expectation, call *Op) {
	if r.ledger.seen(call.N) {
		return
	}
	adds, bumps, ran := map[int][]int{}, map[int]uint64{}, false
	for i := range call.Body {
		call.Body[i].each(call.Service, func(service int, op *Op) {
			switch op.Kind {
			case Add:
				adds[service] = append(adds[service], op.N)
				ran = ran || slices.ContainsFunc(r.audited[service].marks, func(m Mark) bool { return m.Op == op.N })
			case Bump:
				bumps[service]++
			case Effect:
				e.Effects[op.N] = 0
			}
		})
	}
	if ran {
		return
	}
	for service, ops := range adds {
		for _, op := range ops {
			delete(e.Adds[service], op)
		}
	}
	for service, n := range bumps {
		e.Bumps[service] -= n
		if len(adds) == 0 { // nobody can tell
			e.unsure[service] += n
		}
	}
}
