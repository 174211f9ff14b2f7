package fill

import (
	"encoding/binary"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/p4switch/shared/wirefmt"
)

// Magic and Version open every packet.
const (
	Magic   = 0xB1FC
	Version = 3
)

// HeaderSize is the length of the header in bytes.
const HeaderSize = 24

// Kind says what a packet is.
type Kind uint8

// The kinds.
const (
	Item Kind = 1 // of the source; Number is the item's
	Last Kind = 2 // the item that makes the target a complete copy
	Ack  Kind = 3 // of the target: Number is that of the next item that it wants
)

// Layout is the header's definition; the docs follow it.
var Layout = wirefmt.Layout{Name: "fill", Fields: []wirefmt.Field{
	{Name: "magic", Offset: 0, Size: 2, Doc: "0xB1FC"},
	{Name: "version", Offset: 2, Size: 1, Doc: "3"},
	{Name: "kind", Offset: 3, Size: 1, Doc: "1: item, 2: the item that makes the target a complete copy, 3: acknowledgement"},
	{Name: "status", Offset: 4, Size: 1, Doc: "acknowledgement: 0, or why the target cannot be filled; the reason in words follows the header"},
	{Name: "part", Offset: 5, Size: 1, Doc: "item: which part of the copy it belongs to; 0: ledgers, 1: regions, with undo and windows"},
	{Name: "reserved", Offset: 6, Size: 2, Doc: "0"},
	{Name: "token", Offset: 8, Size: 8, Doc: "names the attempt; the Gatekeeper gives it to both"},
	{Name: "number", Offset: 16, Size: 8, Doc: "of the item, counted from 1; of the next item that the target wants"},
}}

// Packet is one datagram.
type Packet struct {
	Kind   Kind
	Status fault.Code
	Part   uint8 // of the copy's content, to which the item belongs
	Token  uint64
	Number uint64
	Data   []byte // the item, or a refusal's reason
}

// Append appends the packet's wire form to b.
func (p *Packet) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint16(b, Magic)
	b = append(b, Version, byte(p.Kind), byte(p.Status), p.Part, 0, 0)
	b = binary.BigEndian.AppendUint64(b, p.Token)
	b = binary.BigEndian.AppendUint64(b, p.Number)
	return append(b, p.Data...)
}

// Parse reads a packet, whose data aliases b. The error wraps wirefmt.ErrFormat.
func Parse(b []byte) (p Packet, err error) {
	if len(b) < HeaderSize {
		return p, wirefmt.Errorf("fill header: %d bytes, want %d", len(b), HeaderSize)
	}
	if m := binary.BigEndian.Uint16(b); m != Magic {
		return p, wirefmt.Errorf("fill header: magic %#04x, want %#04x", m, Magic)
	}
	if b[2] != Version {
		return p, wirefmt.Errorf("fill header: version %d, want %d", b[2], Version)
	}
	p = Packet{Kind: Kind(b[3]), Status: fault.Code(b[4]), Part: b[5], Token: binary.BigEndian.Uint64(b[8:]), Number: binary.BigEndian.Uint64(b[16:]), Data: b[HeaderSize:]}
	switch {
	case p.Kind < Item || p.Kind > Ack:
		return p, wirefmt.Errorf("fill header: kind %d", p.Kind)
	case !p.Status.Known() || p.Kind != Ack && p.Status != fault.OK:
		return p, wirefmt.Errorf("fill header: status %d of kind %d", p.Status, p.Kind)
	case p.Number == 0:
		return p, wirefmt.Errorf("fill header: number 0")
	}
	return p, nil
}
