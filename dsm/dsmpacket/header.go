package dsmpacket

import (
	"encoding/binary"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/p4switch/shared/wirefmt"
)

// Magic and Version open every memory header.
const (
	Magic   = 0xB1FD
	Version = 4
)

// HeaderSize is the length of a memory header in bytes.
const HeaderSize = 88

// Kind says what a memory packet is.
type Kind uint8

// The kinds. A Nack is a request that the switch turned around.
const (
	Request Kind = 1
	Reply   Kind = 2
	Nack    Kind = 3
)

// Flags of a memory header.
const (
	// FlagApplied (in a reply to OpSettle): the request was applied.
	FlagApplied uint8 = 1 << 0
	// FlagShare (in the refusal of an alloc as NoSpace): there may be room, but not for the node's owner, which has its share.
	FlagShare uint8 = 1 << 0
	// FlagSlot (in the refusal of an alloc as NoSpace): the slot is not free for a region of this generation. OpSlots tells which are.
	FlagSlot uint8 = 1 << 1
	// FlagDiverged (in a settle): the copies of the machine disagree about the request.
	FlagDiverged uint8 = 1 << 0
	// FlagNoted (in the reply to a settle): the copy has noted that the copies disagree.
	FlagNoted uint8 = 1 << 1
	// FlagFinal (in a settle, and in the reply to one): a request that has not come will never be applied. A
	// settle without it only asks, and a machine with one copy always makes it final.
	FlagFinal uint8 = 1 << 3
)

// MaxMore is how many requests one packet stands for at most, beside its own; see
// Header.More.
const MaxMore = 15

// moreShift is where Header.More stands in the byte of the flags.
const moreShift = 4

// Layout is the header's definition; the P4 program and the docs follow it.
var Layout = wirefmt.Layout{Name: "dsm", Fields: []wirefmt.Field{
	{Name: "magic", Offset: 0, Size: 2, Doc: "0xB1FD"},
	{Name: "version", Offset: 2, Size: 1, Doc: "4"},
	{Name: "flags", Offset: 3, Size: 1, Doc: "bit 0: applied (reply to settle), diverged (settle), the owner has its share (refusal of an alloc), the record goes on in the next chunk (ledger), there are more regions (answer to a rollback); bit 1: the slot is not free (refusal of an alloc), noted (reply to settle), sealed (ledger's answers); bit 2: 0; bit 3: final (settle and its reply); bits 4 to 7: how many more requests this is (read, read of a ledger), answers (write) or refuses (read)"},
	{Name: "verdict", Offset: 4, Size: 2, Doc: "kind and status: request 0x0100, reply 0x02SS, refusal of the switch 0x03SS; SS is the error code: permission denied, or overloaded of what is lent"},
	{Name: "verdict_twin", Offset: 6, Size: 2, Doc: "the complement of verdict, so that both may change and the checksum stays right"},
	{Name: "request", Offset: 8, Size: 8, Doc: "request id, counted by the client from 1; of a ledger: number of the chunk appended or read; in the answer to its open the first chunk; of a rollback: the id from which on regions are told"},
	{Name: "floor", Offset: 16, Size: 8, Doc: "the client's floor: all its requests below are settled; of an append to a ledger: the first chunk that is still needed; of a ledger's answers: bytes that new work may still append"},
	{Name: "execution", Offset: 24, Size: 16, Doc: "the execution on whose behalf, about which its node decides, 0 for none; of a ledger: its name; of a commit or rollback: the execution"},
	{Name: "branch", Offset: 40, Size: 8, Doc: "branch of the execution, 0 for its trunk; of a ledger: the machine's birth number, 0 in a request that does not know it; of a word about a durable main: which run of the main"},
	{Name: "index", Offset: 48, Size: 4, Doc: "operation index within the branch; of a ledger: the run; of a commit or rollback: the incarnation whose changes it is about"},
	{Name: "incarnation", Offset: 52, Size: 4, Doc: "incarnation of the node that asks"},
	{Name: "length", Offset: 56, Size: 8, Doc: "bytes: wanted (alloc, read), carried (write), asked for (reply to alloc), done (other replies); the request id asked about (settle); of a ledger: bytes carried (append), bytes wanted (read), the next chunk (answers); of a word about a durable main: the checkpoint"},
	{Name: "mirror_epoch", Offset: 64, Size: 4, Doc: "answers: the mirror epoch of the machine, in which the next three fields hold; 0 in a request"},
	{Name: "blade_incarnation", Offset: 68, Size: 4, Doc: "answers: the incarnation of the copy that answers; 0 in a request"},
	{Name: "number", Offset: 72, Size: 8, Doc: "of a read of what was lent: the number of the call by which its sender may read; 0 for none"},
	{Name: "slot", Offset: 80, Size: 4, Doc: "the call's slot; 0 for none"},
	{Name: "copy", Offset: 84, Size: 1, Doc: "answers: which of the machine's copies answers, counted from 0; 0 in a request"},
	{Name: "members", Offset: 85, Size: 1, Doc: "answers: how many copies the machine has; 0 in a request, and in an answer that no copy has made"},
	{Name: "reserved", Offset: 86, Size: 2, Doc: "0"},
}}

