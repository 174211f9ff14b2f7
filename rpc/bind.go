package rpc

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/direct"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
	"github.com/bifrost-rack/bifrost/rpc/record"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
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

type serving struct {
	nodes  []netip.Addr
	serial bool          // they run one call of the service at a time
	at     time.Duration // in node time, when the Gatekeeper was asked
	asking bool
	turn   int
}

const (
	// servingLifetime is after how long it is asked again who takes the calls of a method.
	servingLifetime = time.Second
	// servingStale is after how long nobody is called of whom it said so then: nodes that leave
	// wait so long for their callers.
	servingStale = 2 * time.Second
	// servingPatience bounds the wait for such an answer, or the first one. Without a first one
	// the call goes through the Gatekeeper.
	servingPatience = time.Second
)

// server chooses who is to take a direct call of a method, nobody if no node does; serial
// says that the service runs one call at a time.
func (n *Node) server(ctx context.Context, q control.Serving) (to netip.Addr, serial bool) {
	s := &n.servers
	s.mu.Lock()
	k := s.known[q]
	if k == nil || n.now()-k.at > servingStale {
		s.mu.Unlock()
		ctx, cancel := context.WithTimeout(ctx, servingPatience)
		defer cancel()
		n.askServing(ctx, q)
		s.mu.Lock()
		if k = s.known[q]; k == nil {
			s.mu.Unlock()
			return netip.Addr{}, false
		}
	}
	defer s.mu.Unlock()
	if !k.asking && n.now()-k.at > servingLifetime {
		k.asking = true
		go n.askServing(n.base, q)
	}
	if len(k.nodes) == 0 {
		return netip.Addr{}, false
	}
	k.turn++
	return k.nodes[k.turn%len(k.nodes)], k.serial
}

// askServing asks the Gatekeeper who takes direct calls of a method.
func (n *Node) askServing(ctx context.Context, q control.Serving) {
	list, err := n.session.Serving(ctx, q)
	s := &n.servers
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.known[q]
	if k != nil {
		k.asking, k.at = false, n.now()
	}
	if err != nil {
		return
	}
	if s.known == nil {
		s.known = map[control.Serving]*serving{}
	}
	if k == nil {
		k = &serving{at: n.now(), turn: int(randomUint64() >> 1)} //nolint:gosec // not negative
		s.known[q] = k
	}
	k.nodes, k.serial = list.Nodes, list.Stateful
}

// bind decides whether a call goes direct, and where to. An execution of a direct call that
// makes another one has the Gatekeeper decide about itself from now on.
//
// Direct calls wait for each other past the Gatekeeper, which finds deadlocks. So whatever
// waits while it has the slot of a service with state is the Gatekeeper's, with all that is
// done on its behalf and may come to wait for such a slot: nothing that waits in a circle
// has gone direct.
func (c *client) bind(ctx context.Context, b *opSequence, o *operation, id rpcpacket.ID, m *method, codec *codec, kind thrift.TMessageType) (netip.Addr, error) {
	n, q := c.node, control.Serving{Service: c.service, Method: m.name}
	if !n.goesDirect() {
		return netip.Addr{}, nil
	}
	exact := m.policy != PolicyNone
	if o == nil {
		if exact && c.fits(m, codec, kind) && !b.onBehalf() {
			to, _ := n.server(ctx, q)
			return to, nil
		}
		return netip.Addr{}, nil
	}
	e := o.b.e
	if exact && !e.serial() {
		if to := e.bound(id); to.IsValid() {
			return to, nil
		}
		if e.direct.Load() && c.fits(m, codec, kind) {
			to, serial := n.server(ctx, q)
			if to.IsValid() && !e.refusedBy(id, to) && (!serial || e.ancestor.IsZero()) {
				return to, nil
			}
		}
	}
	if exact || len(codec.pointers) > 0 || e.serial() {
		return netip.Addr{}, e.enlist()
	}
	return netip.Addr{}, nil
}

// serial reports whether an execution has the one slot of a service with state.
func (e *execution) serial() bool { return e.export != nil && e.export.config.stateful() }

// onBehalf reports whether what a handler of policy none does is waited for by an execution
// that may have the slot of a service with state.
func (b *opSequence) onBehalf() bool { return b != nil && (b.e.serial() || !b.e.call.Parent.IsZero()) }

