package rpc

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/direct"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// ports are the node's endpoints, and the messages that the node makes of what it knows of itself: its address, its incarnation, and how
// long a datagram may be. They do not change.
type ports struct {
	self   *join.Identity
	stats  *counters
	budget int        // bytes of a datagram at most
	rpc    netio.Conn // [node]:45100; answers arrive here, and all leaves from here
	direct netio.Conn // [node]:45105: calls come here
	bulk   netio.Conn // [node]:45103: what exceeds a packet
}

// of is the endpoint from which leaves what is for a port of another node: the one with the same number. What has pointers is held by the switch.
func (p *ports) of(to netip.AddrPort) netio.Conn {
	switch to.Port() {
	case rackaddr.PortRPC:
		return p.rpc
	case rackaddr.PortBulk:
		return p.bulk
	}
	return p.direct
}

// send puts one message on the wire; a failure is a loss like any other.
func (p *ports) send(to netip.AddrPort, datagram []byte) {
	_, _ = p.rpc.WriteBatch([]netio.Message{{Buf: datagram, Remote: to}})
}

// sendDirect sends a message to a node's port for direct calls.
func (p *ports) sendDirect(to netip.Addr, m *rpcpacket.Message) {
	_, _ = p.direct.WriteBatch([]netio.Message{{Buf: m.Append(nil), Remote: netip.AddrPortFrom(to, rackaddr.PortDirect)}}) // a failure is a loss
}

// answerHeader is the header of an answer to a call.
func (p *ports) answerHeader(call *rpcpacket.Message) rpcpacket.Header {
	h := call.Header
	h.Type, h.Timeout, h.Code = rpcpacket.Reply, 0, OK
	h.CalleeIncarnation = p.self.Incarnation
	h.Flags = rpcpacket.Flags(0).WithPolicy(call.Flags.Policy())
	return h
}

// exception makes a system exception in answer to a call, which did not begin if it is
// unbegun.
func (p *ports) exception(call *rpcpacket.Message, code Code, why string, unbegun bool) []byte {
	h := p.answerHeader(call)
	h.Type, h.Code = rpcpacket.Exception, code
	if unbegun {
		h.Flags |= rpcpacket.FlagUnbegun
	}
	why = why[:min(len(why), maxMessage, p.budget-rpcpacket.HeaderSize)]
	m := rpcpacket.Message{Header: h, Payload: []byte(strings.ToValidUTF8(why, ""))}
	return m.Append(nil)
}

// refuse answers a call that is not run, and may have run before.
func (p *ports) refuse(to netip.AddrPort, call *rpcpacket.Message, code Code, why string) {
	p.stats.refused.Add(1)
	p.stats.blame.Add(to.Addr(), code.String())
	p.send(to, p.exception(call, code, why, false))
}

// neverBegan is the answer to a question about a call that has not come, and does not begin any more.
func (p *ports) neverBegan(m *rpcpacket.Message) []byte {
	return p.exception(m, Unavailable, "the call has not come", true)
}

// answerFor is what is said of an execution that is done to a copy of its call. What the answer hands over it hands to the copy's incarnation of the
// caller, in the copy's slot: that incarnation may have used the slot of the first copy again, and no earlier answer hands anything over there.
// The switch judges an answer by the copy's slot, and by the incarnation that sends it.
func (p *ports) answerFor(answer []byte, call *rpcpacket.Header) []byte {
	answer = slices.Clone(answer)
	rpcpacket.SetCaller(answer, call)
	rpcpacket.SetCallee(answer, p.self.Incarnation)
	return answer
}

// accepts is the acknowledgement of a one-way.
func (p *ports) accepts(m *rpcpacket.Message) []byte {
	return (&rpcpacket.Message{Header: p.answerHeader(m)}).Append(nil)
}

// deniedAnswer is what a callee says in the place of an answer that may not hand over what it names. It is said again to each copy of the
// call.
func (p *ports) deniedAnswer(m *rpcpacket.Message) []byte {
	h := m.Header
	h.Type, h.Code, h.Turned, h.CalleeIncarnation = rpcpacket.Exception, PermissionDenied, rpcpacket.NotTurned, p.self.Incarnation
	h.Flags = rpcpacket.Flags(0).WithPolicy(m.Flags.Policy())
	const why = "the answer names a region that its node may not hand over"
	return (&rpcpacket.Message{Header: h, Payload: []byte(why)}).Append(nil)
}

// appendForgets appends the messages that tell a node to forget calls.
func (p *ports) appendForgets(out []netio.Message, node netip.Addr, items []direct.Item) []netio.Message {
	to := netip.AddrPortFrom(node, rackaddr.PortDirect)
	most := (p.budget - rpcpacket.HeaderSize) / rpcpacket.ItemSize
	for len(items) > 0 {
		some := items[:min(len(items), most)]
		items = items[len(some):]
		m := rpcpacket.Message{Header: rpcpacket.Header{
			Type: rpcpacket.Forget, Flags: rpcpacket.FlagSettled.WithPolicy(PolicyRecover), Call: some[0].ID, CallerIncarnation: p.self.Incarnation,
		}}
		for _, i := range some {
			m.Payload = rpcpacket.AppendItem(m.Payload, i.ID, i.Slot, i.Number)
		}
		out = append(out, netio.Message{Buf: m.Append(nil), Remote: to})
	}
	return out
}
