package memory

import (
	"bytes"
	"net/netip"
	"slices"

	"github.com/bifrost-rack/bifrost/dsm/memory/store"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/netio"
)

// An allocation that takes of the last eighth of the machine waits here for the Gatekeeper's word: one of each node. Others that come meanwhile are
// answered Overloaded, and their clients ask again.
//
// Whose a node is, is asked in the same way. Nothing waits for that.
type reserve struct {
	ask     func() // says that there is something to ask; nil if nobody is asked
	waiting map[netip.Addr]*waiting
	sought  map[netip.Addr]*sought
}

// sought is a node of which it matters whose it is.
type sought struct {
	incarnation uint32
	asked       bool // the question is under way
}

// waiting is an allocation that waits.
type waiting struct {
	request store.Request
	from    netip.AddrPort
	asked   bool // the question is under way
}

// wait keeps an allocation until the Gatekeeper has said whether its node may have the region. The caller holds the server's mutex.
func (r *reserve) wait(m *netio.Message, q *store.Request) {
	if r.waiting[q.Node] != nil {
		return
	}
	if r.waiting == nil {
		r.waiting = map[netip.Addr]*waiting{}
	}
	w := &waiting{request: *q, from: m.Remote}
	w.request.Data = bytes.Clone(q.Data)
	r.waiting[q.Node] = w
	r.ask()
}

// seek has it asked whose a node is.
func (r *reserve) seek(q *store.Request) {
	if r.sought[q.Node] != nil {
		return
	}
	if r.sought == nil {
		r.sought = map[netip.Addr]*sought{}
	}
	r.sought[q.Node] = &sought{incarnation: q.Header.Incarnation}
	r.ask()
}

// Asking returns what is to be asked next: of control.MaxRooms nodes at most, none if there is nothing to ask. Told must follow.
func (s *Server) Asking() (q control.Rooms) {
	_ = s.now(func(*store.Store) error {
		for node, w := range s.reserve.waiting {
			if !w.asked {
				q.Nodes = append(q.Nodes, control.Room{Node: node, Bytes: w.request.Asks})
			}
		}
		for node, w := range s.reserve.sought {
			if !w.asked && s.reserve.waiting[node] == nil {
				q.Nodes = append(q.Nodes, control.Room{Node: node})
			}
		}
		slices.SortFunc(q.Nodes, func(a, b control.Room) int { return a.Node.Compare(b.Node) })
		q.Nodes = q.Nodes[:min(len(q.Nodes), control.MaxRooms)]
		for _, n := range q.Nodes {
			if w := s.reserve.waiting[n.Node]; w != nil {
				w.asked = true
			}
			if w := s.reserve.sought[n.Node]; w != nil {
				w.asked = true
			}
		}
		return nil
	})
	return q
}

// Told carries out, or refuses, the allocations of a question that the Gatekeeper has answered. Those of which the answer says nothing are
// forgotten: their clients ask again.
func (s *Server) Told(q control.Rooms, a control.RoomsReply) {
	out := newAnswers(s)
	_ = s.now(func(st *store.Store) error {
		for i, n := range q.Nodes {
			of := s.reserve.sought[n.Node]
			delete(s.reserve.sought, n.Node)
			if of != nil && i < len(a.Owners) {
				st.Learn(n.Node, of.incarnation, a.Owners[i])
			}
			w := s.reserve.waiting[n.Node]
			if w == nil || n.Bytes == 0 {
				continue
			}
			delete(s.reserve.waiting, n.Node)
			if i >= len(a.Has) {
				continue
			}
			if w.request.Word = store.Refused; a.Has[i] {
				w.request.Word = store.Permitted
			}
			s.handle(&netio.Message{Remote: w.from}, &w.request, out)
		}
		out.send()
		return nil
	})
}
