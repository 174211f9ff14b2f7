package gatekeeper

import (
	"net/netip"

	"github.com/bifrost-rack/bifrost/gatekeeper/callgraph"
	"github.com/bifrost-rack/bifrost/gatekeeper/execution"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/frame"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Nodes hand executions of direct calls over that need the Gatekeeper (execution, enlist.go;
// rpc, enlist.go):
//
//	ENLIST  caller's address, whether it runs, CALL ─▶ logged ─▶ ACK
//	FORGET  ids                                     ─▶ struck out ─▶ ACK with them
//	ask     ◀─ an answer with pointers is for an execution that is not enlisted

// forgetItem is how many bytes name a call in a FORGET: its id comes first.
const forgetItem = 32

// enlistment takes a message about direct calls.
func (c *controller) enlistment(n *node, h *held, m *rpcpacket.Message) {
	switch {
	case c.cfg.Ledgers != LedgersTruth, m.CallerIncarnation != n.incarnation:
		c.count.Malformed++
	case m.Type == rpcpacket.Call:
		c.enlist(n, h, m)
	case len(m.Payload)%forgetItem != 0:
		c.count.Malformed++
	default:
		c.forgetDirect(n, m.Payload, m.Floor)
	}
}

// enlist takes a direct call over.
func (c *controller) enlist(n *node, h *held, m *rpcpacket.Message) {
	inner, caller, runs, why := enlisted(n, m, c.secret != endpoint.Secret{})
	if why != nil {
		c.malformedCall(h, &m.Header, why)
		return
	}
	_, known := c.table.Where(inner.Call)
	if c.overloaded(c.pressure.stalled || !known && !c.pressure.fits(len(h.payload), allocationMark)) {
		return
	}
	if s := c.services[rackaddr.ServiceOf(inner.Service)]; s != nil && !known {
		// What the graph refuses runs all the same: it runs already, and waits for nothing yet.
		_ = c.enter(callgraph.Call{
			ID: inner.Call, Parent: m.Parent, Policy: inner.Flags.Policy(), Caller: callgraph.Node(caller), Callee: n.identity(),
			Service: s.name, Method: s.methodName(n, inner.Method), Serial: s.stateful(), Begun: s.stateful(),
		})
		if runs {
			c.graph.Delivered(inner.Call, n.identity(), c.now)
		}
	}
	v, o := c.table.Enlist(execution.Request{
		Message: &inner, Datagram: m.Payload[enlistHead:], Caller: caller, Callee: n.logged(), Now: c.now,
		Serial: n.exports[rackaddr.ServiceOf(inner.Service)].stateful,
	}, execution.Enlistment{Runs: runs, Receipt: m.Call, Number: m.Order, Floor: m.Floor})
	if v == execution.Stale && !known {
		c.graph.Remove(inner.Call)
	}
	c.judgedExact(v)
	c.execute(o)
}

// enlistHead is what stands in front of the CALL in an ENLIST: the caller's address, and
// whether the call runs.
const enlistHead = 17

// enlisted reads an ENLIST. Where ids have keys, those of executions' calls are no session's.
func enlisted(n *node, m *rpcpacket.Message, keyed bool) (inner rpcpacket.Message, caller wal.Node, runs bool, why *fault.Error) {
	if len(m.Payload) < enlistHead {
		return inner, caller, false, fault.New(fault.BadRequest, "enlist", "%d bytes", len(m.Payload))
	}
	inner, err := rpcpacket.Parse(m.Payload[enlistHead:])
	flags := inner.Flags
	switch {
	case err != nil:
		return inner, caller, false, fault.New(fault.BadRequest, "enlist", "%v", err)
	case inner.Type != rpcpacket.Call || !flags.Exact() || flags&rpcpacket.FlagEnlist == 0 || len(inner.Pointers) > 0:
		return inner, caller, false, fault.New(fault.BadRequest, "enlist", "call %s is no direct call", inner.Call)
	case n.exports[rackaddr.ServiceOf(inner.Service)] == nil:
		return inner, caller, false, fault.New(fault.BadRequest, "enlist", "the node does not serve what call %s is for", inner.Call)
	}
	caller = wal.Node{Address: netip.AddrFrom16([16]byte(m.Payload[:16])), Incarnation: inner.CallerIncarnation}
	session := flags&rpcpacket.FlagSession != 0
	if session && !rpcpacket.Owns(caller.Address, inner.Call.Session()) || !session && keyed && !inner.Call.Derived() {
		return inner, caller, false, fault.New(fault.BadRequest, "enlist", "call %s is not of node %s", inner.Call, caller.Address)
	}
	return inner, caller, m.Payload[16] == 1, nil
}

// forgetDirect takes a node's word that nobody asks for direct calls.
func (c *controller) forgetDirect(n *node, items []byte, floor uint64) {
	var ids []rpcpacket.ID
	ack := rpcpacket.Message{Header: rpcpacket.Header{Type: rpcpacket.Ack, Flags: rpcpacket.FlagReleased | rpcpacket.FlagEnlist}}
	for ; len(items) > 0; items = items[forgetItem:] {
		ids = append(ids, rpcpacket.ID(items[:16]))
		ack.Payload = append(ack.Payload, items[:16]...)
	}
	c.execute(c.table.ForgetDirect(n.address, ids, floor))
	c.tellNode(n.address, &ack)
}

// askToEnlist has a node enlist the execution that has made a call: the call's answer is
// held back until then.
func (c *controller) askToEnlist(e rpcpacket.ID, at netip.Addr, call rpcpacket.ID) {
	c.tellNode(at, &rpcpacket.Message{Header: rpcpacket.Header{Type: rpcpacket.Ack, Flags: rpcpacket.FlagReleased | rpcpacket.FlagEnlist, Call: call, Parent: e}})
}

// tellNode sends a node a message of ours.
func (c *controller) tellNode(to netip.Addr, m *rpcpacket.Message) {
	c.send(0, frame.UDP6{
		Src: netip.AddrPortFrom(rackaddr.Gatekeeper, rackaddr.PortRPC), Dst: netip.AddrPortFrom(to, rackaddr.PortRPC), Payload: m.Append(nil),
	}.Append(nil))
}
