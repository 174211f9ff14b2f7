package rpc

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// Who takes a direct call: one of the nodes that the Gatekeeper names, chosen when the call
// is made. The choice is for good. All copies go there, those of re-runs too, so that
// routes may change under a call: an execution has it in its ledger before the call leaves.

// servers are the nodes that take direct calls, by method.
type servers struct {
	mu    sync.Mutex
	known map[control.Serving]*serving
	asked map[netip.Addr]bool // those about which the Gatekeeper is being asked
}

// serving is what is known of who takes the calls of a method.
type serving struct {
	list  control.ServingList // the Gatekeeper's last answer
	heard bool                // it has answered
	at    time.Duration       // in node time, when the last question ended
	// asked counts the questions so far, and answered is the last one that the Gatekeeper has answered.
	asked, answered uint64
	under           *question // the question that is under way, if any
	turn            int
	// refused is when nodes have refused a call because they close. They are not chosen for servingLifetime, unless the
	// Gatekeeper says that they serve again.
	refused map[netip.Addr]time.Duration
}

// question is one to the Gatekeeper: who takes the calls of a method.
type question struct {
	over chan struct{} // closed when it has ended
	err  error         // valid then
}

const (
	// servingLifetime is after how long it is asked again who takes the calls of a method.
	servingLifetime = time.Second
	// servingStale is after how long nobody is called of whom it said so then, unless it does
	// not answer: nodes that leave wait so long for their callers.
	servingStale = 2 * time.Second
	// servingPatience bounds the wait for such an answer if an earlier one is known.
	servingPatience = time.Second
	// servingAgain is how soon it is asked again if a call cannot leave, and maxServingAgain the longest such pause.
	servingAgain, maxServingAgain = 20 * time.Millisecond, 250 * time.Millisecond
)

// of is what is known of a method. The caller holds s.mu.
func (s *servers) of(q control.Serving) *serving {
	k := s.known[q]
	if k == nil {
		if s.known == nil {
			s.known = map[control.Serving]*serving{}
		}
		k = &serving{turn: int(randomUint64() >> 1)} //nolint:gosec // not negative
		s.known[q] = k
	}
	return k
}

// choose chooses one of the nodes of the last answer; the zero Addr if there are none, or all have refused a call just
// now. The caller holds the mutex of servers.
func (k *serving) choose(now time.Duration) netip.Addr {
	maps.DeleteFunc(k.refused, func(_ netip.Addr, at time.Duration) bool { return now-at >= servingLifetime })
	open := k.list.Nodes
	if len(k.refused) > 0 {
		open = slices.DeleteFunc(slices.Clone(open), func(a netip.Addr) bool { _, no := k.refused[a]; return no })
	}
	if len(open) == 0 {
		return netip.Addr{}
	}
	k.turn++
	return open[k.turn%len(open)]
}

// knownServer chooses who is to take a direct call of a method, by what is known; the zero Addr if the Gatekeeper has to be
// asked first.
func (n *Node) knownServer(q control.Serving) netip.Addr {
	s := &n.servers
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.known[q]
	if k == nil || !k.heard || n.now()-k.at > servingStale && k.under == nil {
		return netip.Addr{}
	}
	if n.now()-k.at > servingLifetime {
		n.askServing(k, q)
	}
	return k.choose(n.now())
}

// findServer asks the Gatekeeper who takes direct calls of a method, and chooses one of the nodes. It waits until the
// Gatekeeper has answered, and while all of them refuse calls, since they close, and are to come back. The error says
// that there are none, that the context has ended, or the node.
func (n *Node) findServer(ctx context.Context, q control.Serving) (netip.Addr, error) {
	s := &n.servers
	patience := time.NewTimer(servingPatience)
	defer patience.Stop()
	s.mu.Lock()
	k := s.of(q)
	before := k.asked
	for pause := servingAgain; ; pause = min(2*pause, maxServingAgain) {
		u := n.askServing(k, q)
		s.mu.Unlock()
		patient := true
		select {
		case <-u.over:
		case <-patience.C:
			patient = false
		case <-ctx.Done():
			return netip.Addr{}, ctx.Err()
		case <-n.base.Done():
			return netip.Addr{}, n.whyEnded()
		}
		s.mu.Lock()
		to, list, answered := k.choose(n.now()), k.list, k.answered > before
		if !patient && !to.IsValid() {
			continue
		}
		s.mu.Unlock()
		switch {
		case to.IsValid():
			return to, nil
		case answered && len(list.Nodes) == 0:
			return netip.Addr{}, nobody(q, list.Why)
		case fault.CodeOf(u.err) == BadRequest:
			return netip.Addr{}, u.err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return netip.Addr{}, ctx.Err()
		case <-n.base.Done():
			return netip.Addr{}, n.whyEnded()
		}
		s.mu.Lock()
	}
}

// nobody is the error of a call that no node takes.
func nobody(q control.Serving, why string) error {
	if why == "" {
		why = "deploy the service"
	}
	return fault.New(Unavailable, "", "no node serves %s.%s: %s", q.Service, q.Method, why)
}

// askServing asks the Gatekeeper who takes direct calls of a method, one question at a time. It waits for as long as the
// Gatekeeper is away. The caller holds the mutex of servers.
func (n *Node) askServing(k *serving, q control.Serving) *question {
	if k.under != nil {
		return k.under
	}
	u := &question{over: make(chan struct{})}
	k.asked++
	k.under = u
	from, number := n.now(), k.asked
	go func() {
		list, err := n.session.Serving(n.base, q)
		s := &n.servers
		s.mu.Lock()
		defer s.mu.Unlock()
		k.under, k.at, u.err = nil, n.now(), err
		defer close(u.over)
		if err != nil {
			return
		}
		k.list, k.heard, k.answered = list, true, number
		if list.Awaited {
			return
		}
		for _, node := range list.Nodes { // one that has refused is back, unless the Gatekeeper does not know yet that it closes
			if at, refused := k.refused[node]; refused && at < from && n.now()-at >= servingAgain {
				delete(k.refused, node)
			}
		}
	}()
	return u
}
