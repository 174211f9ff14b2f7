package rpcpacket

import (
	"encoding/binary"

	"github.com/bifrost-rack/bifrost/internal/wirefmt"
)

// MorePreface opens the payload of a first packet (FlagMore): the length of the whole
// payload in bytes (8), and the low half of the address of the node that the next
// parts were sent to without being asked for (8), 0 for none.
const MorePreface = 16

// First returns the first packet of a message that Append made and that exceeds
// budget: a message of its own with all pointers, the trailer, and as much of the
// payload as fits. The message must be larger than budget, and its trailer and
// pointers must leave room for 512 bytes of payload; ok is false if they do not.
func First(datagram []byte, budget int, pushed uint64) (first []byte, ok bool) {
	be := binary.BigEndian
	payload, trailer := int(be.Uint32(datagram[96:])), int(be.Uint32(datagram[100:]))
	start := len(datagram) - trailer - payload
	n := budget - start - trailer - MorePreface
	if n < minPart || n >= payload {
		return nil, false
	}
	first = make([]byte, 0, budget)
	first = append(first, datagram[:start]...)
	be.PutUint16(first[4:], be.Uint16(first[4:])|uint16(FlagMore))
	be.PutUint32(first[96:], uint32(MorePreface+n)) //nolint:gosec // of a datagram
	first = be.AppendUint64(first, uint64(payload)) //nolint:gosec // a length
	first = be.AppendUint64(first, pushed)
	first = append(first, datagram[start:start+n]...)
	return append(first, datagram[start+payload:]...), true
}

// Opening takes the payload of a first packet (FlagMore) apart: the length of the
// whole payload, whom its next parts were sent to, and its first bytes. The error
// wraps wirefmt.ErrFormat.
func (m *Message) Opening() (total, pushed uint64, first []byte, err error) {
	if len(m.Payload) <= MorePreface {
		return 0, 0, nil, wirefmt.Errorf("first packet: a payload of %d bytes", len(m.Payload))
	}
	total, pushed = binary.BigEndian.Uint64(m.Payload), binary.BigEndian.Uint64(m.Payload[8:])
	first = m.Payload[MorePreface:]
	if total <= uint64(len(first)) {
		return 0, 0, nil, wirefmt.Errorf("first packet: %d bytes of %d", len(first), total)
	}
	return total, pushed, first, nil
}
