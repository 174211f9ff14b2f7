package rpcpacket

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/p4switch/shared/wirefmt"
)

// A message says which regions its pointers name in lists behind the header, one for each call slot of the call. The switch reads them; it
// does not look into the payload. A call of one slot that lists nothing has no list.

const (
	// MaxLists is how many lists a message has at most.
	MaxLists = 4
	// ListRegions is how many regions a list has room for.
	ListRegions = 4
	// MaxRegions is how many regions a message names at most, each once, however many pointers into them it has.
	MaxRegions = MaxLists * ListRegions
	// ListSize is the length of a list in bytes.
	ListSize = 48

	machineBits = 8
	idBits      = dsmpacket.SlotBits + dsmpacket.GenerationBits
)

// Region names a region of the rack: machine (8 bits), slot (20) and generation (22), the lowest bits of 64.
type Region uint64

// RegionOf returns the region that a pointer leads into.
func RegionOf(p dsmpacket.Pointer) Region { return Region(p.Machine())<<idBits | Region(p.ID()) }

// Machine is the memory machine that the region is on.
func (r Region) Machine() uint8 { return uint8(r >> idBits) } //nolint:gosec // 8 bits

// ID names the region within its machine.
func (r Region) ID() dsmpacket.RegionID { return dsmpacket.RegionID(r & (1<<idBits - 1)) }

// Base returns the pointer to the region's first byte, in a rack with this DSM prefix.
func (r Region) Base(prefix uint8) dsmpacket.Pointer {
	return dsmpacket.Make(prefix, r.Machine(), r.ID())
}

// Valid reports whether there can be such a region.
func (r Region) Valid() bool { return r>>(machineBits+idBits) == 0 && r.ID().Valid() }

// String prints machine, slot and generation.
func (r Region) String() string { return fmt.Sprintf("%d:%s", r.Machine(), r.ID()) }

// Ref names one use of a call slot; the zero Ref names none.
type Ref struct {
	Slot   Slot
	Number Number
}

// List is what a message names for one of its call slots.
type List struct {
	// Parent is the use of a slot by which the sender has those regions of the list that are not its own.
	Parent Ref
	// Count is how many of Regions are named; the others are 0.
	Count   uint8
	Regions [ListRegions]Region
}

// ListLayout is the definition of a list; the P4 program and the docs follow it.
var ListLayout = wirefmt.Layout{Name: "list", Fields: []wirefmt.Field{
	{Name: "parent_number", Offset: 0, Size: 8, Doc: "of a call: number and slot of the call by which its sender has those of the regions that are not its own; 0 for none"},
	{Name: "parent_slot", Offset: 8, Size: 4, Doc: "see parent_number"},
	{Name: "count", Offset: 12, Size: 1, Doc: "how many regions the list names, 0 to 4"},
	{Name: "reserved", Offset: 13, Size: 3, Doc: "0"},
	{Name: "region0", Offset: 16, Size: 8, Doc: "machine (8 bits), slot (20) and generation (22), right-aligned; 0 beyond count"},
	{Name: "region1", Offset: 24, Size: 8, Doc: "likewise"},
	{Name: "region2", Offset: 32, Size: 8, Doc: "likewise"},
	{Name: "region3", Offset: 40, Size: 8, Doc: "likewise"},
}}

// Of are the regions that the list names. They alias it.
func (l *List) Of() []Region { return l.Regions[:l.Count] }

// ListsOf returns the lists of a message with these pointers to regions of its sender's own: each region once, in the order of the first
// pointers into them. There must not be more than MaxRegions.
func ListsOf(pointers ...dsmpacket.Pointer) []List {
	return LendingLists(pointers, nil)
}

// LendingLists is ListsOf for a call that may lend on what its sender was lent: by is the use of a slot by which the sender has a region, the
// zero Ref if the region is its own; nil if all are. What came in one slot shares a list with nothing that came in another one. There must
// not be more than MaxLists of these slots.
func LendingLists(pointers []dsmpacket.Pointer, by func(Region) Ref) (lists []List) {
	if by == nil {
		by = func(Region) Ref { return Ref{} }
	}
	for _, own := range []bool{false, true} { // what is the sender's own goes wherever there is room
		for _, p := range pointers {
			r := RegionOf(p)
			if ref := by(r); (ref == Ref{}) == own {
				lists = list(lists, r, ref)
			}
		}
	}
	return lists
}

// list adds a region to the first list that has room for it.
func list(lists []List, r Region, by Ref) []List {
	for i := range lists {
		if slices.Contains(lists[i].Of(), r) {
			return lists
		}
	}
	at := slices.IndexFunc(lists, func(l List) bool { return l.Count < ListRegions && (by == Ref{} || by == l.Parent) })
	if at < 0 {
		at, lists = len(lists), append(lists, List{Parent: by})
	}
	l := &lists[at]
	l.Regions[l.Count] = r
	l.Count++
	return lists
}

// Names reports whether the message names a region.
func (m *Message) Names(r Region) bool {
	for i := range m.Lists {
		if slices.Contains(m.Lists[i].Of(), r) {
			return true
		}
	}
	return false
}

// Bases returns pointers to the first bytes of all regions that the message names, in a rack with this DSM prefix.
func (m *Message) Bases(prefix uint8) (pointers []dsmpacket.Pointer) {
	for i := range m.Lists {
		for _, r := range m.Lists[i].Of() {
			pointers = append(pointers, r.Base(prefix))
		}
	}
	return pointers
}

func (l *List) append(b []byte) []byte {
	be := binary.BigEndian
	b = be.AppendUint64(b, uint64(l.Parent.Number))
	b = be.AppendUint32(b, uint32(l.Parent.Slot))
	b = append(b, l.Count, 0, 0, 0)
	for _, r := range l.Regions {
		b = be.AppendUint64(b, uint64(r))
	}
	return b
}

// parseLists reads n lists.
func (m *Message) parseLists(b []byte, n int) error {
	if n == 0 {
		return nil
	}
	be := binary.BigEndian
	m.Lists = make([]List, n)
	for i := range m.Lists {
		l, b := &m.Lists[i], b[i*ListSize:(i+1)*ListSize]
		l.Parent, l.Count = Ref{Slot(be.Uint32(b[8:])), Number(be.Uint64(b))}, b[12]
		if l.Count > ListRegions || b[13]|b[14]|b[15] != 0 {
			return wirefmt.Errorf("call header: list %d has %d regions, at most %d, or is not 0 behind that", i, l.Count, ListRegions)
		}
		for j := range l.Regions {
			r := Region(be.Uint64(b[16+8*j:]))
			switch used := j < int(l.Count); {
			case used && !r.Valid(), !used && r != 0:
				return wirefmt.Errorf("call header: list %d, place %d: %s is no region, or behind the last one", i, j, r)
			case used && m.before(i, j, r):
				return wirefmt.Errorf("call header: region %s is listed twice", r)
			}
			l.Regions[j] = r
		}
	}
	return nil
}

// before reports whether a region is named before place j of list i.
func (m *Message) before(i, j int, r Region) bool {
	for k := range i {
		if slices.Contains(m.Lists[k].Of(), r) {
			return true
		}
	}
	return slices.Contains(m.Lists[i].Regions[:j], r)
}
