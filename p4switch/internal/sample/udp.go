package sample

import (
	"encoding/binary"
	"errors"
	"net/netip"
)

// MAC is an Ethernet address.
type MAC [6]byte

// UDP is a datagram over IPv6 in an Ethernet frame.
type UDP struct {
	DstMAC, SrcMAC MAC
	Src, Dst       netip.AddrPort
	Payload        []byte
}

// where the parts of a frame begin.
const (
	ipAt      = 14
	addrsAt   = ipAt + 8
	udpAt     = ipAt + 40
	sumAt     = udpAt + 6
	payloadAt = udpAt + 8
)

// Append appends the frame to b, with its checksum and 64 hops to go.
func (u UDP) Append(b []byte) []byte {
	length, start := uint16(8+len(u.Payload)), len(b) //nolint:gosec // of a datagram
	b = append(append(append(b, u.DstMAC[:]...), u.SrcMAC[:]...), 0x86, 0xdd, 0x60, 0, 0, 0)
	b = append(binary.BigEndian.AppendUint16(b, length), 17, 64)
	src, dst := u.Src.Addr().As16(), u.Dst.Addr().As16()
	b = append(append(b, src[:]...), dst[:]...)
	b = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(b, u.Src.Port()), u.Dst.Port())
	b = append(binary.BigEndian.AppendUint16(b, length), 0, 0)
	b = append(b, u.Payload...)
	sum := ^checksum(b[start:])
	if sum == 0 {
		sum = 0xffff // 0 says that there is none
	}
	binary.BigEndian.PutUint16(b[start+sumAt:], sum)
	return b
}

// ParseUDP takes a frame apart whose lengths and checksum must be right.
func ParseUDP(b []byte) (u UDP, err error) {
	if len(b) < payloadAt || binary.BigEndian.Uint16(b[12:]) != 0x86dd || b[ipAt+6] != 17 {
		return u, errors.New("sample: no UDP over IPv6")
	}
	length := int(binary.BigEndian.Uint16(b[udpAt+4:]))
	if length < 8 || udpAt+length > len(b) || length != int(binary.BigEndian.Uint16(b[ipAt+4:])) {
		return u, errors.New("sample: wrong lengths")
	}
	b = b[:udpAt+length]
	if binary.BigEndian.Uint16(b[sumAt:]) == 0 || checksum(b) != 0xffff {
		return u, errors.New("sample: wrong checksum")
	}
	at := func(addr, port int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[addr:])), binary.BigEndian.Uint16(b[port:]))
	}
	return UDP{MAC(b), MAC(b[6:]), at(addrsAt, udpAt), at(addrsAt+16, udpAt+2), b[payloadAt:]}, nil
}

// checksum sums the addresses, protocol and length of a datagram, and the datagram.
func checksum(b []byte) uint16 {
	sum := uint32(17 + len(b) - udpAt) //nolint:gosec // of a datagram
	for i, v := range b[addrsAt:] {
		sum += uint32(v) << (8 * (1 - i%2))
		sum = sum&0xffff + sum>>16
	}
	return uint16(sum) //nolint:gosec // folded
}