// Header is what stands between the UDP header and the data.
type Header struct {
	Flags uint8 // 4 bits
	// More is how many other requests the packet stands for: those with the next ids,
	// at the next addresses, of the same length. A read asks for as many datagrams; it
	// is answered with one each, but refused whole, as it lies in one region. A write's
	// reply acknowledges as many.
	More        uint8
	Kind        Kind
	Status      fault.Code
	Request     uint64
	Floor       uint64
	Execution   [16]byte
	Branch      uint64
	Index       uint32
	Incarnation uint32
	Length      uint64
	Mirror      Mirror // of an answer
	// By is why the sender of a read may do so, if the region is not its own.
	By Use
}

// Use names one use of a call slot: the slot and the number of the call in it. The zero Use names none.
type Use struct {
	Number uint64
	Slot   uint32
}

// Mirror says which copy of a memory machine has made an answer, and how many there
// are. It is zero in requests, and in answers that no copy has made.
type Mirror struct {
	// Epoch numbers the sets of copies that the machine has had; a later set has a
	// higher number.
	Epoch uint32
	// Incarnation numbers the copies that the machine has had. A copy that was lost
	// and filled again is another one.
	Incarnation uint32
	// Copy is which of the Members copies this is: 0 for the one that answers reads.
	Copy    uint8
	Members uint8 // 1 or 2
}

// MaxMembers is how many copies a machine has at most.
const MaxMembers = 2

// Append appends the header's wire form to b.
func (h *Header) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint16(b, Magic)
	b = append(b, Version, h.Flags|h.More<<moreShift, byte(h.Kind), byte(h.Status), ^byte(h.Kind), ^byte(h.Status))
	b = binary.BigEndian.AppendUint64(b, h.Request)
	b = binary.BigEndian.AppendUint64(b, h.Floor)
	b = append(b, h.Execution[:]...)
	b = binary.BigEndian.AppendUint64(b, h.Branch)
	b = binary.BigEndian.AppendUint32(b, h.Index)
	b = binary.BigEndian.AppendUint32(b, h.Incarnation)
	b = binary.BigEndian.AppendUint64(b, h.Length)
	b = binary.BigEndian.AppendUint32(b, h.Mirror.Epoch)
	b = binary.BigEndian.AppendUint32(b, h.Mirror.Incarnation)
	b = binary.BigEndian.AppendUint64(b, h.By.Number)
	b = binary.BigEndian.AppendUint32(b, h.By.Slot)
	return append(b, h.Mirror.Copy, h.Mirror.Members, 0, 0)
}

// Parse reads a header and returns the data behind it, which aliases b. It
// refuses a foreign, truncated or inconsistent packet with an error that wraps
// wirefmt.ErrFormat.
func Parse(b []byte) (h Header, data []byte, err error) {
	if len(b) < HeaderSize {
		return h, nil, wirefmt.Errorf("memory header: %d bytes, want %d", len(b), HeaderSize)
	}
	if m := binary.BigEndian.Uint16(b); m != Magic {
		return h, nil, wirefmt.Errorf("memory header: magic %#04x, want %#04x", m, Magic)
	}
	if b[2] != Version {
		return h, nil, wirefmt.Errorf("memory header: version %d, want %d", b[2], Version)
	}
	h = Header{
		Flags: b[3] & (1<<moreShift - 1), More: b[3] >> moreShift, Kind: Kind(b[4]), Status: fault.Code(b[5]),
		Request: binary.BigEndian.Uint64(b[8:]), Floor: binary.BigEndian.Uint64(b[16:]),
		Execution: [16]byte(b[24:40]), Branch: binary.BigEndian.Uint64(b[40:]),
		Index: binary.BigEndian.Uint32(b[48:]), Incarnation: binary.BigEndian.Uint32(b[52:]),
		Length: binary.BigEndian.Uint64(b[56:]),
		Mirror: Mirror{Epoch: binary.BigEndian.Uint32(b[64:]), Incarnation: binary.BigEndian.Uint32(b[68:]), Copy: b[84], Members: b[85]},
		By:     Use{Number: binary.BigEndian.Uint64(b[72:]), Slot: binary.BigEndian.Uint32(b[80:])},
	}
	if b[4]^b[6] != 0xFF || b[5]^b[7] != 0xFF {
		return h, nil, wirefmt.Errorf("memory header: verdict %x, its complement %x", b[4:6], b[6:8])
	}
	if h.Kind < Request || h.Kind > Nack {
		return h, nil, wirefmt.Errorf("memory header: kind %d", h.Kind)
	}
	if h.Floor > h.Request && h.Kind != Reply { // in a ledger's answers it is something else
		return h, nil, wirefmt.Errorf("memory header: request %d lies below its own floor %d", h.Request, h.Floor)
	}
	if h.Mirror.Members > MaxMembers || h.Mirror.Copy >= max(h.Mirror.Members, 1) {
		return h, nil, wirefmt.Errorf("memory header: copy %d of %d", h.Mirror.Copy, h.Mirror.Members)
	}
	return h, b[HeaderSize:], nil
}
