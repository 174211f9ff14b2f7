package gatekeeper

import (
	"encoding/binary"
	"net/netip"
	"strings"

	"github.com/bifrost-rack/bifrost/gatekeeper/callgraph"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
	"github.com/bifrost-rack/bifrost/p4switch/shared/wirefmt"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// maxMessage bounds the text of an exception, in bytes.
const maxMessage = 1024

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

// reason is why the switch held a packet; the enum Reason of p4/bifrost.p4.
type reason uint8

const (
	reasonControl reason = 1
	reasonNoHome  reason = 5
	reasonNoRoute reason = 6
	reasonHand    reason = 7
)

// held is a packet that the switch holds for us. Everything in it aliases frame,
// which is ours.
type held struct {
	port    uint16 // of the switch, where it came in
	srcMAC  frame.MAC
	src     netip.Addr
	dst     netip.Addr
	srcPort uint16
	dstPort uint16
	payload []byte // of UDP
}

// parseHeld takes a held frame apart. The UDP checksum is not looked at: a host
// may leave it for its network card, and what goes on gets a new one.
func parseHeld(port uint16, b []byte) (*held, error) {
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
		port: port, srcMAC: p.SrcMAC, src: p.Src, dst: p.Dst,
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

// malformedCall answers what has at least a header; the rest is dropped.
func (c *controller) malformedCall(h *held, m *rpcpacket.Header, err error) {
	c.count.Malformed++
	c.logger.Debug("malformed call", "from", h.src, "error", err)
	if m.Type == rpcpacket.Call || m.Type == rpcpacket.Oneway {
		c.send(0, h.reply(exception(m, fault.New(fault.BadRequest, "call", "%v", err)))) // as from the service's address
	}
}

// serviceHash is the part of a service's address that call headers repeat.
func serviceHash(a netip.Addr) uint64 {
	b := a.As16()
	return binary.BigEndian.Uint64(b[8:])
}

// identity is a node as the call graph knows it.
func (n *node) identity() callgraph.Node {
	return callgraph.Node{Address: n.address, Incarnation: n.incarnation}
}
