package rights

import (
	"iter"
	"net/netip"
	"slices"
)

// The widths of fields in packets and registers, in bits.
const (
	SlotBits        = 20 // a region's slot, and a call slot: a rack has 2^20 of each
	GenerationBits  = 22 // of a region
	OffsetBits      = 30 // in a region, which has at most 1 GiB
	RowBits         = 12 // of a node
	LentBits        = 20 // how many open call slots list a region
	ChildrenBits    = 8  // how many open call slots lend on from one
	IncarnationBits = 27 // the upper part of a number
	CounterBits     = 36 // the lower part of a number
)

// slotRegions is how many regions a call slot has room for.
const slotRegions = 4

// Sizes are the sizes of a rack that are not widths of fields. A rack has those of [Rack]; tests explore smaller ones, in
// which slots run out and counts come to their ends.
type Sizes struct {
	Batch    uint32 // region slots of a batch, which begins at a multiple of it
	Block    uint32 // call slots of a block, which begins at a multiple of it
	PerCall  int    // call slots of a call at most
	PerSlot  int    // regions of a call slot at most; no more than four
	Results  int    // regions of an answer at most
	Lent     uint32 // the highest count of open call slots that list a region
	Children uint8  // the highest count of open call slots that lend on from one
}

// Rack is the sizes of a real rack.
var Rack = Sizes{Batch: 64, Block: 16, PerCall: 4, PerSlot: slotRegions, Results: 16, Lent: 1<<LentBits - 1, Children: 1<<ChildrenBits - 1}

// Row is a node's place in registers: 1 to 4,094. Its next incarnations keep it.
type Row uint16

// Two owners are no nodes.
const (
	Nobody Row = 0              // the region is to be freed
	Frozen Row = 1<<RowBits - 1 // a person decides about the region
)

// Number orders the uses of a call slot: the caller's incarnation, and a counter in steps of two. What lies between two
// counters is for the Gatekeeper that rebuilds the registers. 0 is no number.
type Number uint64

// MakeNumber returns the number of an incarnation's counter.
func MakeNumber(incarnation uint32, counter uint64) Number {
	return Number(uint64(incarnation)<<CounterBits | counter&(1<<CounterBits-1))
}

// Incarnation returns the incarnation that a number is of.
func (n Number) Incarnation() uint32 { return uint32(n >> CounterBits) }

// Region is a region as packets name it: its slot, and the generation that the slot had when it was allocated.
type Region struct{ Slot, Generation uint32 }

// Ref names one use of a call slot. The zero Ref names none.
type Ref struct {
	Slot   uint32
	Number Number
}

// Word is what the switch knows of a region's slot.
type Word struct {
	Generation uint32
	Owner      Row
	Lent       uint32 // how many open call slots list the region, given ones left out
}

// State is the state of a call slot.
type State uint8

// The states of a call slot.
const (
	Unused State = iota
	Open
	Closed  // answered
	Refused // never permitted
	Failed  // ended by the Gatekeeper
)

// String returns the state's name.
func (s State) String() string {
	return [...]string{"unused", "open", "closed", "refused", "failed"}[s]
}

// Slot is a call slot. All slots of a call have its number, and change together.
type Slot struct {
	Number         Number
	State          State
	Place          uint8 // in its call, from 0
	Slots          uint8 // how many slots the call has
	Given          bool  // of a one-way: its regions have changed hands
	Standing       bool  // of a standing lease: the Gatekeeper has opened it, and ends it
	Ending         bool  // the Gatekeeper waits for its end: nothing more is lent on from it
	Caller, Callee Row
	Count          uint8 // of its regions
	Regions        [slotRegions]Region
	Parent         Ref   // the use of a slot that this one lends on from
	Children       uint8 // how many open slots lend on from this one
}

// Lists reports whether the slot has a region.
func (s *Slot) Lists(r Region) bool { return slices.Contains(s.Regions[:s.Count], r) }

// list adds a region.
func (s *Slot) list(r Region) {
	s.Regions[s.Count] = r
	s.Count++
}

// Source is where a packet comes from.
type Source struct {
	Port    uint16
	Address netip.Addr
}

