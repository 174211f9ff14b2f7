package memory

import (
	"net/netip"
	"slices"

	"github.com/bifrost-rack/bifrost/dsm/memory/store"
	"github.com/bifrost-rack/bifrost/internal/control"
)

// seeking is what the Gatekeeper is asked: whose nodes are, when that matters. Nothing waits for it.
type seeking struct {
	ask    func() // says that there is something to ask; nil if nobody is asked
	sought map[netip.Addr]*sought
}

// sought is a node of which it matters whose it is.
type sought struct {
	incarnation uint32
	asked       bool // the question is under way
}

// seek has it asked whose a node is. The caller holds the server's mutex.
func (k *seeking) seek(q *store.Request) {
	if k.sought[q.Node] != nil {
		return
	}
	if k.sought == nil {
		k.sought = map[netip.Addr]*sought{}
	}
	k.sought[q.Node] = &sought{incarnation: q.Header.Incarnation}
	k.ask()
}

// Asking returns what is to be asked next: of control.MaxOwners nodes at most, none if there is nothing to ask. Told must follow.
func (s *Server) Asking() (q control.Owners) {
	_ = s.now(func(*store.Store) error {
		for node, w := range s.seeking.sought {
			if !w.asked {
				q.Nodes = append(q.Nodes, node)
			}
		}
		slices.SortFunc(q.Nodes, netip.Addr.Compare)
		q.Nodes = q.Nodes[:min(len(q.Nodes), control.MaxOwners)]
		for _, n := range q.Nodes {
			s.seeking.sought[n].asked = true
		}
		return nil
	})
	return q
}

// Told takes the Gatekeeper's answer to a question. Nodes of which it says nothing are asked about again when it matters.
func (s *Server) Told(q control.Owners, a control.OwnersReply) {
	_ = s.now(func(st *store.Store) error {
		for i, n := range q.Nodes {
			of := s.seeking.sought[n]
			delete(s.seeking.sought, n)
			if of != nil && i < len(a.Owners) {
				st.Learn(n, of.incarnation, a.Owners[i])
			}
		}
		return nil
	})
}
