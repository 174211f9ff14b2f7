package recovery

import (
	"slices"
	"time"
)

// View is one recovery as it is now.
type View struct {
	Failure
	Phase Phase
	Since time.Time
	// Waits says for what it waits.
	Waits Waits
}

// Waits is what a recovery waits for.
type Waits struct {
	Switch   bool     // to remove its identity
	Servers  []Server // to confirm the fence
	Rollback bool     // of what it executed
	Spare    bool     // a blade, or the program to join there
}

// Recoveries returns those under way, ordered by address.
func (m *Machine) Recoveries() (views []View) {
	for _, r := range m.sorted() {
		v := View{Failure: r.Failure, Phase: r.phase, Since: r.since}
		if r.phase == Fencing {
			v.Waits.Switch = !r.cut
			for s := range r.unacked {
				v.Waits.Servers = append(v.Waits.Servers, s)
			}
			slices.Sort(v.Waits.Servers)
		} else {
			v.Waits.Rollback, v.Waits.Spare = !r.whole, !r.joined && !r.Gone
		}
		views = append(views, v)
	}
	return views
}
