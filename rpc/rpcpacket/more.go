package rpcpacket

import (
	"encoding/binary"

	"github.com/bifrost-rack/bifrost/internal/wirefmt"
)

// MorePreface opens the payload of a first packet (FlagMore): Opening's Total (8) and Pushed (4 for the parts, 4 for the node).
const MorePreface = 16

// Push says that the parts behind a first packet's bytes were sent without being asked for. The zero Push is none.
type Push struct {
	// Node is the number of the node that they were sent to, in the low half of its address.
	Node uint32
	// Parts is how many they are at most; 0 stands for as many as every node takes (bulk.Push).
	Parts uint32
}

// Opening is what a first packet says of the whole message.
type Opening struct {
	// Total is the length of the whole payload in bytes.
	Total uint64
	// Pushed says which parts follow.
	Pushed Push
	// First are the payload's first bytes.
	First []byte
}

// minFirst is how many bytes of the payload a first packet has at least. No receiver asks for so many.
const minFirst = 64

// First returns the first packet of a message that Append made and that exceeds
// budget: a message of its own with all lists of regions, the trailer, and as much of the
// payload as fits. The message must be larger than budget, and its trailer and
// lists must leave room for 64 bytes of payload; ok is false if they do not, which happens
// below the least MTU of IPv6 only. Pushed is Opening's.
func First(datagram []byte, budget int, pushed Push) (first []byte, ok bool) {
	be := binary.BigEndian
	payload, trailer := int(be.Uint32(datagram[96:])), int(be.Uint32(datagram[100:]))
	start := len(datagram) - trailer - payload
	n := budget - start - trailer - MorePreface
	if n < minFirst || n >= payload {
		return nil, false
	}
	first = make([]byte, 0, budget)
	first = append(first, datagram[:start]...)
	be.PutUint16(first[4:], be.Uint16(first[4:])|uint16(FlagMore))
	be.PutUint32(first[96:], uint32(MorePreface+n)) //nolint:gosec // of a datagram
	first = be.AppendUint64(first, uint64(payload)) //nolint:gosec // a length
	first = be.AppendUint32(be.AppendUint32(first, pushed.Parts), pushed.Node)
	first = append(first, datagram[start:start+n]...)
	return append(first, datagram[start+payload:]...), true
}

// Opening takes the payload of a first packet (FlagMore) apart. First aliases it. The error
// wraps wirefmt.ErrFormat.
func (m *Message) Opening() (Opening, error) {
	if len(m.Payload) <= MorePreface {
		return Opening{}, wirefmt.Errorf("first packet: a payload of %d bytes", len(m.Payload))
	}
	be := binary.BigEndian
	o := Opening{Total: be.Uint64(m.Payload), Pushed: Push{Parts: be.Uint32(m.Payload[8:]), Node: be.Uint32(m.Payload[12:])}, First: m.Payload[MorePreface:]}
	if o.Total <= uint64(len(o.First)) {
		return Opening{}, wirefmt.Errorf("first packet: %d bytes of %d", len(o.First), o.Total)
	}
	return o, nil
}
