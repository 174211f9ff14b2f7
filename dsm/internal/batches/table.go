package batches

import (
	"slices"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
)

// Low is how many free slots of a machine are few: then it is time to look for more.
const Low = dsmpacket.BatchSlots / 2

// Table is the batches of a node on one machine. The zero Table has none.
type Table struct {
	batches []*batch
	of      map[uint32]*batch
	free    []dsmpacket.RegionID // the region that a free slot has next; the slot that was found free first comes first
	told    int                  // of so many batches, the first ones, the machine has told
	next    int                  // of batches: the next one to ask about
	turn    uint64               // counts questions and allocations
}

// batch is what is known of a batch's slots.
type batch struct {
	number uint32
	slots  [dsmpacket.BatchSlots]slot
	rests  int // how many of them were freed just before the machine told
}

// slot is what is known of a slot.
type slot struct {
	last    uint32 // its last generation, also one that was refused
	state   state
	changed uint64 // Table.turn when its last allocation ended
}

type state uint8

const (
	used state = iota // it has a region, or nobody has asked
	free
	busy // an allocation is under way
)

// Add takes in all batches that the node has on the machine. It reports whether there are new ones.
func (t *Table) Add(numbers []uint32) (news bool) {
	for _, n := range numbers {
		if t.of[n] != nil || n >= dsmpacket.Batches {
			continue
		}
		if t.of == nil {
			t.of = map[uint32]*batch{}
		}
		b := &batch{number: n}
		t.of[n] = b
		t.batches = append(t.batches, b)
		news = true
	}
	return news
}

// Len is how many batches there are.
func (t *Table) Len() int { return len(t.batches) }

// Free is how many slots are free.
func (t *Table) Free() int { return len(t.free) }

// Take returns a region that may be allocated now; false if no slot is free. Done must follow.
func (t *Table) Take() (id dsmpacket.RegionID, ok bool) {
	if len(t.free) == 0 {
		return 0, false
	}
	id = t.free[0]
	t.free = t.free[1:]
	s := t.slot(id)
	s.last, s.state = id.Generation(), busy
	return id, true
}

// Done says that it is known what became of an allocation. Whether the slot is free is for the machine to tell.
func (t *Table) Done(id dsmpacket.RegionID) {
	t.turn++
	s := t.slot(id)
	s.state, s.changed = used, t.turn
}

// Refused is Done for an allocation whose slot was not free. What is known of the batch is old: none of its slots is free until the machine
// has told of it.
func (t *Table) Refused(id dsmpacket.RegionID) {
	t.Done(id)
	t.free = slices.DeleteFunc(t.free, func(o dsmpacket.RegionID) bool {
		old := o.Batch() == id.Batch()
		if old {
			t.Done(o)
		}
		return old
	})
}

func (t *Table) slot(id dsmpacket.RegionID) *slot {
	return &t.of[id.Batch()].slots[id.Slot()%dsmpacket.BatchSlots]
}

// Ask returns the batch that the machine is to be asked about next: one of which it has not told, or that of which it has told longest ago.
// It is false if there is none with a slot that may have become free. Learn is told the turn of the question.
func (t *Table) Ask() (number uint32, turn uint64, ok bool) {
	if t.told < len(t.batches) {
		t.turn++
		return t.batches[t.told].number, t.turn, true
	}
	for range t.batches {
		b := t.batches[t.next%len(t.batches)]
		t.next = (t.next + 1) % len(t.batches)
		for i := range b.slots {
			if b.slots[i].state == used {
				t.turn++
				return b.number, t.turn, true
			}
		}
	}
	return 0, 0, false
}

// Learn takes in what the machine tells of a batch. It says nothing about slots in which the node has allocated since it has asked.
func (t *Table) Learn(number uint32, turn uint64, states *[dsmpacket.BatchSlots]dsmpacket.SlotState) {
	b := t.of[number]
	if b == nil {
		return
	}
	if t.told < len(t.batches) && t.batches[t.told] == b {
		t.told++
	}
	b.rests = 0
	for i, now := range states {
		s := &b.slots[i]
		switch {
		case s.state != used || s.changed > turn:
			continue
		case now.Rests:
			b.rests++
		}
		s.last = max(now.Generation, min(s.last, now.Generation+dsmpacket.MostAhead-1))
		if !now.Live && !now.Rests && s.last < dsmpacket.MaxGeneration {
			s.state = free
			t.free = append(t.free, dsmpacket.IDOf(number*dsmpacket.BatchSlots+uint32(i), s.last+1)) //nolint:gosec // 64
		}
	}
}

// Rests reports whether slots are to be free soon: those that were freed just before the machine told of them, or of which it has not told.
func (t *Table) Rests() bool {
	return t.told < len(t.batches) || slices.ContainsFunc(t.batches, func(b *batch) bool { return b.rests > 0 })
}
