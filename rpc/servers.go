package rpc

import (
	"context"
	"math"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/pace"
	"github.com/bifrost-rack/bifrost/rpc/record"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Who takes a call: one of the nodes that serve its method, by the word of the switch and their blades (package resolve), chosen when the call is made. The choice is for good. All
// copies go there, those of re-runs too: an execution has it in its ledger before the call leaves. A call of policy none is bound
// to the node's incarnation, too, since the next one does not know what this one has run.
//
// Calls alternate between the nodes. Of the two whose turn it is, that one gets the call which has fewer calls of this node out,
// or answers much faster.

// servers are the nodes that take calls, by method and by whether they need a ledger.
type servers struct {
	life  *lifetime
	pulse *pulse
	asks  func(context.Context, control.Serving) (control.ServingList, error) // asks the rack

	mu    sync.Mutex
	known map[control.Serving]*serving
}

// serving is what is known of who takes the calls of a method.
type serving struct {
	list  control.ServingList // the last answer
	heard bool                // it has answered
	at    time.Duration       // in node time, when the last question ended
	// asked counts the questions so far, and answered is the last one with an answer.
	asked, answered uint64
	under           *question // the question that is under way, if any
	turn            int
	standings       map[netip.Addr]*standing
}

// standing is how a node has dealt with the calls of a method.
type standing struct {
	out   atomic.Int32 // calls that are out to it
	mean  atomic.Int64 // nanoseconds that an answer takes, smoothed
	heard atomic.Int64 // when it has answered last, in node time
	avoid atomic.Int64 // until then it gets no call that another one can take
	// refused is when it has refused a call because it closes; 0 if it has not. It is not chosen for servingLifetime then, unless
	// the rack says that it serves again. The mutex of servers guards it.
	refused time.Duration
}

// server is the node that a call is bound to.
type server struct {
	node        netip.Addr
	incarnation uint32 // of a call of policy none
	*standing
}

// question is one to the rack: who takes the calls of a method.
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
	// avoidFor is for how long a node that is overloaded is left out, and for how long it counts how fast it was.
	avoidFor = 100 * time.Millisecond
	// slowTime is how long an answer takes at least for which a node counts as slow.
	slowTime = time.Millisecond
)

// servingPauses are those between two questions while a call cannot leave.
var servingPauses = pace.Pauses{First: 20 * time.Millisecond, Most: 250 * time.Millisecond}

// of is what is known of a method. The caller holds s.mu.
func (s *servers) of(q control.Serving) *serving {
	k := s.known[q]
	if k == nil {
		if s.known == nil {
			s.known = map[control.Serving]*serving{}
		}
		k = &serving{turn: rand.Int()}
		s.known[q] = k
	}
	return k
}

// takes replaces the list of nodes by the answer to a question that was asked at a time. The caller holds the mutex of servers.
func (k *serving) takes(list control.ServingList, asked, now time.Duration) {
	before := k.standings
	k.list, k.standings = list, make(map[netip.Addr]*standing, len(list.Nodes))
	for _, node := range list.Nodes {
		s := before[node]
		if s == nil {
			s = new(standing)
		}
		// One that has refused is back, unless the rack does not know yet that it closes.
		if !list.Awaited && s.refused != 0 && s.refused < asked && now-s.refused >= servingPauses.First {
			s.refused = 0
		}
		k.standings[node] = s
	}
}

// choose chooses one of the nodes of the last answer, for calls of policy none or others; no node if there are none, or all have
// refused a call just now. A call of policy none does not wait at a node that is to come back: its next incarnation would not take it. The caller
// holds the mutex of servers.
func (k *serving) choose(now time.Duration, atMostOnce bool) (to server, ok bool) {
	n := len(k.list.Nodes)
	if n == 0 || atMostOnce && k.list.Awaited {
		return server{}, false
	}
	k.turn++
	best := math.Inf(1)
	seen := 0
	for i := range n {
		at := (k.turn + i) % n
		s := k.standings[k.list.Nodes[at]]
		if s.refused != 0 && now-s.refused < servingLifetime {
			continue
		}
		if cost := s.cost(now); cost < best {
			best, to = cost, server{node: k.list.Nodes[at], standing: s}
			if atMostOnce && at < len(k.list.Incarnations) {
				to.incarnation = k.list.Incarnations[at]
			}
		}
		if seen++; seen == 2 && now >= time.Duration(to.avoid.Load()) {
			break
		}
	}
	if to.standing == nil {
		return server{}, false
	}
	to.out.Add(1)
	return to, true
}

// cost is how long a call to the node may take, compared with others.
func (s *standing) cost(now time.Duration) float64 {
	mean := int64(slowTime)
	if now-time.Duration(s.heard.Load()) < avoidFor {
		mean = max(mean, s.mean.Load())
	}
	cost := float64(mean) * float64(1+s.out.Load())
	if now < time.Duration(s.avoid.Load()) {
		cost *= 1e6
	}
	return cost
}

// answered learns from an answer of the node that it took so long.
func (s *standing) answered(now, took time.Duration, code Code) {
	if s == nil {
		return
	}
	if code == Overloaded {
		s.avoid.Store(int64(now + avoidFor))
		return
	}
	mean := s.mean.Load()
	s.mean.Store(mean + (int64(took)-mean)/8)
	s.heard.Store(int64(now))
}

