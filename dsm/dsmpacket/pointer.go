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
	}
	return fmt.Sprintf("op %d", uint8(o))
}

// Pointer is a global pointer: a 16-byte IPv6 address naming one byte in a
// region (or, with an operation, an operation on it). The zero Pointer is nil.
//
//	bytes 0-3 zero | 4 DSM prefix | 5 machine id | 6 operation | 7 argument | 8-15 address
type Pointer [16]byte

// Make returns the stored form of a pointer.
func Make(prefix, machine uint8, addr uint64) Pointer {
	var p Pointer
	p[4], p[5] = prefix, machine
	binary.BigEndian.PutUint64(p[8:], addr)
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

// Arg is the operation's argument: for OpAlloc the region's size class.
func (p Pointer) Arg() uint8 { return p[7] }

// Offset is the 64-bit address within the memory blade.
func (p Pointer) Offset() uint64 { return binary.BigEndian.Uint64(p[8:]) }

// InPrefix reports whether p is an address of the distributed memory with this
// DSM prefix, with or without an operation.
func (p Pointer) InPrefix(prefix uint8) bool {
	return p[0]|p[1]|p[2]|p[3] == 0 && p[4] == prefix
}

// Stored reports whether p can be a stored pointer: no operation, no argument
// and a DSM prefix that is not zero.
func (p Pointer) Stored() bool {
	return p[0]|p[1]|p[2]|p[3] == 0 && p[4] != 0 && p[6]|p[7] == 0
}

// With returns the address of an operation on p, as it travels on the wire.
func (p Pointer) With(op Op, arg uint8) Pointer {
	p[6], p[7] = byte(op), arg
	return p
}

// Bare returns p without operation and argument.
func (p Pointer) Bare() Pointer { return p.With(OpNone, 0) }

// Add returns p moved by n bytes. The result may lie outside of p's region;
// whoever uses it is then denied.
func (p Pointer) Add(n int64) Pointer {
	binary.BigEndian.PutUint64(p[8:], p.Offset()+uint64(n))
	return p
}

// MachinePrefix is the /48 that the memory blade of machine id m receives for.
func MachinePrefix(prefix, machine uint8) netip.Prefix {
	return netip.PrefixFrom(Make(prefix, machine, 0).Addr(), 48)
}

// Region is one allocation: Class is log2 of its size, and Base is aligned to
// that size, so that one address prefix covers it.
type Region struct {
	Base  Pointer
	Class uint8
}

// Size classes: the smallest region is 64 bytes (a cache line), the largest 1 TiB.
const (
	MinClass = 6
	MaxClass = 40
)

// ClassFor returns the smallest size class that holds size bytes, and false if
// size is not in 1 … 2^MaxClass.
func ClassFor(size uint64) (uint8, bool) {
	if size == 0 || size > 1<<MaxClass {
		return 0, false
	}
	return max(MinClass, uint8(bits.Len64(size-1))), true
}

// RegionOf reads the region that an allocation's reply address names.
func RegionOf(p Pointer) (Region, error) {
	class := p.Arg()
	r := Region{Base: p.Bare(), Class: class}
	if class < MinClass || class > MaxClass || p.Offset()&(1<<class-1) != 0 {
		return Region{}, fmt.Errorf("%s names no region: class %d, address %#x", p, class, p.Offset())
	}
	return r, nil
}

// Size is the region's size in bytes.
func (r Region) Size() uint64 { return 1 << r.Class }

// PrefixLen is how many of the 64 address bits name the region.
func (r Region) PrefixLen() int { return 64 - int(r.Class) }

// Contains reports whether p lies in the region.
func (r Region) Contains(p Pointer) bool {
	return p[4] == r.Base[4] && p[5] == r.Base[5] && p.Offset()>>r.Class == r.Base.Offset()>>r.Class
}

// String prints the region as a prefix of the pointer space.
func (r Region) String() string {
	return fmt.Sprintf("%s/%d", r.Base.Bare(), 64+r.PrefixLen())
}
