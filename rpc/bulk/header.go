package bulk

import (
	"encoding/binary"
	"fmt"

	"github.com/bifrost-rack/bifrost/p4switch/shared/wirefmt"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Magic opens every header; the version is packet.Version.
const Magic = 0xB1FB

// HeaderSize is the length of a header in bytes.
const HeaderSize = 56

// MaxRanges is how many ranges a pull names at most.
const MaxRanges = 64

// rangeSize is the length of a range on the wire in bytes.
const rangeSize = 16

// Kind says what a packet is.
type Kind uint8

// The kinds.
const (
	Part Kind = 1 // bytes of the message
	Pull Kind = 2 // the receiver asks for ranges
	Done Kind = 3 // the receiver has the whole answer
	Gone Kind = 4 // the sender does not have the message
)

// String returns the kind's name.
func (k Kind) String() string {
	switch k {
	case Part:
		return "part"
	case Pull:
		return "pull"
	case Done:
		return "done"
	case Gone:
		return "gone"
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// Layout is the header's definition.
var Layout = wirefmt.Layout{Name: "bulk", Fields: []wirefmt.Field{
	{Name: "magic", Offset: 0, Size: 2, Doc: "0xB1FB"},
	{Name: "version", Offset: 2, Size: 1, Doc: "that of calls"},
	{Name: "kind", Offset: 3, Size: 1, Doc: "part 1, pull 2, done 3 (the receiver has the whole answer), gone 4 (the sender does not have the message)"},
	{Name: "answer", Offset: 4, Size: 1, Doc: "0: the message is a call or one-way, 1: its answer"},
	{Name: "reserved", Offset: 5, Size: 1, Doc: "0"},
	{Name: "ranges", Offset: 6, Size: 2, Doc: "ranges behind the header of a pull, at most 64; 0 in all else"},
	{Name: "call", Offset: 8, Size: 16, Doc: "call id"},
	{Name: "caller_incarnation", Offset: 24, Size: 4, Doc: "incarnation of the calling node"},
	{Name: "callee_incarnation", Offset: 28, Size: 4, Doc: "incarnation of the node called; 0 in parts of a call that nobody has asked for"},
	{Name: "total", Offset: 32, Size: 8, Doc: "bytes of the whole payload"},
	{Name: "offset", Offset: 40, Size: 8, Doc: "of a part: where its bytes belong in the payload; of a pull: how many bytes of parts the receiver takes unasked behind the sender's next first packets, 0 if it does not say; 0 in all else"},
	{Name: "size", Offset: 48, Size: 4, Doc: "of a part: its bytes; of a pull: how many bytes each part but the last one has"},
	{Name: "first", Offset: 52, Size: 4, Doc: "bytes of the payload in the first packet: where the first part begins"},
}}

// Header is the fixed part of a packet.
type Header struct {
	Kind              Kind
	Answer            bool
	Call              rpcpacket.ID
	CallerIncarnation uint32
	CalleeIncarnation uint32
	Total, Offset     uint64
	Size, First       uint32
}

// Range is bytes of the payload that a pull asks for.
type Range struct{ Offset, Length uint64 }

// Append appends the wire form of a header and, for a pull, of its ranges. The bytes
// of a part go behind it.
func (h *Header) Append(b []byte, ranges ...Range) []byte {
	be := binary.BigEndian
	b = be.AppendUint16(b, Magic)
	answer := byte(0)
	if h.Answer {
		answer = 1
	}
	b = append(b, rpcpacket.Version, byte(h.Kind), answer, 0)
	b = be.AppendUint16(b, uint16(len(ranges))) //nolint:gosec // at most MaxRanges
	b = append(b, h.Call[:]...)
	b = be.AppendUint32(b, h.CallerIncarnation)
	b = be.AppendUint32(b, h.CalleeIncarnation)
	b = be.AppendUint64(b, h.Total)
	b = be.AppendUint64(b, h.Offset)
	b = be.AppendUint32(b, h.Size)
	b = be.AppendUint32(b, h.First)
	for _, r := range ranges {
		b = be.AppendUint64(b, r.Offset)
		b = be.AppendUint64(b, r.Length)
	}
	return b
}

// Parse takes a datagram apart that lies in two pieces, its first HeaderSize bytes and
// the others: the header, a pull's ranges, a part's bytes, which alias the second piece.
// It refuses a foreign, truncated or inconsistent one with an error that wraps
// wirefmt.ErrFormat.
func Parse(b, body []byte) (h Header, ranges []Range, data []byte, err error) {
	if len(b) != HeaderSize {
		return h, nil, nil, wirefmt.Errorf("bulk header: %d bytes, want %d", len(b), HeaderSize)
	}
	be := binary.BigEndian
	if magic := be.Uint16(b); magic != Magic {
		return h, nil, nil, wirefmt.Errorf("bulk header: magic %#04x, want %#04x", magic, Magic)
	}
	if b[2] != rpcpacket.Version {
		return h, nil, nil, wirefmt.Errorf("bulk header: version %d, want %d", b[2], rpcpacket.Version)
	}
	h = Header{
		Kind: Kind(b[3]), Answer: b[4] == 1, Call: rpcpacket.ID(b[8:24]),
		CallerIncarnation: be.Uint32(b[24:]), CalleeIncarnation: be.Uint32(b[28:]),
		Total: be.Uint64(b[32:]), Offset: be.Uint64(b[40:]), Size: be.Uint32(b[48:]), First: be.Uint32(b[52:]),
	}
	n := int(be.Uint16(b[6:]))
	switch {
	case h.Kind < Part || h.Kind > Gone:
		return h, nil, nil, wirefmt.Errorf("bulk header: %s", h.Kind)
	case b[4] > 1 || b[5] != 0:
		return h, nil, nil, wirefmt.Errorf("bulk header: bytes 4 and 5 are %#x", b[4:6])
	case h.Kind != Pull && n != 0:
		return h, nil, nil, wirefmt.Errorf("bulk header: a %s with %d ranges", h.Kind, n)
	case h.Kind != Part && len(body) != n*rangeSize:
		return h, nil, nil, wirefmt.Errorf("bulk header: a %s with %d ranges in %d bytes", h.Kind, n, len(body))
	case h.Kind == Part:
		return h, nil, body, h.checkPart(len(body))
	case h.Kind != Pull:
		return h, nil, nil, nil
	}
	return h.parsePull(n, body)
}

// checkPart checks a part with n bytes of the message.
func (h *Header) checkPart(n int) error {
	if n == 0 || uint64(h.Size) != uint64(n) || h.Offset < uint64(h.First) || h.Offset > h.Total || uint64(n) > h.Total-h.Offset {
		return wirefmt.Errorf("part: %d bytes at %d of %d, the header says %d", n, h.Offset, h.Total, h.Size)
	}
	return nil
}

// parsePull reads a pull's ranges.
func (h *Header) parsePull(n int, body []byte) (Header, []Range, []byte, error) {
	be := binary.BigEndian
	if n == 0 || n > MaxRanges || h.Size == 0 {
		return *h, nil, nil, wirefmt.Errorf("pull: %d ranges in parts of %d bytes", n, h.Size)
	}
	ranges := make([]Range, n)
	next := uint64(h.First) // where the last range has ended
	for i := range ranges {
		r := Range{Offset: be.Uint64(body[i*rangeSize:]), Length: be.Uint64(body[i*rangeSize+8:])}
		if r.Length == 0 || r.Offset < next || r.Offset > h.Total || r.Length > h.Total-r.Offset || !h.wholeParts(r) {
			return *h, nil, nil, wirefmt.Errorf("pull: %d bytes at %d of %d, in parts of %d", r.Length, r.Offset, h.Total, h.Size)
		}
		ranges[i], next = r, r.Offset+r.Length
	}
	return *h, ranges, nil, nil
}

// wholeParts reports whether a range begins and ends where parts do.
func (h *Header) wholeParts(r Range) bool {
	size := uint64(h.Size)
	return (r.Offset-uint64(h.First))%size == 0 && (r.Length%size == 0 || r.Offset+r.Length == h.Total)
}

// Push is how many bytes of parts, as Cost counts them, follow a first packet
// without being asked for: with the largest datagrams three parts. Together with the
// first packet they fit the receive buffer that Linux gives an unprivileged socket. A receiver that
// takes more says so in its pulls.
const Push = 200 << 10

// Pushes is how many parts of size bytes a sender pushes to a receiver that takes so many bytes.
func Pushes(takes uint64, size int) uint32 {
	return uint32(max(1, min(max(takes, Push), MaxPull)/uint64(Cost(size)))) //nolint:gosec // MaxPull at most
}

// MaxPull is how many bytes one pull is answered with at most, and so the largest window that is of
// use: a pull of 1.3 KiB cannot make a node send for longer than a millisecond.
const MaxPull = 4 << 20

// Cost is what a datagram with a part of size bytes takes of a receive buffer: the
// kernel keeps a record of its own with each.
func Cost(size int) int { return size + 1024 }

// PushRest is how many bytes are pushed, too, rather than left to a pull.
const PushRest = 4 << 10

// Pushed is how many bytes behind the first packet's follow it without being asked
// for, in so many parts of size bytes at most. The last part is one of them if it is short: an array of
// a power of two bytes exceeds its parts by the headers.
func Pushed(total, first uint64, size int, parts uint32) Range {
	n := min(total-first, uint64(parts)*uint64(size))
	if total-first-n <= min(PushRest, uint64(size)) {
		n = total - first
	}
	return Range{Offset: first, Length: n}
}

// Cut appends the parts of size bytes that a pull asks for, in its order. The parts that
// exceed MaxPull together are left out.
func Cut(out []Range, ranges []Range, size int) []Range {
	left := uint64(MaxPull)
	for _, r := range ranges {
		for r.Length > 0 {
			n := min(uint64(size), r.Length) //nolint:gosec // of a datagram
			if n > left {
				return out
			}
			out = append(out, Range{Offset: r.Offset, Length: n})
			r.Offset, r.Length, left = r.Offset+n, r.Length-n, left-n
		}
	}
	return out
}
