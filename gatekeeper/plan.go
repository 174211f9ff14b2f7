package gatekeeper

import (
	"slices"

	"github.com/bifrost-rack/bifrost/gatekeeper/p4rtclient"
)

// phase is a set of updates that may be applied in any order: deletions only, or
// insertions and modifications only.
type phase []p4rtclient.Update

// plan is a change of the switch's tables: phases that follow each other, and
// what to do when they are done. err tells of updates that the switch refuses.
type plan struct {
	phases []phase
	then   func(err error)
	// ordered plans are carried out one after the other, in the order in which
	// they were made; the others share no entry with any plan under way.
	ordered bool

	fixes int   // how often a phase was written again in another way
	err   error // the first refusal
}

// split makes phases out of updates: deletions first.
func split(updates []p4rtclient.Update) []phase {
	var revoke, grant phase
	for _, u := range updates {
		if u.Op == p4rtclient.Delete {
			revoke = append(revoke, u)
		} else {
			grant = append(grant, u)
		}
	}
	return []phase{revoke, grant}
}

// revokes reports whether the plan's present phase deletes.
func (p *plan) revokes() bool { return p.phases[0][0].Op == p4rtclient.Delete }

// skip drops empty phases in front.
func (p *plan) skip() {
	p.phases = slices.DeleteFunc(p.phases, func(f phase) bool { return len(f) == 0 })
}
