package callgraph

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Waits knows which calls wait for their turn at services with state, as the nodes tell that
// run the services, and finds those that wait for each other. The Gatekeeper sees such calls too late to refuse them
// when they are made.
//
//	execution ──For──▶ waiting call ──Behind──▶ execution ──For──▶ waiting call ──▶ …
//
// What nodes have told may be old, each at another time. A circle of it is a deadlock all the same.
// A call waits until the execution ends that it waits behind, and that ends after the calls that
// it has made. So go round, from the wait that was told last against the arrows: the execution
// that makes that call is there, so what waits behind that execution still waits, so whoever
// makes that is there as well, and so on. This is wrong for a call that its caller has given
// up: it is refused all the same.
type Waits struct {
	nodes map[netip.Addr]*waitsAt
}

// Wait is a call that waits for its turn.
type Wait struct {
	ID rpcpacket.ID
	// Behind is the call that the service runs.
	Behind rpcpacket.ID
	// For are executions that wait for the call.
	For     []rpcpacket.ID
	Service string
	Method  string
	// Node runs the service.
	Node netip.Addr
}

// waitsAt is what a node has told last.
type waitsAt struct {
	at    time.Time
	calls map[rpcpacket.ID]*waiting
}

type waiting struct {
	Wait
	refused time.Time // when that was asked for
}

// refusedFor is for how long a call that is to be refused is not taken for one that waits, though
// its node says so.
const refusedFor = time.Second

// Report takes what a node tells, in place of what it told before; nothing for nothing.
func (w *Waits) Report(node netip.Addr, at time.Time, calls []Wait) {
	if len(calls) == 0 {
		delete(w.nodes, node)
		return
	}
	if w.nodes == nil {
		w.nodes = map[netip.Addr]*waitsAt{}
	}
	now := &waitsAt{at: at, calls: map[rpcpacket.ID]*waiting{}}
	was := w.nodes[node]
	for _, k := range calls {
		k.Node = node
		now.calls[k.ID] = &waiting{Wait: k}
		if was != nil && was.calls[k.ID] != nil {
			now.calls[k.ID].refused = was.calls[k.ID].refused
		}
	}
	w.nodes[node] = now
}

// Gone forgets what a node has told.
func (w *Waits) Gone(node netip.Addr) { delete(w.nodes, node) }

// Behind is the call that a node has told last that a call waits behind there, zero if it does not wait.
func (w *Waits) Behind(node netip.Addr, call rpcpacket.ID) rpcpacket.ID {
	if n := w.nodes[node]; n != nil && n.calls[call] != nil {
		return n.calls[call].Behind
	}
	return rpcpacket.ID{}
}

// Deadlock returns calls that wait for each other, and which of them is to be refused, if there
// is such a circle through a call of a node. The same circle is returned again only when the call has not been refused
// for a while.
func (w *Waits) Deadlock(node netip.Addr, now time.Time) (victim Wait, circle []rpcpacket.ID, found bool) {
	n := w.nodes[node]
	if n == nil {
		return Wait{}, nil, false
	}
	s := w.circles()
	for _, id := range slices.SortedFunc(maps.Keys(n.calls), rpcpacket.ID.Compare) {
		if s.calls[id] == nil {
			continue
		}
		if circle = s.circle(id); circle != nil {
			k := s.victim(circle)
			k.refused = now
			return k.Wait, circle, true
		}
	}
	return Wait{}, nil, false
}

// circles finds circles.
type circles struct {
	calls map[rpcpacket.ID]*waiting       // that wait for their turn
	made  map[rpcpacket.ID][]rpcpacket.ID // by execution: what it waits for
}

func (w *Waits) circles() *circles {
	s := &circles{calls: map[rpcpacket.ID]*waiting{}, made: map[rpcpacket.ID][]rpcpacket.ID{}}
	for _, n := range w.nodes {
		for id, k := range n.calls {
			if n.at.Sub(k.refused) >= refusedFor {
				s.calls[id] = k
				s.makes(k.For, id)
			}
		}
	}
	return s
}

func (s *circles) makes(executions []rpcpacket.ID, call rpcpacket.ID) {
	for _, e := range executions {
		s.made[e] = append(s.made[e], call)
	}
}

// next is what a call waits for.
func (s *circles) next(id rpcpacket.ID) []rpcpacket.ID {
	if k := s.calls[id]; k != nil {
		return []rpcpacket.ID{k.Behind}
	}
	return s.made[id]
}

// circle is a way from a call back to it, nil if there is none.
func (s *circles) circle(from rpcpacket.ID) []rpcpacket.ID {
	before := map[rpcpacket.ID]rpcpacket.ID{}
	todo := []rpcpacket.ID{from}
	for len(todo) > 0 {
		id := todo[0]
		todo = todo[1:]
		for _, to := range s.next(id) {
			if to == from {
				way := []rpcpacket.ID{id}
				for id != from {
					id = before[id]
					way = append(way, id)
				}
				slices.Reverse(way)
				return way
			}
			if _, seen := before[to]; !seen {
				before[to] = id
				todo = append(todo, to)
			}
		}
	}
	return nil
}

// victim is which of the calls of a circle is refused: the one with the highest id.
func (s *circles) victim(circle []rpcpacket.ID) *waiting {
	var best *waiting
	for _, id := range circle {
		k := s.calls[id]
		switch {
		case k == nil:
		case best == nil, k.ID.Compare(best.ID) > 0:
			best = k
		}
	}
	return best
}
