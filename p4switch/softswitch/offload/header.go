package offload

import "encoding/binary"

// HeaderLen is the length of the vnet header in bytes.
const HeaderLen = 10

// Header is a virtio_net_hdr, which Linux puts before a frame on a packet socket
// with PACKET_VNET_HDR, in the machine's byte order.
type Header struct {
	Flags uint8
	// GSO is the kind of super-packet, one of the GSO constants; GSOSize is the
	// payload of each of its segments in bytes, HdrLen the length of all headers.
	GSO     uint8
	HdrLen  uint16
	GSOSize uint16
	// With NeedsChecksum: where the checksummed part of the frame begins, and
	// where behind that the checksum is, in bytes.
	CsumStart  uint16
	CsumOffset uint16
}

// NeedsChecksum (in Flags): the checksum holds only the pseudo header's sum.
const NeedsChecksum = 1

// Kinds of super-packets.
const (
	GSONone  = 0
	GSOTCPv4 = 1
	GSOUDP   = 3 // datagrams to be fragmented; obsolete
	GSOTCPv6 = 4
	GSOUDPL4 = 5
	// gsoECN is a flag in GSO: the segments carry congestion marks.
	gsoECN = 0x80
)

// Kind is the super-packet's kind without flags.
func (h Header) Kind() uint8 { return h.GSO &^ gsoECN }

// Parse reads a header from b, which must be at least HeaderLen long.
func Parse(b []byte) Header {
	return Header{
		Flags: b[0], GSO: b[1],
		HdrLen: binary.NativeEndian.Uint16(b[2:]), GSOSize: binary.NativeEndian.Uint16(b[4:]),
		CsumStart: binary.NativeEndian.Uint16(b[6:]), CsumOffset: binary.NativeEndian.Uint16(b[8:]),
	}
}

// Put writes a header to b, which must be at least HeaderLen long.
func (h Header) Put(b []byte) {
	b[0], b[1] = h.Flags, h.GSO
	binary.NativeEndian.PutUint16(b[2:], h.HdrLen)
	binary.NativeEndian.PutUint16(b[4:], h.GSOSize)
	binary.NativeEndian.PutUint16(b[6:], h.CsumStart)
	binary.NativeEndian.PutUint16(b[8:], h.CsumOffset)
}
