package gatekeeper

import (
	"encoding/binary"
	"net/netip"

	"github.com/bifrost-rack/bifrost/gatekeeper/lease"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	rpc "github.com/bifrost-rack/bifrost/rpc/packet"
)

// heldCall takes a call, reply, exception or one-way that the switch holds.
func (c *controller) heldCall(h *held) {
	n := c.caller(h)
	if n == nil {
		return
	}
	m, err := rpc.Parse(h.payload)
	if err != nil {
		c.malformedCall(h, &m.Header, err)
		return
	}
	if !c.whole(h, &m) {
		return
	}
	exact := m.Flags.Policy() != rpc.PolicyNone
	switch m.Type {
	case rpc.Call, rpc.Oneway:
		if exact {
			c.exactRequest(n, h, &m)
			return
		}
		c.heldRequest(n, h, &m)
	case rpc.Reply, rpc.Exception:
		if exact {
			c.exactReply(n, h, &m)
			return
		}
		c.heldReply(n, h, &m)
	default:
		c.count.Malformed++
	}
}

// overloaded counts a packet that is dropped because there is no room for what it
// leads to. It will be sent again.
func (c *controller) overloaded(drop bool) bool {
	if drop {
		c.count.Overload++
	}
	return drop
}

// malformedCall answers what has at least a header; the rest is dropped.
func (c *controller) malformedCall(h *held, m *rpc.Header, err error) {
	c.count.Malformed++
	c.log.Debug("malformed call", "from", h.src, "error", err)
	if m.Type == rpc.Call || m.Type == rpc.Oneway {
		c.except(h, m, fault.New(fault.BadRequest, "call", "%v", err))
	}
}

// heldRequest takes a call or one-way.
func (c *controller) heldRequest(n *node, h *held, m *rpc.Message) {
	if m.CallerIncarnation != n.incarnation {
		c.refuse(h, &m.Header, fault.New(fault.Stale, "call", "node %s is in incarnation %d, not %d", n.address, n.incarnation, m.CallerIncarnation))
		return
	}
	if m.Service != serviceHash(h.dst) {
		c.malformedCall(h, &m.Header, fault.New(fault.BadRequest, "call", "the header names another service than the address %s", h.dst))
		return
	}
	if k := c.calls[m.Call]; k != nil {
		if !c.overloaded(c.pressure.stalled) {
			c.knownRequest(k, h, m)
		}
		return
	}
	switch {
	case m.Flags&rpc.FlagSession == 0:
		c.malformedCall(h, &m.Header, fault.New(fault.BadRequest, "call", "policy none, and an id that no session has given"))
		return
	case m.Floor > m.Call.Sequence():
		c.malformedCall(h, &m.Header, fault.New(fault.BadRequest, "call", "floor %d above its own sequence number %d", m.Floor, m.Call.Sequence()))
		return
	}
	if why := c.itsID(n, &m.Header); why != nil {
		c.refuse(h, &m.Header, why)
		return
	}
	s := n.sessionOf(m.Call)
	c.settle(n, s, m.Floor)
	if m.Call.Sequence() < s.floor {
		c.count.Late++
		return
	}
	if c.overloaded(c.leases.Pending() >= c.cfg.Limits.Held || c.pressure.new) {
		return
	}
	callee, why := c.choose(h, &m.Header)
	if why == moving || why == nil && c.park(h, m) {
		return // it will be sent again, or is judged later
	}
	if why == nil && len(n.calls) >= c.cfg.Limits.NodeCalls {
		why = fault.New(fault.Overloaded, "call", "node %s has %d calls on record", n.address, len(n.calls))
	}
	switch {
	case why != nil && callee != nil && len(n.calls) < c.cfg.Limits.NodeCalls:
		c.refuseFor(n, callee, h, m, why)
	case why != nil:
		c.refuse(h, &m.Header, why)
	default:
		c.newRequest(n, callee, h, m)
	}
}

// refuseFor refuses a call, and puts it on record: when the callee is back, a late copy
// of it gets the same answer.
func (c *controller) refuseFor(n, callee *node, h *held, m *rpc.Message, why *fault.Error) {
	k := c.callOf(n, callee, h, m)
	k.stage, k.refusal = stageFinished, why
	c.record(n, k)
	c.keepRefusal(k, why)
	c.refuse(h, &m.Header, why)
}

// callOf makes a record of a held call to a service.
func (c *controller) callOf(n, callee *node, h *held, m *rpc.Message) *call {
	return &call{
		header: m.Header, to: h.dst, caller: n.address, callee: callee.address, incarnation: callee.incarnation,
		service: c.services[h.dst].name, method: m.Method.String(),
	}
}

// serviceHash is the part of a service's address that call headers repeat.
func serviceHash(a netip.Addr) uint64 {
	b := a.As16()
	return binary.BigEndian.Uint64(b[8:])
}

