package gatekeeper

import (
	"crypto/hmac"
	"encoding/binary"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/gatekeeper/callgraph"
	"github.com/bifrost-rack/bifrost/gatekeeper/lease"
	"github.com/bifrost-rack/bifrost/gatekeeper/p4rtclient"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/frame"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// readHeld reads what a node sends. It is false if the sender is no node, or the packet
// is malformed, which the sender has been told then.
func (c *controller) readHeld(h *held) (n *node, m rpcpacket.Message, ok bool) {
	if n = c.caller(h); n == nil {
		return nil, m, false
	}
	m, err := rpcpacket.Parse(h.payload)
	if err != nil {
		c.malformedCall(h, &m.Header, err)
		return nil, m, false
	}
	return n, m, true
}

// heldCall takes a call, reply, exception or one-way that the switch holds.
func (c *controller) heldCall(h *held) {
	n, m, ok := c.readHeld(h)
	if !ok {
		return
	}
	exact := m.Flags.Policy() != rpcpacket.PolicyNone
	switch m.Type {
	case rpcpacket.Call, rpcpacket.Oneway:
		if exact {
			c.exactRequest(n, h, &m)
			return
		}
		c.heldRequest(n, h, &m)
	case rpcpacket.Reply, rpcpacket.Exception:
		if exact {
			c.directReply(n, h, &m)
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
func (c *controller) malformedCall(h *held, m *rpcpacket.Header, err error) {
	c.count.Malformed++
	c.logger.Debug("malformed call", "from", h.src, "error", err)
	if m.Type == rpcpacket.Call || m.Type == rpcpacket.Oneway {
		c.except(h, m, fault.New(fault.BadRequest, "call", "%v", err))
	}
}

// heldRequest takes a call or one-way.
func (c *controller) heldRequest(n *node, h *held, m *rpcpacket.Message) {
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
	case m.Flags&rpcpacket.FlagSession == 0:
		c.malformedCall(h, &m.Header, fault.New(fault.BadRequest, "call", "a call of policy none needs an id of a session"))
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
	if why := c.tooLarge(len(h.payload)); why != nil {
		c.refuse(h, &m.Header, why)
		return
	}
	if c.overloaded(c.leases.Pending() >= c.cfg.Limits.Held || c.pressure.keepsAway(!m.Parent.IsZero(), len(h.payload))) {
		return
	}
	callee, why := c.choose(h, &m.Header)
	if why == moving {
		c.comeAgain(h, &m.Header)
		return
	}
	if why == nil && c.park(h, m) {
		return // it is judged later
	}
	full := c.charges[n.address] >= c.cfg.Limits.NodeCalls
	if why == nil && full {
		why = fault.New(fault.Overloaded, "call", "node %s has %d calls on record, its maximum", n.address, c.charges[n.address])
	}
	switch {
	case why != nil && callee != nil && !full:
		c.refuseFor(n, callee, h, m, why)
	case why != nil:
		c.refuse(h, &m.Header, why)
	default:
		c.newRequest(n, callee, h, m)
	}
}

// refuseFor refuses a call, and puts it on record: when the callee is back, a late copy
// of it gets the same answer.
func (c *controller) refuseFor(n, callee *node, h *held, m *rpcpacket.Message, why *fault.Error) {
	k := c.callOf(n, callee, h, m)
	k.stage, k.refusal = stageFinished, why
	c.addCall(k)
	c.record(n, k)
	c.keepRefusal(k, why)
	c.refuse(h, &m.Header, why)
}

// callOf makes a record of a held call to a service.
func (c *controller) callOf(n, callee *node, h *held, m *rpcpacket.Message) *call {
	return &call{
		header: m.Header, to: h.dst, caller: n.address, callee: callee.address, incarnation: callee.incarnation,
		service: c.services[h.dst].name, method: m.Method.String(), lent: m.Pointers,
	}
}

// serviceHash is the part of a service's address that call headers repeat.
func serviceHash(a netip.Addr) uint64 {
	b := a.As16()
	return binary.BigEndian.Uint64(b[8:])
}

// choose finds the callee of a call that is addressed to a service. With an error, it is
// who will be when it is back, nil if that is nobody.
func (c *controller) choose(h *held, m *rpcpacket.Header) (*node, *fault.Error) {
	s := c.services[h.dst]
	if s == nil || len(s.exports) == 0 && len(s.routes) == 0 {
		if s != nil {
			return nil, fault.New(fault.Unavailable, "call", "no node exports service %s at present", s.name)
		}
		return nil, fault.New(fault.NoSuchMethod, "call", "no node exports the service at %s", h.dst)
	}
	n := s.route(m.Method, m.Call)
	if n == nil && !s.has(m.Method) {
		n = s.asked(m.Call)
	}
	var x *exported // who waits, if nobody serves
	if n == nil {
		x = c.awaited(s, m.Method, m.Call)
	}
	switch {
	case x != nil && x.node.lost:
		return nil, fault.New(fault.Unavailable, "call", "the state of service %s is lost: deploy it anew", s.name)
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
func (c *controller) newRequest(n, callee *node, h *held, m *rpcpacket.Message) {
	k := c.callOf(n, callee, h, m)
	k.stage, k.method, k.unlogged = stageWaiting, c.services[h.dst].methodName(callee, m.Method), h.payload
	c.addCall(k)
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
func (c *controller) judged(k *call, h *held, m *rpcpacket.Message, s lease.Step, err error) {
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
func (c *controller) knownRequest(k *call, h *held, m *rpcpacket.Message) {
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
	case k.to.IsValid() && k.to != h.dst, k.oneway() != (m.Type == rpcpacket.Oneway), !samePointers(k.lent, m.Pointers):
		c.malformedCall(h, &m.Header, errOtherPointers)
	default:
		c.count.Duplicates++
		c.releaseRequest(k, h, m) // a callee that has done it answers from its cache
	}
}

// releaseRequest lets a call go on to its callee.
func (c *controller) releaseRequest(k *call, h *held, m *rpcpacket.Message) {
	n := c.nodes[k.callee]
	if n == nil || n.incarnation != k.incarnation || n.blade.port == nil {
		if k.stage == stageRunning && !k.oneway() {
			c.steps(c.leases.Cut(k.id())) // it failed while the rules were being written
			return
		}
		c.except(h, &m.Header, fault.New(fault.Unavailable, "call", "node %s is gone", k.callee))
		return
	}
	rpcpacket.SetReleased(h.payload, k.incarnation)
	c.release(h, hopOf(n.blade.port.num))
	c.callEvent(CallReleased, k)
}

// callEnded answers for a callee that is gone.
func (c *controller) callEnded(id rpcpacket.ID) {
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

// How calls come into the call graph, and leave it. Held calls do so by the
// packets that the switch holds. The others are known from digests, which may be
// lost or late; so they decide nothing but what people see, with one exception: a
// call into a stateful service. There is no route to one, so every call into it is
// held (reasonNoRoute), and is refused if it would wait for itself.

// Digests of calls come some at a time, or each would cost a rack as much as the call
// does: digestSize of them, or those of digestWait.
const (
	digestSize = 64
	digestWait = time.Millisecond
)

// looseAge is after how much silence a call that was not held is taken for over.
// Its caller sends it again every second while it waits.
const looseAge = 10 * time.Second

// identity is a node as the call graph knows it.
func (n *node) identity() callgraph.Node {
	return callgraph.Node{Address: n.address, Incarnation: n.incarnation}
}

// stateful reports whether the service runs one call at a time.
func (s *service) stateful() bool {
	return len(s.exports) > 0 && s.exports[0].stateful
}

// methodName is a method's full name, as the node that serves it exports it.
func (s *service) methodName(n *node, wire rpcpacket.Method) string {
	if x := n.exports[s.address]; x != nil {
		if m, ok := x.methods[wire]; ok {
			return m.Name
		}
	}
	return wire.String()
}

// atA1 enters a held call that its caller has sent. It is refused if it would wait
// for itself, or if there are too many.
func (c *controller) atA1(k *call, pointers []dsmpacket.Pointer) *fault.Error {
	c.traceCall(TraceSent, k, fault.OK)
	s := c.services[k.to]
	return c.enter(callgraph.Call{
		ID: k.id(), Parent: k.header.Parent, Policy: k.header.Flags.Policy(), Pointers: pointers,
		Caller:  callgraph.Node{Address: k.caller, Incarnation: k.header.CallerIncarnation},
		Callee:  callgraph.Node{Address: k.callee, Incarnation: k.incarnation},
		Service: k.service, Method: k.method, Serial: s != nil && s.stateful(),
		Oneway: k.oneway(), Loose: k.oneway(), // nobody tells of a one-way's end
	})
}

// enter puts a call into the graph; one that is there already may stay.
func (c *controller) enter(k callgraph.Call) *fault.Error {
	if _, ok := c.graph.Quietest(); !ok && k.Loose {
		c.timers = true
	}
	err := c.graph.Sent(k, c.now)
	var deadlock *callgraph.Deadlock
	switch {
	case err == nil, errors.Is(err, callgraph.ErrKnown):
		return nil
	case errors.As(err, &deadlock) && deadlock.Loose && k.Loose && !c.unparking:
		return doubtful
	case errors.As(err, &deadlock):
		c.count.Deadlocks++
		return &fault.Error{Code: deadlock.Code(), Op: "call", Msg: deadlock.Error()}
	}
	return &fault.Error{Code: fault.CodeOf(err), Op: "call", Msg: err.Error()}
}

// atB1 notes that a held call has gone on to its callee.
func (c *controller) atB1(k *call) {
	c.graph.Delivered(k.id(), callgraph.Node{Address: k.callee, Incarnation: k.incarnation}, c.now)
	c.traceCall(TraceDelivered, k, fault.OK)
}

// atB2 notes that the callee of a held call has finished it.
func (c *controller) atB2(k *call, m *rpcpacket.Message) {
	c.graph.Finished(k.id(), c.now)
	c.traceCall(TraceReplied, k, m.Outcome())
}

// atA2 takes a held call out: its reply has gone on, or an exception in its place.
// A one-way that has gone on is being executed still.
func (c *controller) atA2(k *call) {
	if !k.oneway() || k.refusal != nil {
		c.graph.Returned(k.id(), c.now)
		c.traceCall(TraceAnswered, k, fault.OK)
	}
}

// unheld enters a call that carries nothing for which it would be held.
func (c *controller) unheld(from, to *node, s *service, m *rpcpacket.Header) *fault.Error {
	k := callgraph.Call{
		ID: m.Call, Parent: m.Parent, Policy: m.Flags.Policy(), Caller: from.identity(), Callee: to.identity(),
		Service: s.name, Method: s.methodName(to, m.Method), Serial: s.stateful(), Oneway: m.Type == rpcpacket.Oneway, Loose: true,
	}
	c.traceLoose(&k)
	return c.enter(k)
}

// callDigest is the digest of calls and replies that are not held.
const callDigest = "call_digest_t"

// callSeen takes a sample of it. A call that is held besides, for want of a route,
// is judged there.
func (c *controller) callSeen(fields []p4rtclient.Value) {
	if len(fields) != 7 {
		return
	}
	kind, _ := fields[0].Uint64()
	src, _ := fields[4].Addr()
	dst, _ := fields[5].Addr()
	call, _ := fields[1].Addr() // of 128 bits, too
	parent, _ := fields[2].Addr()
	method, _ := fields[3].Addr()
	code, _ := fields[6].Uint64()
	m := rpcpacket.Header{Type: rpcpacket.Type(kind), Call: call.As16(), Parent: parent.As16(), Method: method.As16(), Code: fault.Code(code)} //nolint:gosec // 8 bits
	switch m.Type {
	case rpcpacket.Call, rpcpacket.Oneway:
		from, s := c.nodes[src], c.services[dst]
		if from == nil || s == nil {
			return
		}
		if to := s.route(m.Method, m.Call); to != nil {
			_ = c.unheld(from, to, s, &m)
			c.parentSeen(m.Call)
		}
	case rpcpacket.Reply, rpcpacket.Exception:
		v, ok := c.graph.Call(m.Call)
		if ok && v.Loose && v.Callee.Address == src && v.Caller.Address == dst {
			c.graph.Returned(m.Call, c.now)
			if c.tracer != nil {
				c.tracer(TraceRecord{Time: c.now, Stage: TraceAnswered, Call: m.Call, Node: wal.Node{Address: dst}, Code: m.Outcome()})
			}
		}
	default: // an ACK ends no call
	}
}

// stage is how far a call has come.
type stage uint8

const (
	stageWaiting  stage = iota + 1 // held, until its rules are in place
	stageRunning                   // with the callee
	stageReplying                  // its reply is held, until its rules are in place
	stageFinished                  // the reply has gone on, or an exception of ours
)

var stageNames = [...]string{"", "waiting", "running", "replying", "finished"}

// call is a held call of policy none on record: what makes a second copy of any of its packets
// harmless. It stays until its caller has settled it or is gone.
type call struct {
	header         rpcpacket.Header // of its first copy
	to             netip.Addr       // the service's address; none for a call that was not held
	caller, callee lease.Node
	incarnation    uint32 // the callee's, to which the call is bound
	service        string
	method         string
	lent           []dsmpacket.Pointer // by the call, or handed over by the one-way
	stage          stage
	settled        bool // the caller will not ask again
	// refusal is the exception that the caller got from us instead of a reply.
	refusal *fault.Error
	// unlogged is the packet that is being judged, until that is logged.
	unlogged []byte
}

func (k *call) id() rpcpacket.ID { return k.header.Call }

// oneway reports whether nobody will answer the call.
func (k *call) oneway() bool { return k.header.Type == rpcpacket.Oneway }

// charged is whose quota the record of a call takes: its caller's or, of a call that is known by its answer alone, that of whoever has
// sent the answer. Anybody may say that it answers a call.
func (k *call) charged() lease.Node {
	if k.to.IsValid() {
		return k.caller
	}
	return k.callee
}

// addCall puts a new call on record, and charges it.
func (c *controller) addCall(k *call) {
	c.calls[k.id()] = k
	c.charges[k.charged()]++
}

// callsGone drops what is on record of the answers of a node that is gone for good: no copy of them comes any more.
func (c *controller) callsGone(a lease.Node) {
	var all []*call
	for _, k := range c.calls {
		if k.caller != a && k.charged() == a {
			all = append(all, k)
		}
	}
	slices.SortFunc(all, func(a, b *call) int { return a.id().Compare(b.id()) })
	for _, k := range all {
		k.settled = true
		c.forgetSettled(k)
		if n := c.nodes[k.caller]; n != nil {
			n.forgetSession(k.id().Session(), a)
		}
	}
}

// record ties a call to its caller.
func (c *controller) record(n *node, k *call) {
	n.calls[k] = struct{}{}
	s := n.sessionOf(k.id())
	s.calls = append(s.calls, k)
}

// finish ends a call's life on the wire.
func (c *controller) finish(k *call) {
	k.stage = stageFinished
	c.atA2(k)
	c.forgetSettled(k)
	c.lentOver(k.header.Parent)
}

// forgetSettled drops a call's record if it is finished and nobody can ask for it.
func (c *controller) forgetSettled(k *call) {
	if k.stage != stageFinished || !k.settled || c.calls[k.id()] != k {
		return
	}
	delete(c.calls, k.id())
	if c.charges[k.charged()]--; c.charges[k.charged()] == 0 {
		delete(c.charges, k.charged())
	}
	delete(c.orphans, k)
	c.dropCall(k)
	n := c.nodes[k.caller]
	if n == nil {
		return
	}
	delete(n.calls, k)
	if s := n.sessions[k.id().Session()]; s != nil {
		s.calls = slices.DeleteFunc(s.calls, func(o *call) bool { return o == k })
	}
}

// forgetCaller settles all calls of a node that is gone; those that run go on.
func (c *controller) forgetCaller(n *node) {
	for _, k := range n.records() {
		k.settled = true
		c.forgetSettled(k)
		if k.stage == stageRunning && !k.oneway() {
			c.orphans[k] = c.now.Add(probeInterval)
			c.timers = true
		}
	}
	c.dropWindows(n)
	c.reclaimAllUnknown(n)
	n.sessions, n.calls = nil, nil
}

// sortedCalls returns the calls on record in the order of their ids.
func (c *controller) sortedCalls() []*call {
	return slices.SortedFunc(maps.Values(c.calls), func(a, b *call) int { return a.id().Compare(b.id()) })
}

// records returns the calls of a node in the order of their ids.
func (n *node) records() []*call {
	return slices.SortedFunc(maps.Keys(n.calls), func(a, b *call) int { return a.id().Compare(b.id()) })
}

// What the switch holds of calls with a policy other than none. Each goes straight to the node that serves it; the Gatekeeper is told
// of rights, and of what nobody asks for any more.
//
//	CALL with pointers, to a node ─▶ loan.go
//	FORGET  ids  ─▶ struck out ─▶ ACK with them
//	SETTLED      ─▶ a client asks for no earlier call of a session

// forgetItem is how many bytes name a call in a FORGET: its id comes first.
const forgetItem = 32

// exactRequest takes a call or one-way, or what a node says of calls.
func (c *controller) exactRequest(n *node, h *held, m *rpcpacket.Message) {
	switch {
	case rackaddr.NodePrefix.Contains(h.dst):
		c.loanRequest(n, h, m)
	case h.dst != rackaddr.Gatekeeper:
		c.malformedCall(h, &m.Header, fault.New(fault.BadRequest, "call", "a call of policy %s goes to the node that serves it", m.Flags.Policy()))
	case m.CallerIncarnation != n.incarnation:
		c.count.Malformed++
	case m.Flags&(rpcpacket.FlagSettled|rpcpacket.FlagSession) == rpcpacket.FlagSettled|rpcpacket.FlagSession:
		c.settledSession(n, m)
	case m.Flags&rpcpacket.FlagSettled != 0 && m.Type == rpcpacket.Oneway && len(m.Payload)%forgetItem == 0:
		c.forgetDirect(n, m.Payload)
	default:
		c.count.Malformed++
	}
}

// settledSession takes a client's word that it asks no more for calls of a session. It counts
// from the present incarnation only.
func (c *controller) settledSession(n *node, m *rpcpacket.Message) {
	if m.Call.Sequence() != 0 {
		c.count.Malformed++
		return
	}
	if s := n.sessions[m.Call.Session()]; s != nil {
		c.settle(n, s, m.Floor)
	}
	c.settleLoans(n, m.Call.Session(), m.Floor)
	if c.pressure.stalled {
		return // it says so again
	}
	c.tellNode(n.address, &rpcpacket.Message{Header: rpcpacket.Header{Type: rpcpacket.Ack, Call: m.Call, Floor: m.Floor, Flags: rpcpacket.FlagReleased}})
}

// originBytes is how many bytes a call's origin has: a proof, and the hash of the service whose
// execution makes the call, or 0 (rpc, metadata.go).
const originBytes = 24

// proven reports whether a direct call is one of a node's sessions, or of an execution of its own, and whether
// whoever made it has called, with this policy, the node that hands it over. The caller has proven that by what follows
// from the node's key, or from the key of the execution's service or main. So no node hands over a call
// of which it only knows the id, nor one that somebody will make.
func (c *controller) proven(caller netip.Addr, call *rpcpacket.Header, origin []byte) bool {
	var proof, want endpoint.Proof
	policy := call.Flags.Policy()
	service := binary.BigEndian.Uint64(origin[copy(proof[:], origin):])
	switch {
	case call.Flags&rpcpacket.FlagSession != 0:
		if !rpcpacket.Owns(caller, call.Call.Session()) {
			return false
		}
		want = endpoint.NewProver(c.secret.Node(caller)).Prove(call.Call, policy)
	default:
		key, of := c.secret.Service(service), keyOf{service: service}
		if service == 0 {
			key, of = c.secret.Main(call.Parent), keyOf{main: call.Parent}
		}
		var id rpcpacket.ID
		if id, want = endpoint.Child(key, policy, call.Parent, call.Branch, call.Index); id != call.Call || !c.hasKey(caller, of) {
			return false // any node can make a name, and ids with its key
		}
	}
	return hmac.Equal(proof[:], want[:])
}

// forgetDirect takes a node's word that nobody asks for direct calls.
func (c *controller) forgetDirect(n *node, items []byte) {
	var ids []rpcpacket.ID
	foreign := false
	ack := rpcpacket.Message{Header: rpcpacket.Header{Type: rpcpacket.Ack, Flags: rpcpacket.FlagReleased | rpcpacket.FlagSettled}}
	for ; len(items) > 0; items = items[forgetItem:] {
		ids = append(ids, rpcpacket.ID(items[:16]))
		foreign = foreign || !c.takesPart(n, rpcpacket.ID(items[:16]))
	}
	if foreign {
		c.count.Foreign++ // nothing follows from what it says of others' calls
	}
	c.forgetLoans(n, ids)
	for _, id := range ids {
		ack.Payload = append(ack.Payload, id[:]...)
	}
	if len(ids) > 0 {
		c.tellNode(n.address, &ack)
	}
}

// takesPart reports whether a node has made a call, or serves it, as far as the call is known.
func (c *controller) takesPart(n *node, id rpcpacket.ID) bool {
	k := c.loans[id]
	return k == nil || k.caller == n.address || k.callee == n.address
}

// tellNode sends a node a message of ours.
func (c *controller) tellNode(to netip.Addr, m *rpcpacket.Message) {
	c.send(0, frame.UDP6{
		Src: netip.AddrPortFrom(rackaddr.Gatekeeper, rackaddr.PortRPC), Dst: netip.AddrPortFrom(to, rackaddr.PortRPC), Payload: m.Append(nil),
	}.Append(nil))
}
