// Package dsmpacket is the wire format of the distributed shared memory: global
// pointers, which are IPv6 addresses, and the header behind them. It does no I/O.
//
// A memory packet is IPv6 / UDP (port rackaddr.PortDSM) / Header / data. The
// destination address of a request is the operation and the pointer, so that a
// switch routes and protects by addresses alone; the source address of a reply
// likewise (thesis section 6.2).
package dsmpacket

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"net/netip"
)

// Op is a memory operation: byte 6 of the address on the wire.
type Op uint8

// The operations; OpNone is what a stored pointer has.
const (
	OpNone  Op = 0
	OpAlloc Op = 1
	OpRead  Op = 2
	OpWrite Op = 3
	OpFree  Op = 4
	// OpSettle asks a memory server what became of a request of this client's
	// and makes it final: a request not seen yet will never be applied. It
	// touches only the client's own request window, so it needs no permission.
	OpSettle Op = 5
	// OpLedger is about a ledger (LedgerRequest). The memory server knows whose ledger
	// it is, so it needs no permission of the switch.
	OpLedger Op = 6
	// OpSlots asks what became of the slots of a batch (AppendSlots), which only the node is told that has
	// the batch. It changes nothing, and needs no permission of the switch.
	OpSlots Op = 7
	// LastOp is the highest operation.
	LastOp = OpSlots
)

// String returns the operation's name.
func (o Op) String() string {
	switch o {
	case OpNone:
		return "none"
	case OpAlloc:
		return "alloc"
	case OpRead:
		return "read"
	case OpWrite:
		return "write"
	case OpFree:
		return "free"
	case OpSettle:
		return "settle"
	case OpLedger:
		return "ledger"
	case OpSlots:
		return "slots"
	}
	return fmt.Sprintf("op %d", uint8(o))
}

// Pointer is a global pointer: a 16-byte IPv6 address naming one byte in a
// region (or, with an operation, an operation on it). The zero Pointer is nil.
//
//	bytes 0-3 zero | 4 DSM prefix | 5 machine id | 6 operation | 7-15 slot (20 bits), generation (22), offset (30)
//
// The slot and its generation name the region within the machine. A slot has one region at a time, and each has a higher generation
// than those before it, so a pointer never names another region than it did at first. An operation on a ledger has its argument in
// byte 7, and no region.
type Pointer [16]byte

// RegionID names a region of a machine, for ever: its slot and its generation.
type RegionID uint64

// How many bits of a pointer are slot, generation and offset.
const (
	SlotBits       = 20
	GenerationBits = 22
	OffsetBits     = 30
)

// MaxGeneration is the highest generation of a slot. A slot that has had it is not used again.
const MaxGeneration = 1<<GenerationBits - 1

// IDOf returns the id of a slot's region of a generation.
func IDOf(slot, generation uint32) RegionID {
	return RegionID(slot)<<GenerationBits | RegionID(generation)
}

// Slot is the region's slot.
func (id RegionID) Slot() uint32 { return uint32(id >> GenerationBits) } //nolint:gosec // 20 bits

// Generation is which region of its slot it is, counted from 1.
func (id RegionID) Generation() uint32 { return uint32(id & MaxGeneration) } //nolint:gosec // 22 bits

// Valid reports whether there can be a region with the id.
func (id RegionID) Valid() bool { return id>>(SlotBits+GenerationBits) == 0 && id.Generation() > 0 }

// String prints slot and generation.
func (id RegionID) String() string { return fmt.Sprintf("%d.%d", id.Slot(), id.Generation()) }

// Make returns the pointer to the first byte of a machine's region, or, with id 0, to none of its regions.
func Make(prefix, machine uint8, id RegionID) Pointer {
	var p Pointer
	binary.BigEndian.PutUint64(p[8:], uint64(id)<<OffsetBits)
	p[7] = byte(id >> (64 - OffsetBits))
	p[4], p[5] = prefix, machine
	return p
}

// FromAddr returns the pointer that an IPv6 address is.
func FromAddr(a netip.Addr) Pointer { return Pointer(a.As16()) }

// FromBytes reads a stored pointer as it travels in Thrift messages.
func FromBytes(b []byte) (Pointer, error) {
	var p Pointer
	if len(b) != len(p) {
		return p, fmt.Errorf("a global pointer has %d bytes, not %d", len(p), len(b))
	}
	copy(p[:], b)
	if !p.IsNil() && !p.Stored() {
		return Pointer{}, fmt.Errorf("%s is not a global pointer", netip.AddrFrom16(p))
	}
	return p, nil
}

// ParsePointer reads a stored pointer as String prints it.
func ParsePointer(s string) (Pointer, error) {
	a, err := netip.ParseAddr(s)
	if err != nil {
		return Pointer{}, fmt.Errorf("%q is not a global pointer: %w", s, err)
	}
	b := a.As16()
	return FromBytes(b[:])
}

