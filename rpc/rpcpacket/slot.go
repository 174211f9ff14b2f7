package rpcpacket

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// A call is named by call slot and number (RIGHTS, section 1). A slot has one call at a time. Of two calls of a slot the later
// one has the higher number, whoever made them: slots may go from a node to another one as they are.

const (
	// BlockSlots is how many call slots a block has. The Gatekeeper gives them to nodes in blocks.
	BlockSlots = 16
	// Blocks is how many blocks a rack has. Nobody gets block 0, so that slot 0 stands for none.
	Blocks = 1 << 16
	// MaxBlocks is how many blocks a node may have.
	MaxBlocks = 64
	// MaxIncarnation is the highest number of an incarnation. A rack numbers the incarnations of all its nodes, as they join.
	MaxIncarnation = 1<<27 - 1
	// MaxCount is the highest count of a call of one incarnation in one slot.
	MaxCount = 1<<countBits - 1

	countBits = 36
)

// Slot is a call slot of the rack; 0 is none.
type Slot uint32

// Block is the block that the slot is in.
func (s Slot) Block() uint32 { return uint32(s) / BlockSlots }

// Valid reports whether the rack has such a slot.
func (s Slot) Valid() bool { return s.Block() > 0 && s.Block() < Blocks }

// Number is that of a call in its slot: its caller's incarnation, and how many calls the incarnation had made there.
type Number uint64

// NumberOf returns the number of an incarnation's call with a count.
func NumberOf(incarnation uint32, count uint64) Number {
	return Number(uint64(incarnation)<<countBits | count&MaxCount)
}

// Incarnation is the caller's.
func (n Number) Incarnation() uint32 { return uint32(n >> countBits) } //nolint:gosec // of 28 bits, and MaxIncarnation has 27: the highest one is Derive's

// Count is the call's place among those of the incarnation in the slot.
func (n Number) Count() uint64 { return uint64(n) & MaxCount }

// String writes a number as incarnation and count.
func (n Number) String() string { return fmt.Sprintf("%d.%d", n.Incarnation(), n.Count()) }

// PlainID is the id of a call that no execution has made, and of one of policy none: number of its node (4 bytes, the low half of
// the address), slot (4), number (8). So nobody else can use it. It is not Derived.
func PlainID(node netip.Addr, s Slot, n Number) (id ID) {
	a := node.As16()
	copy(id[:4], a[12:])
	binary.BigEndian.PutUint32(id[4:], uint32(s))
	binary.BigEndian.PutUint64(id[8:], uint64(n))
	return id
}

// ItemSize is how many bytes name a call in a word to forget: its id (16), slot (4) and number (8).
const ItemSize = 28

// AppendItem appends what names a call in a word to forget.
func AppendItem(b []byte, id ID, s Slot, n Number) []byte {
	b = append(b, id[:]...)
	b = binary.BigEndian.AppendUint32(b, uint32(s))
	return binary.BigEndian.AppendUint64(b, uint64(n))
}

// ParseItem reads what AppendItem has appended, from the first ItemSize bytes of b, which must be there.
func ParseItem(b []byte) (ID, Slot, Number) {
	return ID(b[:16]), Slot(binary.BigEndian.Uint32(b[16:])), Number(binary.BigEndian.Uint64(b[20:]))
}

// Place returns slot and number in a PlainID.
func (id ID) Place() (Slot, Number) {
	return Slot(binary.BigEndian.Uint32(id[4:])), Number(binary.BigEndian.Uint64(id[8:]))
}
