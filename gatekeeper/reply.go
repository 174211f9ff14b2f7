package gatekeeper

import (
	"net/netip"

	"github.com/bifrost-rack/bifrost/dsm/packet"
	"github.com/bifrost-rack/bifrost/gatekeeper/lease"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	rpc "github.com/bifrost-rack/bifrost/rpc/packet"
)

// heldReply takes a reply or exception. It counts only from the node and the
// incarnation that the call was delivered to.
func (c *controller) heldReply(n *node, h *held, m *rpc.Message) {
	if m.CalleeIncarnation != n.incarnation {
		c.count.Foreign++
		return
	}
	var results []packet.Pointer
	if m.Type == rpc.Reply {
		results = m.Pointers
	}
	if _, exact := c.table.Where(m.Call); exact {
		c.count.Foreign++ // its answer would tell its policy
		return
	}
	k := c.calls[m.Call]
	switch {
	case k == nil && len(results) == 0:
		// A reply to a call that was settled, or held by another Gatekeeper: there
		// is nothing to decide about it, and nothing to vouch for.
		c.release(h, 0)
		return
	case k == nil:
		if k = c.unheldCall(n, h, m); k == nil {
			return
		}
	case k.callee != h.src || k.caller != h.dst || k.incarnation != m.CalleeIncarnation:
		c.count.Foreign++
		return
	}
	switch k.stage {
	case stageWaiting, stageReplying:
		c.count.Duplicates++
	case stageFinished:
		if !c.overloaded(c.pressure.stalled) {
			c.count.Duplicates++
			c.releaseReply(k, h, m)
		}
	case stageRunning:
		if c.overloaded(uint64(len(h.payload)) > c.pressure.room) {
			return
		}
		k.stage, k.unlogged = stageReplying, h.payload
		c.atB2(k, m)
		c.callEvent(ReplyHeld, k)
		c.submit(lease.Reply{ID: k.id(), Caller: k.caller, Callee: k.callee, Results: results},
			verdict(func(s lease.Step, _ error) { c.replied(k, h, m, s) }))
	}
}

// unheldCall puts a call on record that was not held, when its reply hands over
// regions. Its caller must be a node.
func (c *controller) unheldCall(n *node, h *held, m *rpc.Message) *call {
	caller := c.nodes[h.dst]
	if caller == nil || m.Flags&rpc.FlagSession == 0 || len(caller.calls) >= c.cfg.Limits.NodeCalls || len(caller.sessions) >= c.cfg.Limits.NodeSessions {
		c.count.Foreign++
		return nil
	}
	s := caller.sessionOf(m.Call)
	if m.Call.Sequence() < max(s.floor, s.replied[n.address]) {
		c.count.Late++
		return nil
	}
	c.settleWith(s, n.address, m)
	k := &call{
		header: m.Header, caller: caller.address, callee: n.address, incarnation: n.incarnation,
		method: m.Method.String(), stage: stageRunning,
	}
	c.record(caller, k)
	return k
}

// settleWith forgets what the caller has settled with this very callee, which
// repeats the caller's floor in its replies. A late copy of such a reply must not
// hand its regions over once more: the callee may have them back by now.
func (c *controller) settleWith(s *session, callee netip.Addr, m *rpc.Message) {
	floor := min(m.Floor, m.Call.Sequence())
	if floor <= s.replied[callee] {
		return
	}
	if s.replied == nil {
		s.replied = map[netip.Addr]uint64{}
	}
	s.replied[callee] = floor
	for i := len(s.calls) - 1; i >= 0; i-- {
		if k := s.calls[i]; k.callee == callee && k.id().Sequence() < floor {
			k.settled = true
			c.forgetSettled(k)
		}
	}
}

// replied goes on with a reply whose rules are in place.
func (c *controller) replied(k *call, h *held, m *rpc.Message, s lease.Step) {
	if s.Outcome == lease.Duplicate {
		return
	}
	if s.Refusal != nil {
		k.refusal = &fault.Error{Code: s.Refusal.Code(), Op: "reply", Msg: s.Refusal.Error()}
	}
	c.releaseReply(k, h, m)
	c.finish(k)
}

// releaseReply lets a reply go on to the caller, or an exception in its place.
func (c *controller) releaseReply(k *call, h *held, m *rpc.Message) {
	if c.nodes[k.caller] == nil {
		return
	}
	if k.refusal != nil {
		c.count.Refused++
		c.callEvent(CallRefused, k)
		b := exception(&m.Header, k.refusal)
		c.send(0, (&held{src: h.dst, dst: h.src, srcPort: rackaddr.PortRPC, dstPort: rackaddr.PortRPC}).reply(b))
		return
	}
	rpc.SetReleased(h.payload, k.incarnation)
	c.release(h, 0)
	c.callEvent(ReplyReleased, k)
}
