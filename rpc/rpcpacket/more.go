package rpcpacket

import (
	"encoding/binary"

	"github.com/bifrost-rack/bifrost/p4switch/shared/wirefmt"
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
	c, ok := cutOf(datagram, budget)
	if !ok {
		return nil, false
	}
	first = make([]byte, budget)
	copy(first, datagram[:c.start])
	copy(first[c.start+MorePreface:], datagram[c.start:c.start+c.begun])
	copy(first[budget-c.trailer:], datagram[c.start+c.payload:])
	c.open(first, pushed)
	return first, true
}

// FirstIn is First of a message that begins MorePreface bytes behind the beginning of whole. If the message has no trailer, the
// packet lies in whole, too: the payload is where it was, and the packet's head in front of it replaces that of the message.
func FirstIn(whole []byte, budget int, pushed Push) (first []byte, ok bool) {
	c, ok := cutOf(whole[MorePreface:], budget)
	if !ok || c.trailer > 0 {
		return First(whole[MorePreface:], budget, pushed)
	}
	copy(whole, whole[MorePreface:MorePreface+c.start])
	c.open(whole[:budget], pushed)
	return whole[:budget:budget], true
}

// cut says where a message is cut into its first packet and the rest, in bytes.
type cut struct {
	start, payload, trailer int // where the message's payload begins, and the lengths
	begun                   int // bytes of the payload in the first packet
}

func cutOf(datagram []byte, budget int) (c cut, ok bool) {
	c.payload, c.trailer = int(binary.BigEndian.Uint32(datagram[96:])), int(binary.BigEndian.Uint32(datagram[100:]))
	c.start = len(datagram) - c.trailer - c.payload
	c.begun = budget - c.start - c.trailer - MorePreface
	return c, c.begun >= minFirst && c.begun < c.payload
}

// open has a packet, in which all else is in its place, say what it is the first of.
func (c cut) open(first []byte, pushed Push) {
	be := binary.BigEndian
	be.PutUint16(first[4:], be.Uint16(first[4:])|uint16(FlagMore))
	be.PutUint32(first[96:], uint32(MorePreface+c.begun)) //nolint:gosec // of a datagram
	be.PutUint64(first[c.start:], uint64(c.payload))      //nolint:gosec // a length
	be.PutUint32(first[c.start+8:], pushed.Parts)
	be.PutUint32(first[c.start+12:], pushed.Node)
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
