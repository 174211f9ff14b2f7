// Package sample has what tests of several packages need: a program for a switch with a controller (sample.p4), compiled, and payloads for it.
// compile.sh compiles it anew.
package sample

import (
	_ "embed"
	"encoding/binary"
	"net/netip"
)

// JSON is the compiled program, Info its P4Info in protobuf's text format.
var (
	//go:embed sample.json
	JSON []byte
	//go:embed sample.p4info.txt
	Info []byte
)

// Prefix is what the names of the program's tables, actions, counters and registers begin with.
const Prefix = "SampleIngress."

// CPUPort is the port to the controller; sample.p4 names the same number.
const CPUPort = 510

// Ports of UDP that the program knows: of calls and of requests to memory, whose headers it reads, and of what it holds for the controller.
const (
	PortCall    = 45100
	PortMemory  = 45101
	PortControl = 45102
)

// Verdict is what became of a packet: enum Verdict of sample.p4.
type Verdict uint8

// The verdicts.
const (
	Forwarded Verdict = iota
	Held
	Denied
	NoIdentity
	NoRoute
	Malformed
	Unsupported
	HopLimit
	Unlisted
)

// Cell is the index in the counter verdicts for packets that came in by a port.
func (v Verdict) Cell(port uint16) int { return int(port)<<4 | int(v) }

// Row is the parameter of an entry of the table identity: the row of who lives there, 12 bits.
func Row(row uint16) [][]byte { return [][]byte{binary.BigEndian.AppendUint16(nil, row)} }

// Operations on memory.
const (
	Read  = 2
	Write = 3
)

// Region is a part of a machine's memory: its slot has 20 bits, its generation 22.
type Region struct{ Slot, Generation uint32 }

// Address is where a request for an operation on a region of machine 1 goes to.
func (r Region) Address(op byte) netip.Addr {
	a := [16]byte{5: 1, 6: op}
	binary.BigEndian.PutUint64(a[7:], (uint64(r.Slot)<<22|uint64(r.Generation))<<22)
	return netip.AddrFrom16(a)
}

// Machine is the key of the table home for machine 1.
func Machine() []byte { return []byte{5: 1} }

// Word is what the register words has for the region's slot: who owns it, and how often it is lent.
func (r Region) Word(row uint16, lent uint32) []byte {
	return binary.BigEndian.AppendUint64(nil, uint64(r.Generation)<<32|uint64(row)<<20|uint64(lent))[1:]
}

// Request is the payload of a request to memory, with a number and so many bytes behind its header.
func Request(number uint64, more int) []byte {
	b := binary.BigEndian.AppendUint64([]byte{0x5a, 0x3d, 0, 0, 1, 0, 0, 0}, number)
	return append(b, make([]byte, more)...)
}

// Call is the payload of a call.
func Call(caller uint16, number uint32) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint16([]byte{0x5a, 0x3d}, caller), number)
}
