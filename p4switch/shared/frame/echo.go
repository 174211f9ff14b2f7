package frame

import "encoding/binary"

// ICMPv6 types of echo (RFC 4443 section 4).
const (
	echoRequest = 128
	echoReply   = 129
)

// echoSize is the length of an echo header in bytes.
const echoSize = 8

// Echo is an ICMPv6 echo request, or the reply to one, in an Ethernet frame.
type Echo struct {
	Packet // Payload is the echo's data
	Reply  bool
	ID     uint16
	Seq    uint16
}

// Append appends the frame, with its checksum, to b.
func (e Echo) Append(b []byte) []byte {
	start := len(b)
	kind := byte(echoRequest)
	if e.Reply {
		kind = echoReply
	}
	e.NextHeader = ProtoICMPv6
	b = e.appendHeaders(b, echoSize+len(e.Payload))
	b = append(b, kind, 0, 0, 0)
	b = binary.BigEndian.AppendUint16(b, e.ID)
	b = binary.BigEndian.AppendUint16(b, e.Seq)
	b = append(b, e.Payload...)
	putChecksum(b[start+EthernetSize:], 2)
	return b
}

// Echo reads the packet as an ICMPv6 echo; other packets, and those with a wrong
// checksum, are none.
func (p *Packet) Echo() (e Echo, ok bool) {
	t := p.Payload
	if p.NextHeader != ProtoICMPv6 || len(t) < echoSize || t[0] != echoRequest && t[0] != echoReply || t[1] != 0 {
		return e, false
	}
	if !sumsUp(p, t) {
		return e, false
	}
	e = Echo{Packet: *p, Reply: t[0] == echoReply, ID: binary.BigEndian.Uint16(t[4:]), Seq: binary.BigEndian.Uint16(t[6:])}
	e.Payload = t[echoSize:]
	return e, true
}

// Answer is the reply to an echo request.
func (e Echo) Answer() Echo {
	e.DstMAC, e.SrcMAC = e.SrcMAC, e.DstMAC
	e.Src, e.Dst = e.Dst, e.Src
	e.HopLimit, e.Reply = 0, true
	return e
}
