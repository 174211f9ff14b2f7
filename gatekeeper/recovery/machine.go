package recovery

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
)

// Failure is the end of one incarnation of a node.
type Failure struct {
	Node wal.Node
	// Gone: there will be no other incarnation, because nobody deployed the
	// program. Its calls fail.
	Gone bool
	// Cause is for people.
	Cause string
}

// Server names a memory server.
type Server string

// Phase is how far a recovery has got.
type Phase uint8

// The phases.
const (
	Fencing   Phase = iota + 1 // it is being cut off
	Restoring                  // it may run elsewhere
)

// String returns the phase's name.
func (p Phase) String() string { return [...]string{"", "fencing", "restoring", ""}[p&3] }

// Machine is all recoveries that are under way.
type Machine struct {
	servers    map[Server]struct{}
	recoveries map[netip.Addr]*recovery
	present    map[netip.Addr]uint32 // incarnations that have joined, the latest
	out        Output
}

// recovery is that of one node.
type recovery struct {
	Failure
	since   time.Time
	phase   Phase
	cut     bool                // its identity is gone
	unacked map[Server]struct{} // that have not confirmed the fence
	joined  bool
}

// New returns a Machine without recoveries and memory servers.
func New() *Machine {
	return &Machine{servers: map[Server]struct{}{}, recoveries: map[netip.Addr]*recovery{}, present: map[netip.Addr]uint32{}}
}

// AddServer says that a memory server is in service. What is being fenced has to
// be fenced there, too.
func (m *Machine) AddServer(s Server) Output {
	if _, known := m.servers[s]; !known {
		m.servers[s] = struct{}{}
		for _, r := range m.sorted() {
			if r.phase == Fencing {
				r.unacked[s] = struct{}{}
				m.do(Fence{s, r.Node, r.Gone})
			}
		}
	}
	return m.take()
}

// RemoveServer says that a memory server has failed. It can do nothing any more,
// so nobody waits for its answer.
func (m *Machine) RemoveServer(s Server) Output {
	delete(m.servers, s)
	for _, r := range m.sorted() {
		delete(r.unacked, s)
		m.advance(r)
	}
	return m.take()
}

// Fail begins the recovery of a node that has failed, and of those that share its
// fate (callgraph.Domain): all of them or, if the Gatekeeper dies, none. An
// incarnation that is known to have failed is passed over.
func (m *Machine) Fail(now time.Time, failures ...Failure) Output {
	for _, f := range failures {
		r := m.recoveries[f.Node.Address]
		switch {
		case f.Node.Incarnation < m.present[f.Node.Address]:
			continue // its place is taken
		case r == nil:
			r = &recovery{since: now}
			m.recoveries[f.Node.Address] = r
		case f.Node.Incarnation <= r.Node.Incarnation && (r.Gone || !f.Gone):
			continue
		}
		r.Failure = f
		r.phase, r.joined = Fencing, false
		m.keep(r)
		m.fence(r)
	}
	return m.take()
}

// fence cuts a node off.
func (m *Machine) fence(r *recovery) {
	r.cut, r.unacked = false, map[Server]struct{}{}
	m.do(Unidentify{r.Node, r.Gone})
	for _, s := range m.sortedServers() {
		r.unacked[s] = struct{}{}
		m.do(Fence{s, r.Node, r.Gone})
	}
}

// Unidentified answers Unidentify.
func (m *Machine) Unidentified(n wal.Node) Output {
	if r := m.fencing(n); r != nil {
		r.cut = true
		m.advance(r)
	}
	return m.take()
}

// Fenced is a memory server's answer to Fence.
func (m *Machine) Fenced(s Server, n wal.Node) Output {
	if r := m.fencing(n); r != nil {
		delete(r.unacked, s)
		m.advance(r)
	}
	return m.take()
}

// fencing returns the recovery that waits for an incarnation's fence.
func (m *Machine) fencing(n wal.Node) *recovery {
	if r := m.recoveries[n.Address]; r != nil && r.Node == n && r.phase == Fencing {
		return r
	}
	return nil
}

// advance goes on to restoring when the fence is complete.
func (m *Machine) advance(r *recovery) {
	if r.phase == Fencing && r.cut && len(r.unacked) == 0 {
		r.phase = Restoring
		m.keep(r)
		m.restore(r)
	}
}

func (m *Machine) restore(r *recovery) {
	m.do(Fenced{r.Node.Address})
	m.do(Place{r.Node, !r.Gone})
	m.end(r)
}

// Joined says that an incarnation of a node has joined.
func (m *Machine) Joined(n wal.Node) Output {
	m.present[n.Address] = max(m.present[n.Address], n.Incarnation)
	if r := m.recoveries[n.Address]; r != nil && r.phase == Restoring && n.Incarnation > r.Node.Incarnation {
		r.joined = true
		m.end(r)
	}
	return m.take()
}

// end ends a recovery whose node is back, or is gone for good.
func (m *Machine) end(r *recovery) {
	if !r.joined && !r.Gone {
		return
	}
	delete(m.recoveries, r.Node.Address)
	if r.Gone {
		delete(m.present, r.Node.Address)
	}
	m.out.Delete = append(m.out.Delete, key(r.Node.Address))
	m.do(Recovered{r.Node, r.since})
}

func (m *Machine) sorted() []*recovery {
	all := make([]*recovery, 0, len(m.recoveries))
	for _, r := range m.recoveries {
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b *recovery) int { return a.Node.Address.Compare(b.Node.Address) })
	return all
}

func (m *Machine) sortedServers() []Server {
	all := make([]Server, 0, len(m.servers))
	for s := range m.servers {
		all = append(all, s)
	}
	slices.SortFunc(all, cmp.Compare)
	return all
}
