package frame

import (
	"encoding/binary"
	"net/netip"

	"github.com/bifrost-rack/bifrost/p4switch/shared/wirefmt"
)

// UDP6 is a UDP datagram over IPv6 in an Ethernet frame.
type UDP6 struct {
	DstMAC, SrcMAC MAC
	Src, Dst       netip.AddrPort
	HopLimit       uint8 // 0 stands for DefaultHopLimit when built
	Payload        []byte
}

// Size is the frame's length in bytes.
func (u UDP6) Size() int { return HeaderSize + len(u.Payload) }

// Append appends the frame, with its checksum, to b. The payload may have
// 65,527 bytes.
func (u UDP6) Append(b []byte) []byte {
	p := Packet{
		DstMAC: u.DstMAC, SrcMAC: u.SrcMAC, Src: u.Src.Addr(), Dst: u.Dst.Addr(),
		NextHeader: ProtoUDP, HopLimit: u.HopLimit,
	}
	start := len(b)
	b = p.appendHeaders(b, UDPSize+len(u.Payload))
	b = binary.BigEndian.AppendUint16(b, u.Src.Port())
	b = binary.BigEndian.AppendUint16(b, u.Dst.Port())
	b = binary.BigEndian.AppendUint16(b, uint16(UDPSize+len(u.Payload)))
	b = append(b, 0, 0)
	b = append(b, u.Payload...)
	putChecksum(b[start+EthernetSize:], 6)
	return b
}

// ParseUDP6 takes a frame with a UDP datagram apart and verifies its checksum.
func ParseUDP6(b []byte) (u UDP6, err error) {
	p, err := Parse(b)
	if err != nil {
		return u, err
	}
	return p.UDP()
}

// UDP reads the packet as a UDP datagram and verifies its checksum; a wrong one
// is ErrChecksum.
func (p *Packet) UDP() (u UDP6, err error) {
	if p.NextHeader != ProtoUDP {
		return u, wirefmt.Errorf("frame: next header %d, want UDP", p.NextHeader)
	}
	t := p.Payload
	if len(t) < UDPSize {
		return u, wirefmt.Errorf("frame: UDP header of %d bytes, want %d", len(t), UDPSize)
	}
	length := int(binary.BigEndian.Uint16(t[4:]))
	if length < UDPSize || length > len(t) {
		return u, wirefmt.Errorf("frame: UDP length %d in an IPv6 payload of %d bytes", length, len(t))
	}
	t = t[:length]
	// RFC 8200 section 8.1: UDP without checksum is not allowed over IPv6.
	if binary.BigEndian.Uint16(t[6:]) == 0 || !sumsUp(p, t) {
		return u, ErrChecksum
	}
	return UDP6{
		DstMAC: p.DstMAC, SrcMAC: p.SrcMAC, HopLimit: p.HopLimit,
		Src:     netip.AddrPortFrom(p.Src, binary.BigEndian.Uint16(t)),
		Dst:     netip.AddrPortFrom(p.Dst, binary.BigEndian.Uint16(t[2:])),
		Payload: t[UDPSize:],
	}, nil
}
