package gatekeeper

import (
	"encoding/binary"
	"net/netip"
	"strings"

	"github.com/bifrost-rack/bifrost/gatekeeper/lease"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/frame"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/wirefmt"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// maxMessage bounds the text of an exception, in bytes.
const maxMessage = 1024

// release lets a held packet go on, with the checksum that it needs after a
// change or if its host had left it to the network card.
func (c *controller) release(h *held) {
	if err := frame.Fix(h.frame); err != nil {
		c.count.Malformed++ // it was parsed before, so this does not happen
		return
	}
	c.count.Released++
	c.send(0, h.frame)
}

// exception builds the message that answers a call in its callee's place: a refusal of a
// call that nobody has got.
func exception(m *rpcpacket.Header, why *fault.Error) []byte {
	h := *m
	h.Type, h.Code, h.Timeout, h.CalleeIncarnation = rpcpacket.Exception, why.Code, 0, 0
	h.Flags = rpcpacket.FlagReleased | rpcpacket.FlagUnbegun
	h.Flags = h.Flags.WithPolicy(m.Flags.Policy())
	text := why.Msg
	if len(text) > maxMessage {
		text = text[:maxMessage]
	}
	e := rpcpacket.Message{Header: h, Payload: []byte(strings.ToValidUTF8(text, "?"))}
	return e.Append(make([]byte, 0, e.Size()))
}

// except answers a held call with an exception, as from the service's address.
func (c *controller) except(h *held, m *rpcpacket.Header, why *fault.Error) {
	c.send(0, h.reply(exception(m, why)))
}

// refuse is except for a call that never came on record.
func (c *controller) refuse(h *held, m *rpcpacket.Header, why *fault.Error) {
	c.count.Refused++
	c.traceRefused(h, m, why)
	c.event(Event{Kind: CallRefused, Node: h.src, Method: m.Method.String(), Call: m.Call.String(), Code: why.Code, Message: why.Msg})
	c.except(h, m, why)
}

// reason is why the switch held a packet; the enum Reason of p4/bifrost.p4.
type reason uint8

const (
	reasonControl     reason = 1
	reasonCall        reason = 2
	reasonFree        reason = 3
	reasonMemoryReply reason = 4
	reasonNoHome      reason = 5
	reasonNoRoute     reason = 6
	reasonHand        reason = 7
)

// held is a packet that the switch holds for us. Everything in it aliases frame,
// which is ours.
type held struct {
	port    uint16 // of the switch, where it came in
	reason  reason
	frame   []byte
	srcMAC  frame.MAC
	src     netip.Addr
	dst     netip.Addr
	srcPort uint16
	dstPort uint16
	payload []byte // of UDP
}

// parseHeld takes a held frame apart. The UDP checksum is not looked at: a host
// may leave it for its network card, and what goes on gets a new one.
func parseHeld(port uint16, why reason, b []byte) (*held, error) {
	p, err := frame.Parse(b)
	if err != nil {
		return nil, err
	}
	if p.NextHeader != frame.ProtoUDP || len(p.Payload) < frame.UDPSize {
		return nil, wirefmt.Errorf("held packet: next header %d with %d bytes, want UDP", p.NextHeader, len(p.Payload))
	}
	length := int(binary.BigEndian.Uint16(p.Payload[4:]))
	if length != len(p.Payload) {
		return nil, wirefmt.Errorf("held packet: UDP length %d in an IPv6 payload of %d bytes", length, len(p.Payload))
	}
	return &held{
		port: port, reason: why, frame: b, srcMAC: p.SrcMAC, src: p.Src, dst: p.Dst,
		srcPort: binary.BigEndian.Uint16(p.Payload), dstPort: binary.BigEndian.Uint16(p.Payload[2:]),
		payload: p.Payload[frame.UDPSize:],
	}, nil
}

// reply builds a frame that answers the held packet: from where it went to where
// it came from.
func (h *held) reply(payload []byte) []byte {
	return frame.UDP6{
		Src: netip.AddrPortFrom(h.dst, h.dstPort), Dst: netip.AddrPortFrom(h.src, h.srcPort), Payload: payload,
	}.Append(make([]byte, 0, frame.HeaderSize+len(payload)))
}

// packetOut is a frame for the switch; hop 0 lets it look the way up.
type packetOut struct {
	hop   hop
	frame []byte
}

// The answer to a direct call may hand regions over to the caller. It ends the call's loan, or makes
// one that is over at once: this record says that the answer is known, so a copy of it moves nothing.
// When nobody asks for the answer any more the record goes. What protects against copies from then on
// is a number for each slot, which the callee tells: see handedOver.

// results takes the answer to a direct call that did not pass here. It has to show that its call was made to whoever
// answers it. Its caller must be there, in the incarnation that has asked for the answer; and it is the callee that is charged.
func (c *controller) results(n *node, h *held, m *rpcpacket.Message) {
	proven := len(m.Trailer) >= originBytes && c.proven(h.dst, &m.Header, m.Trailer[:originBytes])
	caller := c.nodes[h.dst]
	switch {
	case c.blocks.owner(m.Slot) != h.dst || m.CalleeIncarnation > n.incarnation:
		c.count.Foreign++
		return
	case !proven:
		c.count.Unproven++ // by its caller's fault, or its callee's, whose port this is
		return
	case caller == nil || m.CallerIncarnation != caller.incarnation || c.handedOver.late(n.address, m.Slot, m.Number) || m.Number < c.called[m.Slot].over:
		c.count.Late++
		return
	}
	full := c.handedOver.full(n.address, m.Slot, c.cfg.Limits.NodeSlots)
	if c.overloaded(full || c.lenders[n.address] >= c.cfg.Limits.NodeCalls || c.pressure.keepsAway(false, len(h.payload))) {
		return
	}
	if m.Flags.Policy() == rpcpacket.PolicyNone { // its caller has heard the answers before
		c.settleLoans(caller, m.Slot, m.Number)
	}
	k := &loan{header: headerOf(m), caller: h.dst, callee: h.src, charged: n.address, stage: loanOpen}
	c.addLoan(k)
	c.loanReply(k, n, h, m)
}

// takes reports whether whoever has made a call may still get regions by its answer: nobody would free those of an execution
// that has given the call up and has ended, or of a durable main that is over.
func (c *controller) takes(k *loan) bool { return !k.forgotten && !c.mainOver(k.header.Parent) }

// deny answers a call in the place of a callee that may not hand over what it has answered with.
func (c *controller) deny(k *loan, m *rpcpacket.Header) {
	b := exception(m, k.refusal)
	if k.stage == loanDenied {
		b = rpcpacket.Begun(b)
	}
	c.count.Refused++
	c.send(0, frame.UDP6{
		Src: netip.AddrPortFrom(k.callee, rackaddr.PortRPC), Dst: netip.AddrPortFrom(k.caller, rackaddr.PortRPC), Payload: b,
	}.Append(nil))
}

// keepFloor notes that no message up to a number of a slot hands regions of a callee over any more.
func (c *controller) keepFloor(callee lease.Node, s rpcpacket.Slot, n rpcpacket.Number) {
	if c.handedOver.end(callee, s, n, c.cfg.Limits.NodeSlots) {
		c.keepNumber(callee, s, c.handedOver[callee][s])
	}
}