// Addr returns the pointer as an IPv6 address.
func (p Pointer) Addr() netip.Addr { return netip.AddrFrom16(p) }

// String prints the pointer as an IPv6 address.
func (p Pointer) String() string { return p.Addr().String() }

// IsNil reports whether p is the nil pointer.
func (p Pointer) IsNil() bool { return p == Pointer{} }

// Prefix is the DSM prefix, Machine the memory blade's machine id.
func (p Pointer) Prefix() uint8 { return p[4] }

// Machine is the memory blade's machine id.
func (p Pointer) Machine() uint8 { return p[5] }

// Op is the operation; OpNone in a stored pointer.
func (p Pointer) Op() Op { return Op(p[6]) }

// Arg is byte 7: of OpLedger which operation on a ledger.
func (p Pointer) Arg() uint8 { return p[7] }

// ID names the region within its machine.
func (p Pointer) ID() RegionID {
	return RegionID(p[7])<<(64-OffsetBits) | RegionID(binary.BigEndian.Uint64(p[8:])>>OffsetBits)
}

// Offset is how many bytes of the region lie before the one that p names.
func (p Pointer) Offset() uint64 { return binary.BigEndian.Uint64(p[8:]) & (1<<OffsetBits - 1) }

// InPrefix reports whether p is an address of the distributed memory with this
// DSM prefix, with or without an operation.
func (p Pointer) InPrefix(prefix uint8) bool {
	return p[0]|p[1]|p[2]|p[3] == 0 && p[4] == prefix
}

// Stored reports whether p can be a stored pointer: no operation, a region, and
// a DSM prefix that is not zero.
func (p Pointer) Stored() bool {
	return p[0]|p[1]|p[2]|p[3] == 0 && p[4] != 0 && p[6] == 0 && p.ID().Valid()
}

// With returns the address of an operation on p, as it travels on the wire.
func (p Pointer) With(op Op) Pointer {
	p[6] = byte(op)
	return p
}

// WithLedger returns the address of an operation on a ledger of p's machine.
func (p Pointer) WithLedger(op LedgerOp) Pointer {
	p[6], p[7] = byte(OpLedger), byte(op)
	return p
}

// Bare returns p without operation.
func (p Pointer) Bare() Pointer { return p.With(OpNone) }

// Base returns the pointer to the first byte of p's region, without operation.
func (p Pointer) Base() Pointer { return Make(p.Prefix(), p.Machine(), p.ID()) }

// Add returns p moved by n bytes. The result may lie outside of p's region; whoever uses it is then refused. It is the nil pointer if no
// region is as large.
func (p Pointer) Add(n int64) Pointer {
	to := int64(p.Offset()) + n //nolint:gosec // 30 bits
	if to < 0 || to >= 1<<OffsetBits {
		return Pointer{}
	}
	binary.BigEndian.PutUint64(p[8:], binary.BigEndian.Uint64(p[8:])&^(1<<OffsetBits-1)|uint64(to))
	return p
}

// MachinePrefix is the /48 that the memory blade of machine id m receives for.
func MachinePrefix(prefix, machine uint8) netip.Prefix {
	return netip.PrefixFrom(Make(prefix, machine, 0).Addr(), 48)
}

// Region is one allocation: Class is log2 of its size, and Base names its first byte.
type Region struct {
	Base  Pointer
	Class uint8
}

// Size classes: the smallest region is 64 bytes (a cache line), the largest 1 GiB.
const (
	MinClass = 6
	MaxClass = OffsetBits
)

// ClassFor returns the smallest size class that holds size bytes, and false if
// size is not in 1 … 2^MaxClass.
func ClassFor(size uint64) (uint8, bool) {
	if size == 0 || size > 1<<MaxClass {
		return 0, false
	}
	return max(MinClass, uint8(bits.Len64(size-1))), true
}

// RegionOf returns the region that an allocation's reply names: at p, for size bytes that were asked for.
func RegionOf(p Pointer, size uint64) (Region, error) {
	class, ok := ClassFor(size)
	if !ok || !p.Bare().Stored() || p.Offset() != 0 {
		return Region{}, fmt.Errorf("%s names no region of %d bytes", p, size)
	}
	return Region{Base: p.Bare(), Class: class}, nil
}

// Size is the region's size in bytes.
func (r Region) Size() uint64 { return 1 << r.Class }

// Contains reports whether p lies in the region.
func (r Region) Contains(p Pointer) bool { return p.Base() == r.Base && p.Offset() < r.Size() }

// String prints the region as a prefix of the pointer space.
func (r Region) String() string { return fmt.Sprintf("%s/%d", r.Base, 128-int(r.Class)) }
