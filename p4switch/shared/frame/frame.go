package frame

import (
	"encoding/binary"
	"net"
	"net/netip"

	"github.com/bifrost-rack/bifrost/p4switch/shared/wirefmt"
)

// Sizes of the headers in bytes.
const (
	EthernetSize = 14
	IPv6Size     = 40
	UDPSize      = 8
	// HeaderSize is everything in front of a UDP payload.
	HeaderSize = EthernetSize + IPv6Size + UDPSize
)

// TypeIPv6 is the Ethernet type of IPv6.
const TypeIPv6 = 0x86DD

// Next-header numbers.
const (
	ProtoUDP    = 17
	ProtoICMPv6 = 58
)

// DefaultHopLimit is the hop limit of frames built here.
const DefaultHopLimit = 64

// MAC is an Ethernet address.
type MAC [6]byte

// ParseMAC reads a MAC address in any form that net.ParseMAC knows.
func ParseMAC(s string) (MAC, error) {
	hw, err := net.ParseMAC(s)
	if err != nil || len(hw) != 6 {
		return MAC{}, wirefmt.Errorf("%q is not an Ethernet address", s)
	}
	return MAC(hw), nil
}

// String prints the address as 02:00:00:00:00:01.
func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }

// MarshalText gives the address its usual form in JSON.
func (m MAC) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (m *MAC) UnmarshalText(b []byte) (err error) {
	*m, err = ParseMAC(string(b))
	return err
}

// IsZero reports whether m is no address at all.
func (m MAC) IsZero() bool { return m == MAC{} }

// Multicast reports whether m is a group or broadcast address.
func (m MAC) Multicast() bool { return m[0]&1 != 0 }

// Packet is an IPv6 packet in an Ethernet frame. Payload is what follows the
// IPv6 header, cut to the length it states (Ethernet may pad).
type Packet struct {
	DstMAC, SrcMAC MAC
	Src, Dst       netip.Addr
	TrafficClass   uint8
	FlowLabel      uint32 // 20 bits
	NextHeader     uint8
	HopLimit       uint8
	Payload        []byte
}

// Parse takes an Ethernet frame with IPv6 apart. Checksums are the payload's
// business: see ParseUDP6.
func Parse(b []byte) (p Packet, err error) {
	if len(b) < EthernetSize+IPv6Size {
		return p, wirefmt.Errorf("frame: %d bytes, IPv6 needs %d", len(b), EthernetSize+IPv6Size)
	}
	if t := binary.BigEndian.Uint16(b[12:]); t != TypeIPv6 {
		return p, wirefmt.Errorf("frame: Ethernet type %#04x, want IPv6", t)
	}
	ip := b[EthernetSize:]
	first := binary.BigEndian.Uint32(ip)
	if v := first >> 28; v != 6 {
		return p, wirefmt.Errorf("frame: IP version %d, want 6", v)
	}
	length := int(binary.BigEndian.Uint16(ip[4:]))
	if length > len(ip)-IPv6Size {
		return p, wirefmt.Errorf("frame: IPv6 payload of %d bytes, the frame has %d", length, len(ip)-IPv6Size)
	}
	return Packet{
		DstMAC: MAC(b[:6]), SrcMAC: MAC(b[6:12]),
		Src: netip.AddrFrom16([16]byte(ip[8:24])), Dst: netip.AddrFrom16([16]byte(ip[24:40])),
		TrafficClass: uint8(first >> 20), FlowLabel: first & 0xFFFFF, NextHeader: ip[6], HopLimit: ip[7],
		Payload: ip[IPv6Size : IPv6Size+length],
	}, nil
}

// Append appends the frame to b. The payload must fit 65,535 bytes; its
// checksum must be right already. HopLimit 0 stands for DefaultHopLimit.
func (p Packet) Append(b []byte) []byte {
	b = p.appendHeaders(b, len(p.Payload))
	return append(b, p.Payload...)
}

// appendHeaders appends the Ethernet and IPv6 headers of a payload of n bytes.
func (p *Packet) appendHeaders(b []byte, n int) []byte {
	hops := p.HopLimit
	if hops == 0 {
		hops = DefaultHopLimit
	}
	b = append(b, p.DstMAC[:]...)
	b = append(b, p.SrcMAC[:]...)
	b = binary.BigEndian.AppendUint16(b, TypeIPv6)
	b = binary.BigEndian.AppendUint32(b, 6<<28|uint32(p.TrafficClass)<<20|p.FlowLabel&0xFFFFF)
	b = binary.BigEndian.AppendUint16(b, uint16(n))
	b = append(b, p.NextHeader, hops)
	src, dst := p.Src.As16(), p.Dst.As16()
	b = append(b, src[:]...)
	return append(b, dst[:]...)
}