// choose finds the callee of a call that is addressed to a service. With an error, it is
// who will be when it is back, nil if that is nobody.
func (c *controller) choose(h *held, m *rpc.Header) (*node, *fault.Error) {
	s := c.services[h.dst]
	if s == nil || len(s.exports) == 0 && len(s.routes) == 0 {
		if s != nil {
			return nil, fault.New(fault.Unavailable, "call", "no node exports service %s at present", s.name)
		}
		return nil, fault.New(fault.NoSuchMethod, "call", "no node exports the service at %s", h.dst)
	}
	n := s.route(m.Method, m.Call)
	var x *exported // who waits, if nobody serves
	if n == nil {
		x = s.waits(m.Method, m.Call)
	}
	switch {
	case x != nil && x.moves:
		return nil, moving
	case x != nil:
		return x.node, fault.New(fault.Unavailable, "call", "the node of service %s has failed, and is not back yet", s.name)
	case n == nil && s.has(m.Method):
		return nil, fault.New(fault.Unavailable, "call", "the nodes of service %s are being stopped", s.name)
	case n == nil:
		return nil, fault.New(fault.NoSuchMethod, "call", "service %s has no method %q", s.name, m.Method)
	case m.CalleeIncarnation != 0 && m.CalleeIncarnation != n.incarnation:
		return nil, fault.New(fault.Unavailable, "call", "node %s is in incarnation %d, not %d", n.address, n.incarnation, m.CalleeIncarnation)
	}
	return n, nil
}

// newRequest lets the lease machine judge a new call.
func (c *controller) newRequest(n, callee *node, h *held, m *rpc.Message) {
	k := c.callOf(n, callee, h, m)
	k.stage, k.method, k.unlogged = stageWaiting, c.services[h.dst].methodName(callee, m.Method), h.payload
	c.record(n, k)
	c.count.Calls++
	c.callEvent(CallHeld, k)
	if k.refusal = c.atA1(k, m.Pointers); k.refusal != nil {
		c.refuseCall(k, h, &m.Header)
		return
	}
	v := verdict(func(st lease.Step, err error) { c.judged(k, h, m, st, err) })
	if k.oneway() {
		c.submit(lease.Oneway{ID: k.id(), Caller: k.caller, Callee: k.callee, Pointers: m.Pointers}, v)
	} else {
		c.submit(lease.Call{ID: k.id(), Parent: m.Parent, Caller: k.caller, Callee: k.callee, Pointers: m.Pointers}, v)
	}
}

// judged goes on with a call whose rules are in place, or which is refused.
func (c *controller) judged(k *call, h *held, m *rpc.Message, s lease.Step, err error) {
	switch {
	case err != nil && !k.oneway():
		k.refusal = fault.New(fault.Overloaded, "call", "the switch has no room for the lease: %v", err)
		c.submit(lease.Reply{ID: k.id(), Caller: k.caller, Callee: k.callee}, verdict(func(lease.Step, error) { c.refuseCall(k, h, &m.Header) }))
	case s.Outcome == lease.Refused:
		k.refusal = &fault.Error{Code: s.Refusal.Code(), Op: "call", Msg: s.Refusal.Error()}
		c.refuseCall(k, h, &m.Header)
	case s.Outcome == lease.Done && c.nodes[k.caller] == nil && !k.oneway():
		c.submit(lease.Reply{ID: k.id(), Caller: k.caller, Callee: k.callee}, verdict(func(lease.Step, error) { c.finish(k) }))
	case s.Outcome == lease.Done:
		k.stage = stageRunning
		c.atB1(k)
		c.releaseRequest(k, h, m)
		if k.oneway() {
			c.finish(k)
		}
	}
}

// knownRequest takes another copy of a call on record.
func (c *controller) knownRequest(k *call, h *held, m *rpc.Message) {
	switch {
	case k.caller != h.src:
		c.refuse(h, &m.Header, fault.New(fault.BadRequest, "call", "the call id belongs to another node"))
	case k.stage == stageWaiting || k.stage == stageReplying:
		c.count.Duplicates++
	case k.refusal != nil:
		c.count.Duplicates++
		c.except(h, &m.Header, k.refusal)
	case c.logging() && k.stage == stageFinished && !k.oneway():
		c.count.Duplicates++
		c.releaseLogged(k)
	default:
		c.count.Duplicates++
		c.releaseRequest(k, h, m) // a callee that has done it answers from its cache
	}
}

// releaseRequest lets a call go on to its callee.
func (c *controller) releaseRequest(k *call, h *held, m *rpc.Message) {
	n := c.nodes[k.callee]
	if n == nil || n.incarnation != k.incarnation || n.blade.port == nil {
		if k.stage == stageRunning && !k.oneway() {
			c.steps(c.leases.Cut(k.id())) // it failed while the rules were being written
			return
		}
		c.except(h, &m.Header, fault.New(fault.Unavailable, "call", "node %s is gone", k.callee))
		return
	}
	rpc.SetReleased(h.payload, k.incarnation)
	c.release(h, hopOf(n.blade.port.num))
	c.callEvent(CallReleased, k)
}

// callEnded answers for a callee that is gone.
func (c *controller) callEnded(id rpc.ID) {
	k := c.calls[id]
	if k == nil || k.stage == stageFinished {
		return
	}
	k.refusal = fault.New(fault.Unavailable, "call", "node %s is gone", k.callee)
	c.keepRefusal(k, k.refusal)
	c.callEvent(CallEnded, k)
	if c.nodes[k.caller] != nil && k.to.IsValid() && !k.settled {
		c.send(0, (&held{src: k.caller, dst: k.to, srcPort: rackaddr.PortRPC, dstPort: rackaddr.PortRPC}).reply(exception(&k.header, k.refusal)))
	}
	c.finish(k)
}

// callEvent tells subscribers about a call, with its refusal if it has one.
func (c *controller) callEvent(kind EventKind, k *call) {
	if !c.narrate {
		return
	}
	e := Event{Kind: kind, Node: k.caller, Peer: k.callee, Service: k.service, Method: k.method, Call: k.id().String()}
	if k.refusal != nil {
		e.Code, e.Message = k.refusal.Code, k.refusal.Msg
	}
	c.event(e)
}
