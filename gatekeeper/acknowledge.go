package gatekeeper

import (
	"net/netip"

	"github.com/bifrost-rack/bifrost/gatekeeper/log"
	"github.com/bifrost-rack/bifrost/internal/frame"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	rpc "github.com/bifrost-rack/bifrost/rpc/packet"
)

// ack tells a node that a message of the call is logged, or that nobody will ask
// for its answer any more.
func (c *controller) ack(to *node, header rpc.Header, flags rpc.Flags, callee uint32) {
	m := rpc.Message{Header: header}
	m.Type, m.Code, m.Flags, m.CalleeIncarnation = rpc.Ack, 0, rpc.FlagReleased|flags, callee
	c.send(0, frame.UDP6{
		Src: netip.AddrPortFrom(rackaddr.Gatekeeper, rackaddr.PortRPC), Dst: netip.AddrPortFrom(to.address, rackaddr.PortRPC), Payload: m.Append(nil),
	}.Append(nil))
}

// acknowledged reports whether a call's answer is sent until we say that it is
// logged; that of others, the caller's floor lets go.
func acknowledged(h *rpc.Header) bool { return h.Flags&rpc.FlagSession == 0 || h.Flags.Exact() }

// acknowledgeReply tells the callee that its answer is logged. The packet leaves
// when that is so, like any.
func (c *controller) acknowledgeReply(k *call) {
	if c.logging() && acknowledged(&k.header) {
		c.acknowledge(k)
	}
}

// acknowledgeOneway tells the caller that an exactly-once one-way is logged.
func (c *controller) acknowledgeOneway(k *call) {
	if n := c.nodes[k.caller]; n != nil && c.logging() && k.oneway() && k.header.Flags.Exact() {
		c.ack(n, k.header, k.header.Flags&rpc.FlagSession, k.incarnation)
	}
}

// settledReply takes a reply of node n that nobody waits for: the completion of a
// one-way call, or the answer to a held call that is not on record any more. With
// a log every held call is on record until it is settled.
func (c *controller) settledReply(k *call, n *node, h *held, m *rpc.Message) bool {
	if !c.logging() {
		return false
	}
	switch {
	case m.Flags&rpc.FlagDone != 0:
		if k != nil && (!k.oneway() || k.callee != n.address || k.incarnation != n.incarnation) {
			c.count.Foreign++
			return true
		}
		if k != nil && !k.done {
			k.done = true
			c.keepOutcome(k, h.payload)
		}
		c.ack(n, m.Header, rpc.FlagDone, n.incarnation)
		return true
	case k == nil && m.Flags&rpc.FlagHeld != 0 && acknowledged(&m.Header):
		c.count.Late++
		c.ack(n, m.Header, 0, n.incarnation)
		return true
	}
	return false
}

// releaseLogged answers another copy of a finished call from the log.
func (c *controller) releaseLogged(k *call) {
	r, ok, err := c.cfg.Store.Get(log.KindReply, log.ID(k.id()))
	if err != nil {
		c.count.Failures++
		c.log.Error("the log does not give a reply back", "call", k.id(), "error", err)
	}
	if !ok || err != nil {
		return // the caller asks again
	}
	c.count.Recalled++
	c.send(0, frame.UDP6{
		Src: netip.AddrPortFrom(k.callee, rackaddr.PortRPC), Dst: netip.AddrPortFrom(k.caller, rackaddr.PortRPC), Payload: r.Packet,
	}.Append(nil))
	c.callEvent(ReplyReleased, k)
}
