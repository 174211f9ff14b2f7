package rpc

import (
	"net/netip"

	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// The switch judges calls and answers (docs/rights.md). What it does not permit comes back to its sender, with the reason:
//
//	caller ── CALL ──▶ switch     lent: it is sent again after a while
//	caller ◀─ CALL, turned ─┘     denied, gone, never begun: that is its answer
//
//	callee ── REPLY ──▶ switch    lent: the next copy of the call asks for it again
//	callee ◀─ REPLY, turned ┘     denied: the callee answers with an exception instead

// turnedBack takes a message that the switch has turned around: its source is whom it was for.
func (n *Node) turnedBack(from netip.Addr, m *rpcpacket.Message) {
	switch m.Type {
	case rpcpacket.Call, rpcpacket.Oneway, rpcpacket.Ask:
		n.notPassed(from, m)
	case rpcpacket.Reply, rpcpacket.Exception:
		if m.Turned == rpcpacket.Denied && m.Code != PermissionDenied {
			n.send(netip.AddrPortFrom(from, rackaddr.PortRPC), n.deniedAnswer(m))
		}
	default:
		n.malformed(from)
	}
}

// The reasons, for people.
const (
	whyDenied = "the switch does not let the call pass: it names a region to which its caller has no right, or that is handed over already"
	whyGone   = "the node that was called is gone"
)

// notPassed takes a call, one-way or question of this node's that has not passed.
func (n *Node) notPassed(from netip.Addr, m *rpcpacket.Message) {
	n.out.mu.Lock()
	call := n.out.core.Out(m.Call)
	ours := call != nil && call.Slot == m.Slot && call.Number == m.Number && call.Node == from.As16()
	if ours && m.Turned == rpcpacket.Lent {
		n.out.core.Postpone(n.now(), m.Call)
		n.wakeAt(call.Due())
	}
	n.out.mu.Unlock()
	if !ours {
		n.stats.duplicates.Add(1)
		return
	}
	h := m.Header
	h.Type, h.Turned, h.Flags, h.CalleeIncarnation = rpcpacket.Exception, rpcpacket.NotTurned, rpcpacket.FlagUnbegun.WithPolicy(m.Flags.Policy()), 0
	why := whyGone
	switch m.Turned {
	case rpcpacket.Lent:
		return
	case rpcpacket.Denied:
		h.Code, why = PermissionDenied, whyDenied
	case rpcpacket.NeverBegun:
		h.Code = Unavailable
	default:
		h.Code = Unavailable
		h.Flags &^= rpcpacket.FlagUnbegun
	}
	if n.completeWith(nil, rpcpacket.Message{Header: h, Payload: []byte(why)}, from) {
		n.interrupt() // whoever waits may be reading
	}
}

// deniedAnswer is what a callee says in the place of an answer that may not hand over what it names. It is said again to each copy of the
// call.
func (n *Node) deniedAnswer(m *rpcpacket.Message) []byte {
	h := m.Header
	h.Type, h.Code, h.Turned, h.CalleeIncarnation = rpcpacket.Exception, PermissionDenied, rpcpacket.NotTurned, n.self.Incarnation
	h.Flags = rpcpacket.Flags(0).WithPolicy(m.Flags.Policy())
	const why = "the answer names a region that its node may not hand over"
	return (&rpcpacket.Message{Header: h, Payload: []byte(why)}).Append(nil)
}