// Sender is the kind of a sender.
type Sender uint8

// The kinds of senders. A daemon has no row.
const (
	Node Sender = iota + 1
	Daemon
	Memory
)

// Identity is what the Gatekeeper says of a source.
type Identity struct {
	Kind        Sender
	Row         Row
	Incarnation uint32 // of a memory server: its boot
}

// Route is what the Gatekeeper says of a destination. A node that is going is gone for good, and gets no new calls.
type Route struct {
	Row   Row
	Going bool
}

// Control is a control rule: the node may allocate in the batch, which is on the machine.
type Control struct {
	Row     Row
	Machine uint8
	Batch   uint32
}

// BlockRule is a rule for call slots: the node may use the block.
type BlockRule struct {
	Row   Row
	Block uint32
}

// Switch is the state of the switch. Its fields are what the Gatekeeper writes; packets change the registers.
type Switch struct {
	Sizes
	Identities map[Source]Identity
	Routes     map[netip.Addr]Route
	Controls   map[Control]bool // whether a digest tells that the batch is half used
	Blocks     map[BlockRule]bool
	Election   uint64 // the highest of a Gatekeeper that has used the hand
	Rebuilding bool   // the registers were lost: no packet passes

	words   registers[Word]
	slots   registers[Slot]
	counts  []uint64 // by row of the table: how often it has decided
	without []bool   // rows that tests leave out
}

// New returns a switch without entries, whose registers are zero.
func New(sizes Sizes) *Switch {
	return &Switch{
		Sizes: sizes, Identities: map[Source]Identity{}, Routes: map[netip.Addr]Route{}, Controls: map[Control]bool{}, Blocks: map[BlockRule]bool{},
		counts: make([]uint64, len(table)+len(operations)), without: make([]bool, len(table)+len(operations)),
	}
}

// Word returns a region's word.
func (s *Switch) Word(slot uint32) Word { return s.words.at(slot) }

// Slot returns a call slot.
func (s *Switch) Slot(slot uint32) Slot { return s.slots.at(slot) }

// Words are the words that were ever touched, and their neighbours.
func (s *Switch) Words() iter.Seq2[uint32, *Word] { return s.words.all() }

// Slots are the call slots that were ever touched, and their neighbours.
func (s *Switch) Slots() iter.Seq2[uint32, *Slot] { return s.slots.all() }

// Lose empties the registers, as the loss of the switch's machine does. Nothing passes until Rebuilding is false again.
func (s *Switch) Lose() {
	s.words, s.slots = registers[Word]{}, registers[Slot]{}
	s.Rebuilding = true
}

// good reports whether a region is the one that its slot holds now.
func (s *Switch) good(r Region) bool { return s.words.at(r.Slot).Generation == r.Generation }

// call returns the number of slots of the call that begins with a slot; none if no call begins there.
func (s *Switch) call(first uint32) uint32 {
	if f := s.slots.at(first); f.Place == 0 {
		return uint32(f.Slots)
	}
	return 0
}

// registers is an array of which the pages that were written take memory.
type registers[T any] struct {
	pages map[uint32]*[pageSize]T
	order []uint32 // of the pages
}

const pageSize = 16

func (r *registers[T]) at(i uint32) (v T) {
	if p := r.pages[i/pageSize]; p != nil {
		return p[i%pageSize]
	}
	return v
}

// ref returns a place to change.
func (r *registers[T]) ref(i uint32) *T {
	p := r.pages[i/pageSize]
	if p == nil {
		if r.pages == nil {
			r.pages = map[uint32]*[pageSize]T{}
		}
		p = new([pageSize]T)
		r.pages[i/pageSize] = p
		at, _ := slices.BinarySearch(r.order, i/pageSize)
		r.order = slices.Insert(r.order, at, i/pageSize)
	}
	return &p[i%pageSize]
}

// all are the places of all pages, in order.
func (r *registers[T]) all() iter.Seq2[uint32, *T] {
	return func(yield func(uint32, *T) bool) {
		for _, n := range r.order {
			p := r.pages[n]
			for i := range p {
				if !yield(n*pageSize+uint32(i), &p[i]) {
					return
				}
			}
		}
	}
}