// movedOn reports whether a direct call was refused for good by a node that closes.
func (p *pending) movedOn() bool {
	return p.straight && p.err == nil && p.answer.Type == rpcpacket.Exception && p.answer.Code == Unavailable && p.answer.Flags&rpcpacket.FlagUnbegun != 0
}

// unbind takes back the choice of the node that has refused a call.
func (c *client) unbind(o *operation, p *pending, m *method) {
	node := netip.AddrFrom16(p.Node)
	s := &c.node.servers
	s.mu.Lock()
	if k := s.known[control.Serving{Service: c.service, Method: m.name}]; k != nil {
		k.nodes = slices.DeleteFunc(slices.Clone(k.nodes), func(a netip.Addr) bool { return a == node })
		k.at = 0 // it is asked again soon
	}
	s.mu.Unlock()
	if o != nil {
		e := o.b.e
		e.mu.Lock()
		defer e.mu.Unlock()
		e.recorded.refused = append(e.recorded.refused, record.Call{ID: p.ID, Node: p.Node})
	}
}

// fits reports whether a call can go direct: others are the Gatekeeper's.
func (c *client) fits(m *method, codec *codec, kind thrift.TMessageType) bool {
	return m.policy == PolicyRecover && kind == thrift.CALL && len(codec.pointers) == 0 && codec.size()+len(rpcpacket.ID{}) <= c.node.budget
}

// goDirect makes a call that has been bound a direct one. It reports false if the node has
// ended.
func (p *pending) goDirect(o *operation, to netip.Addr, codec *codec, h *rpcpacket.Header, id rpcpacket.ID) bool {
	p.straight, p.Node = true, to.As16()
	p.to.Remote = netip.AddrPortFrom(to, rackaddr.PortDirect)
	p.Balance = nil
	h.Flags &^= rpcpacket.FlagHeld
	if o == nil {
		return true
	}
	e := o.b.e
	p.of = e
	ancestor := e.ancestor
	if !e.direct.Load() {
		ancestor = e.call.Call
	}
	if !ancestor.IsZero() {
		codec.trailer = ancestor[:]
	}
	return e.durable(record.Call{ID: id, Node: p.Node})
}

// inLane begins a direct call of an execution: its place in a lane is in the header.
func (n *Node) inLane(now time.Duration, p *pending, h *rpcpacket.Header, id rpcpacket.ID) bool {
	if !n.out.core.BeginIn(now, &p.Call, id) {
		return false
	}
	h.Order, h.Floor = p.Lane(), p.Floor
	return true
}

// sentIn notes in which lane a direct call of an execution has left.
func (o *operation) sentIn(p *pending) {
	if o == nil || !p.straight {
		return
	}
	e := o.b.e
	e.mu.Lock()
	defer e.mu.Unlock()
	e.recorded.sent = append(e.recorded.sent, direct.Item{ID: p.ID, Lane: p.Lane(), Number: p.Floor})
}

// whereabouts asks about the nodes that direct calls have waited for as long as a call waits
// at most between two copies. The calls to those that are gone for good fail.
func (n *Node) whereabouts(calls []*endpoint.Call) {
	s := &n.servers
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, call := range calls {
		p := call.Tag.(*pending)
		node := netip.AddrFrom16(p.Node)
		if !p.straight || !call.Waits() || s.asked[node] {
			continue
		}
		if s.asked == nil {
			s.asked = map[netip.Addr]bool{}
		}
		s.asked[node] = true
		go func() {
			info, err := n.session.Who(n.base, node)
			if info.Left || fault.CodeOf(err) == fault.NotFound {
				n.gone(node, info.Left)
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.asked, node)
		}()
	}
}

// gone fails the calls to a node that is gone for good. If it has left in order, they have never
// run: whoever made them chooses another node.
func (n *Node) gone(node netip.Addr, inOrder bool) {
	n.out.mu.Lock()
	var failed []*pending
	for _, call := range n.out.core.All(nil) {
		if p := call.Tag.(*pending); p.straight && call.Node == node.As16() && n.out.core.End(call) {
			failed = append(failed, p)
		}
	}
	n.out.mu.Unlock()
	for _, p := range failed {
		const why = "the node that was called is gone"
		h := rpcpacket.Header{Type: rpcpacket.Exception, Code: Unavailable, Call: p.ID}
		if inOrder {
			h.Flags |= rpcpacket.FlagUnbegun
		}
		if n.deliver(&p.Call, nil, rpcpacket.Message{Header: h, Payload: []byte(why)}) {
			n.interrupt() // whoever waits may be reading
		}
	}
}
