package gatekeeper

import (
	"errors"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/packet"
	"github.com/bifrost-rack/bifrost/gatekeeper/callgraph"
	"github.com/bifrost-rack/bifrost/gatekeeper/log"
	"github.com/bifrost-rack/bifrost/gatekeeper/p4rtclient"
	"github.com/bifrost-rack/bifrost/internal/fault"
	rpc "github.com/bifrost-rack/bifrost/rpc/packet"
)

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
func (s *service) methodName(n *node, wire rpc.Method) string {
	if x := n.exports[s.address]; x != nil {
		if m, ok := x.methods[wire]; ok {
			return m.Name
		}
	}
	return wire.String()
}

// atA1 enters a held call that its caller has sent. It is refused if it would wait
// for itself, or if there are too many.
func (c *controller) atA1(k *call, pointers []packet.Pointer) *fault.Error {
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
func (c *controller) atB2(k *call, m *rpc.Message) {
	c.graph.Finished(k.id(), c.now)
	c.traceCall(TraceReplied, k, codeOf(m))
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
func (c *controller) unheld(from, to *node, s *service, m *rpc.Header) *fault.Error {
	k := callgraph.Call{
		ID: m.Call, Parent: m.Parent, Policy: m.Flags.Policy(), Caller: from.identity(), Callee: to.identity(),
		Service: s.name, Method: s.methodName(to, m.Method), Serial: s.stateful(), Oneway: m.Type == rpc.Oneway, Loose: true,
	}
	c.traceLoose(&k)
	return c.enter(k)
}

// callDigest is the digest of calls and replies that are not held.
const callDigest = "call_digest_t"

// callSeen takes a sample of it. A call that is held besides, for want of a route,
// is judged there.
func (c *controller) callSeen(fields []p4rtclient.Value) {
	if len(fields) != 6 {
		return
	}
	kind, _ := fields[0].Uint64()
	src, _ := fields[4].Addr()
	dst, _ := fields[5].Addr()
	call, _ := fields[1].Addr() // of 128 bits, too
	parent, _ := fields[2].Addr()
	method, _ := fields[3].Addr()
	m := rpc.Header{Type: rpc.Type(kind), Call: call.As16(), Parent: parent.As16(), Method: method.As16()} //nolint:gosec // 8 bits
	switch m.Type {
	case rpc.Call, rpc.Oneway:
		from, s := c.nodes[src], c.services[dst]
		if from == nil || s == nil {
			return
		}
		if to := s.route(m.Method, m.Call); to != nil {
			_ = c.unheld(from, to, s, &m)
			c.parentSeen(m.Call)
		}
	case rpc.Reply, rpc.Exception:
		v, ok := c.graph.Call(m.Call)
		if ok && v.Loose && v.Callee.Address == src && v.Caller.Address == dst {
			c.graph.Returned(m.Call, c.now)
			if c.tracer != nil {
				c.tracer(TraceRecord{Time: c.now, Stage: TraceAnswered, Call: m.Call, Node: log.Node{Address: dst}})
			}
		}
	}
}
