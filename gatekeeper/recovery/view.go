package recovery

import (
	"net/netip"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
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
	Switch  bool     // to remove its identity
	Servers []Server // to confirm the fence
	Spare   bool     // a blade, or the program to join there
}

// Awaits returns the incarnation that has failed of a node that is to come back;
// false if it is not.
func (m *Machine) Awaits(a netip.Addr) (n wal.Node, ok bool) {
	r := m.recoveries[a]
	if r == nil || r.Gone {
		return n, false
	}
	return r.Node, true
}

// Recovery returns that of one node; false if none is under way.
func (m *Machine) Recovery(a netip.Addr) (v View, ok bool) {
	r := m.recoveries[a]
	if r == nil {
		return v, false
	}
	return r.view(), true
}

// Recoveries returns those under way, ordered by address.
func (m *Machine) Recoveries() (views []View) {
	for _, r := range m.sorted() {
		views = append(views, r.view())
	}
	return views
}

func (r *recovery) view() View {
	v := View{Failure: r.Failure, Phase: r.phase, Since: r.since}
	if r.phase != Fencing {
		v.Waits.Spare = !r.joined && !r.Gone
		return v
	}
	v.Waits.Switch = !r.cut
	for s := range r.unacked {
		v.Waits.Servers = append(v.Waits.Servers, s)
	}
	slices.Sort(v.Waits.Servers)
	return v
}