// over notes that a call to the node is not out any more; nil is none.
func (s *standing) over() {
	if s != nil {
		s.out.Add(-1)
	}
}

// pick chooses who is to take a call of a method, by what is known; false if the rack has to be asked first.
func (s *servers) pick(q control.Serving) (to server, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.known[q]
	if k == nil || !k.heard || s.pulse.now()-k.at > servingStale && k.under == nil {
		return server{}, false
	}
	if s.pulse.now()-k.at > servingLifetime {
		s.ask(k, q)
	}
	return k.choose(s.pulse.now(), q.AtMostOnce)
}

// find asks the rack who takes calls of a method, and chooses one of the nodes. It waits until somebody has
// answered, and while all of them refuse calls, since they close, and are to come back. The error says that there are none, that
// the context has ended, or the node.
func (s *servers) find(ctx context.Context, q control.Serving) (server, error) {
	patience := time.NewTimer(servingPatience)
	defer patience.Stop()
	s.mu.Lock()
	k := s.of(q)
	before := k.asked
	for pause := servingPauses.First; ; pause = servingPauses.Next(pause) {
		u := s.ask(k, q)
		s.mu.Unlock()
		patient := true
		select {
		case <-u.over:
		case <-patience.C:
			patient = false
		case <-ctx.Done():
			return server{}, ctx.Err()
		case <-s.life.base.Done():
			return server{}, s.life.whyEnded()
		}
		s.mu.Lock()
		to, ok := k.choose(s.pulse.now(), q.AtMostOnce)
		list, answered := k.list, k.answered > before
		if !patient && !ok {
			continue
		}
		s.mu.Unlock()
		switch {
		case ok:
			return to, nil
		case answered && len(list.Nodes) == 0:
			return server{}, nobody(q, list.Why)
		case fault.CodeOf(u.err) == BadRequest:
			return server{}, u.err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return server{}, ctx.Err()
		case <-s.life.base.Done():
			return server{}, s.life.whyEnded()
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

// ask asks the rack who takes calls of a method, one question at a time. It waits for as long as nobody
// answers. The caller holds the mutex of servers.
func (s *servers) ask(k *serving, q control.Serving) *question {
	if k.under != nil {
		return k.under
	}
	u := &question{over: make(chan struct{})}
	k.asked++
	k.under = u
	from, number := s.pulse.now(), k.asked
	go func() {
		list, err := s.asks(s.life.base, q)
		s.mu.Lock()
		defer s.mu.Unlock()
		k.under, k.at, u.err = nil, s.pulse.now(), err
		defer close(u.over)
		if err != nil {
			return
		}
		k.heard, k.answered = true, number
		k.takes(list, from, s.pulse.now())
	}()
	return u
}

// bind chooses the node that a call goes to, or is bound to. If no node takes it, the call fails, and has never begun.
func (c *client) bind(ctx context.Context, b *opSequence, o *operation, id rpcpacket.ID, m *method, kind thrift.TMessageType) (server, error) {
	if o != nil && m.policy != PolicyNone {
		if to := o.b.e.bound(id); to.IsValid() {
			return server{node: to}, nil
		}
	}
	to, err := c.server(ctx, b, m)
	if err == nil && o != nil && kind == thrift.ONEWAY && m.policy != PolicyNone {
		if err = o.b.e.stays(ctx); err != nil {
			to.over()
		}
	}
	return to, err
}

// serving is what a client asks for a method.
func (c *client) serving(m *method) control.Serving {
	return control.Serving{Service: c.service, Method: m.name, AtMostOnce: m.policy == PolicyNone}
}

// server chooses who is to take a call. Whoever makes it gives its worker's slot back while it waits for that.
func (c *client) server(ctx context.Context, b *opSequence, m *method) (server, error) {
	q := c.serving(m)
	if to, ok := c.node.servers.pick(q); ok {
		return to, nil
	}
	if b != nil {
		b.e.yield()
		defer b.e.resume()
	}
	return c.node.servers.find(ctx, q)
}

// movedOn reports whether a call was refused for good since its node closes, or is gone.
func (p *pending) movedOn() bool { return p.err == nil && p.answer.Refuses() }

// unbind takes back the choice of the node that has refused a call.
func (c *client) unbind(o *operation, p *pending, m *method) {
	c.node.servers.refuse(c.serving(m), netip.AddrFrom16(p.Node), c.node.pulse.now())
	if o != nil && m.policy != PolicyNone {
		e := o.b.e
		e.mu.Lock()
		defer e.mu.Unlock()
		e.recorded.refused = append(e.recorded.refused, record.Call{ID: p.ID, Node: p.Node, Lends: p.lends})
		e.recorded.answered(p.ID)
	}
}

// doubt has the rack asked before the next call of a method: a node is not what it was.
func (s *servers) doubt(q control.Serving) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.of(q).heard = false
}

// refuse notes that a node has refused a call of a method for good.
func (s *servers) refuse(q control.Serving, node netip.Addr, now time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.of(q)
	if at := k.standings[node]; at != nil {
		at.refused = max(now, 1)
	}
	k.heard = false // it is asked again before the next call
}
