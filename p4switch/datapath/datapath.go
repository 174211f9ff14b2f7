// Package datapath is the seam between what controls a switch (P4Runtime,
// package p4rt) and what moves its packets (an executor: package interp in Go,
// package ebpf in the kernel). A P4Runtime server speaks in ids and validated
// byte strings; an executor runs a compiled v1model program and judges packets.
//
// Everything here is plain data plus one interface, so that the two sides are
// written, tested and replaced independently of each other.
package datapath

import (
	"errors"
	"math/bits"
)

// Errors an executor returns for one update; the P4Runtime server turns them
// into the gRPC code that the specification asks for.
var (
	// ErrNotFound: no such entry (MODIFY, DELETE) or object.
	ErrNotFound = errors.New("not found")
	// ErrExists: INSERT of a key that is there already.
	ErrExists = errors.New("already exists")
	// ErrFull: the table has no room; it is left as it was.
	ErrFull = errors.New("table is full")
	// ErrUnsupported: the executor cannot do this for the loaded program.
	ErrUnsupported = errors.New("not supported")
)

// Port is a data-plane port number (9 bits in v1model).
type Port uint32

// Match is one key field of an entry, in the table's field order. Value and
// Mask are big-endian and as long as the field is wide, rounded up to bytes.
// Exact uses Value alone; LPM uses Value and PrefixLen; ternary Value and Mask;
// range Value (low) and High; an omitted (don't-care) field has Wildcard set.
type Match struct {
	Value, Mask, High []byte
	PrefixLen         int
	Wildcard          bool
}

// Action is an action by its fully qualified P4 name with its parameters in
// declaration order, each as wide as declared.
type Action struct {
	Name   string
	Params [][]byte
}

// Entry is one table entry. Exactly one of Action, Member or Group applies;
// the last two belong to tables with an action profile or selector (ids are the
// controller's). Priority decides among ternary and range matches: the
// numerically larger wins, as in P4Runtime.
type Entry struct {
	Table    string // fully qualified P4 name
	Match    []Match
	Priority int32
	Action   *Action
	Member   *uint32
	Group    *uint32
	// IdleTimeoutNs, if positive, asks for a notification when the entry was
	// not hit for so long.
	IdleTimeoutNs int64
}

// Op is what an update does.
type Op uint8

// The three updates of P4Runtime.
const (
	Insert Op = iota + 1
	Modify
	Delete
)

// Counts is a counter's value.
type Counts struct{ Packets, Bytes uint64 }

// TableCounts are a table's lookups: those that found an entry, and the others.
type TableCounts struct{ Hits, Misses uint64 }

// MeterConfig is a two-rate three-colour meter (RFC 2698): rates per second in
// the meter's unit (bytes or packets), bursts in that unit.
type MeterConfig struct{ CIR, CBurst, PIR, PBurst int64 }

// MeterCounts are the packets that a meter has found of each colour.
type MeterCounts struct{ Green, Yellow, Red Counts }

// MeterCell is one meter: the cell of an indirect one, or the direct one of an entry.
type MeterCell struct {
	Name  string // of an indirect meter
	Index int
	Entry *Entry // of a direct meter; nil of an indirect one
}

// Replica is one copy that a multicast group or clone session makes.
type Replica struct {
	Port     Port
	Instance uint32
}

// Digest is one digest sample: its P4 name and the fields in struct order.
type Digest struct {
	Name   string
	Fields [][]byte
}

// Sink receives what the data plane has for the control plane. Calls come from
// the packet path: they must not block. The frames and fields passed are the
// sink's to keep.
type Sink interface {
	// PacketIn is a frame that left by the CPU port, deparsed, so it begins
	// with the program's packet_in header if it has one.
	PacketIn(frame []byte)
	// Digest is one digest sample.
	Digest(Digest)
	// Idle tells that an entry has not been hit for its idle timeout.
	Idle(Entry)
}

