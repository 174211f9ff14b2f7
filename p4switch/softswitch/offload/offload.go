package offload

import (
	"encoding/binary"
	"errors"

	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
)

// Errors of Receive: such a frame cannot be judged and must be dropped.
var (
	// ErrHeader: the header points outside the frame.
	ErrHeader = errors.New("offload: header does not fit the frame")
	// ErrKind: a super-packet that is neither TCP nor UDP datagrams over IP.
	ErrKind = errors.New("offload: unknown kind of super-packet")
)

// EtherTypes and protocol numbers that matter here.
const (
	etherIPv4   = 0x0800
	etherIPv6   = 0x86dd
	etherVLAN   = 0x8100
	etherQinQ   = 0x88a8
	protoTCP    = 6
	protoUDP    = 17
	udpLen      = 8
	ipv4MinLen  = 20
	ipv6Len     = 40
	udpChecksum = 6  // offset in the UDP header
	tcpChecksum = 16 // offset in the TCP header
)

// Receive makes packets of a received frame as a cable would carry them, and
// gives each to yield with the header that Resume needs to send it on: the frame
// itself with its checksum finished, in place, or each datagram of a UDP
// super-packet, in scratch (which is grown as needed and returned).
func Receive(h Header, frame, scratch []byte, yield func(Header, []byte)) ([]byte, error) {
	if h.Flags&NeedsChecksum == 0 && h.Kind() == GSONone {
		yield(Header{}, frame)
		return scratch, nil
	}
	start, at := int(h.CsumStart), int(h.CsumStart)+int(h.CsumOffset)
	if h.Flags&NeedsChecksum == 0 || at+2 > len(frame) {
		return scratch, ErrHeader
	}
	switch h.Kind() {
	case GSONone:
		complete(frame[start:], int(h.CsumOffset))
		yield(Header{}, frame)
		return scratch, nil
	case GSOTCPv4, GSOTCPv6:
		complete(frame[start:], int(h.CsumOffset))
		yield(h, frame)
		return scratch, nil
	case GSOUDPL4:
		return segment(h, frame, scratch, yield)
	}
	return scratch, ErrKind
}

// segment cuts a UDP super-packet into its datagrams.
func segment(h Header, frame, scratch []byte, yield func(Header, []byte)) ([]byte, error) {
	l3 := network(frame)
	l4, size := int(h.CsumStart), int(h.GSOSize)
	if l3 < 0 || size == 0 || h.CsumOffset != udpChecksum || l4+udpLen > len(frame) || l4 < l3+ipv4MinLen {
		return scratch, ErrHeader
	}
	headers, payload := frame[:l4+udpLen], frame[l4+udpLen:]
	for i := 0; len(payload) > 0; i++ {
		part := payload[:min(size, len(payload))]
		payload = payload[len(part):]
		scratch = append(append(scratch[:0], headers...), part...)
		if !address(scratch, l3, l4, uint16(i)) {
			return scratch, ErrHeader
		}
		yield(Header{}, scratch)
	}
	return scratch, nil
}

// address makes the headers of one UDP packet right for its length: IP length
// (and for IPv4 the identification, counted on by nth, and header checksum), UDP
// length and checksum.
func address(b []byte, l3, l4 int, nth uint16) bool {
	udp := b[l4:]
	binary.BigEndian.PutUint16(udp[4:], uint16(len(udp)))
	switch b[l3] >> 4 {
	case 4:
		ip := b[l3:l4]
		binary.BigEndian.PutUint16(ip[2:], uint16(len(b)-l3))
		binary.BigEndian.PutUint16(ip[4:], binary.BigEndian.Uint16(ip[4:])+nth)
		ip[10], ip[11] = 0, 0
		binary.BigEndian.PutUint16(ip[10:], ^frame.Fold(frame.Sum(0, ip)))
	case 6:
		if l4 < l3+ipv6Len {
			return false
		}
		binary.BigEndian.PutUint16(b[l3+4:], uint16(len(b)-l3-ipv6Len))
	}
	binary.BigEndian.PutUint16(udp[udpChecksum:], pseudo(b, l3, l4, protoUDP))
	complete(udp, udpChecksum)
	return true
}

// Resume tells with which header a frame is to be sent that a program made of
// one that Receive gave with h. A TCP super-packet whose form has not changed
// becomes one again, in place; ok is false if it has changed, because then
// nobody can cut it into segments any more.
func (h Header) Resume(frame []byte) (out Header, ok bool) {
	if h.Kind() == GSONone {
		return Header{}, true
	}
	l3, l4 := network(frame), int(h.CsumStart)
	if l3 < 0 || l4 < l3+ipv4MinLen || h.CsumOffset != tcpChecksum || l4+tcpChecksum+2 > len(frame) {
		return Header{}, false
	}
	// The checksum is written after the program has judged, so it must be that of the
	// TCP header which the program has seen, not of one behind other headers.
	v4, v6 := h.Kind() == GSOTCPv4 && frame[l3]>>4 == 4, h.Kind() == GSOTCPv6 && frame[l3]>>4 == 6
	seen := v4 && frame[l3+9] == protoTCP && l4 == l3+int(frame[l3]&15)*4 || v6 && frame[l3+6] == protoTCP && l4 == l3+ipv6Len
	if !seen {
		return Header{}, false
	}
	binary.BigEndian.PutUint16(frame[l4+tcpChecksum:], pseudo(frame, l3, l4, protoTCP))
	return h, true
}

// network is where the IP header begins, behind any VLAN tags; -1 if there is
// none.
func network(frame []byte) int {
	for at := 12; at+2+ipv4MinLen <= len(frame); at += 4 {
		switch binary.BigEndian.Uint16(frame[at:]) {
		case etherVLAN, etherQinQ:
			continue
		case etherIPv4, etherIPv6:
			return at + 2
		}
		break
	}
	return -1
}

// pseudo is the pseudo header's sum, which is what a checksum field holds that
// is still to be finished.
func pseudo(b []byte, l3, l4 int, proto byte) uint16 {
	addresses := b[l3+12 : l3+ipv4MinLen]
	if b[l3]>>4 == 6 {
		addresses = b[l3+8 : l3+ipv6Len]
	}
	length := len(b) - l4 // over 65535 in a super-packet that has more than one
	return frame.Fold(frame.Sum(uint64(length)+uint64(proto), addresses))
}

// complete turns the pseudo header's sum at b[offset:] into the checksum of b.
// UDP has no checksum zero; it is sent as all ones (harmless elsewhere, as both
// mean zero).
func complete(b []byte, offset int) {
	c := ^frame.Fold(frame.Sum(0, b))
	if c == 0 {
		c = 0xffff
	}
	binary.BigEndian.PutUint16(b[offset:], c)
}