// Replayer is a Datapath that keeps packets for the control plane while no process is
// there to take them.
type Replayer interface {
	// Replay passes the packets that were kept when the datapath was made to its sink,
	// on the caller's goroutine, the first time that it is called. Some of them may have
	// been delivered before.
	Replay()
}

// CounterReader is a Datapath that reads all cells of an indirect counter faster than
// Counter does one after the other.
type CounterReader interface {
	// Counters returns all cells of an indirect counter, by index.
	Counters(name string) ([]Counts, error)
}

// Datapath is one loaded program's tables and packet path. All methods may be
// called concurrently. Apply and the other writers return when the change is
// made: packets that come from then on are judged by it. Synchronize, called once
// after any number of changes, waits for those that came before.
type Datapath interface {
	// Synchronize returns when no packet is in flight any more that was, or may yet be,
	// judged by what was there before the changes made so far.
	Synchronize()

	// Apply makes one update to a table's entries.
	Apply(op Op, e Entry) error
	// SetDefault sets a table's default action; nil restores the program's own.
	SetDefault(table string, a *Action) error
	// Member and Group write the members and groups of an action profile;
	// a group's members map member id to weight.
	Member(op Op, profile string, id uint32, a Action) error
	Group(op Op, profile string, id uint32, members map[uint32]int) error
	// ValueSet replaces the members of a parser value set.
	ValueSet(name string, members [][]Match) error
	// Multicast and Clone write one multicast group or clone session; no
	// replicas removes it. truncate, if positive, is the copies' largest length.
	Multicast(group uint32, replicas []Replica) error
	Clone(session uint32, replicas []Replica, truncate int) error

	// Counter reads an indirect counter's cell; SetCounter writes it.
	Counter(name string, index int) (Counts, error)
	SetCounter(name string, index int, c Counts) error
	// EntryCounts reads the direct counter of an entry (of the default action if
	// e.Match is nil); SetEntryCounts writes it.
	EntryCounts(e Entry) (Counts, error)
	SetEntryCounts(e Entry, c Counts) error
	// Meter and EntryMeter configure a meter; nil restores the default (green).
	Meter(name string, index int, c *MeterConfig) error
	EntryMeter(e Entry, c *MeterConfig) error
	// MeterCounts reads what a meter has counted, configured or not; SetMeterCounts writes it.
	MeterCounts(m MeterCell) (MeterCounts, error)
	SetMeterCounts(m MeterCell, c MeterCounts) error
	// Register reads or writes a register's cell, big-endian.
	Register(name string, index int) ([]byte, error)
	SetRegister(name string, index int, v []byte) error

	// PacketOut hands in a frame as if it came in by the CPU port; it begins
	// with the program's packet_out header if it has one.
	PacketOut(frame []byte) error
	// Close stops the packet path and releases everything it holds.
	Close() error
}

// Block is the values that are Value where Mask has ones: all that begin with the same bits.
type Block struct{ Mask, Value uint64 }

// MaxSplit is how many range fields of an entry are in Blocks, and so the entry in up to 2^MaxSplit tuples of a tuple space. Further
// range fields are in one block.
const MaxSplit = 4

// BlockOf is the smallest block that a range is in.
func BlockOf(low, high uint64) Block {
	mask := ^uint64(0) << bits.Len64(low^high)
	return Block{mask, low & mask}
}

// Blocks are the blocks that a range is in, which have no value in common: one if it is a block, else two. Let m be the multiple of the highest power of
// two in the range. What is below m is more than half of a block that ends there, and what is not is more than half of one that begins there. So ranges that do
// not overlap have no block in common.
func Blocks(low, high uint64) []Block {
	n := bits.Len64(low ^ high)
	if rest := uint64(1)<<n - 1; low&rest == 0 && high&rest == rest {
		return []Block{BlockOf(low, high)}
	}
	m := high >> (n - 1) << (n - 1)
	return []Block{BlockOf(low, m-1), BlockOf(m, high)}
}
