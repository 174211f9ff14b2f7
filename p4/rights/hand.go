package rights

import (
	"fmt"
	"slices"
)

// Op is an operation of the Gatekeeper on registers.
type Op uint8

// The operations.
const (
	ReadWords Op = iota
	ReadSlots
	FailCall
	Lend
	Seize
	SetWord
	SetSlot
	Rebuilt // the registers are what they should be: packets may pass
	opCount
)

// How many registers one operation reads.
const (
	wordsAtOnce = 8
	slotsAtOnce = 4
)

// Operation is a packet-out of the Gatekeeper. Each may be repeated: the second one changes nothing.
type Operation struct {
	Op       Op
	Election uint64
	First    uint32   // ReadWords, ReadSlots, SetWord, SetSlot: which register
	Ref      Ref      // FailCall, Lend: first slot and number
	Regions  []Region // Lend, up to four; Seize: one
	Owner    Row      // Lend, Seize: who must own the regions
	Lessee   Row      // Lend: who may read them
	Word     Word     // SetWord
	Slot     Slot     // SetSlot
}

// Outcome is how an operation has ended.
type Outcome uint8

// The outcomes.
const (
	Done        Outcome = iota
	Nothing             // there was nothing to do
	Stale               // another Gatekeeper has the switch
	HasChildren         // the call is lent on: its leaves end first
	Denied
)

// Found is the packet-in that answers an operation.
type Found struct {
	Outcome Outcome
	Words   []Word
	Slots   []Slot
}

// operation is a line of the specification's table of operations. The first one whose condition holds decides.
type operation struct {
	name  string // for tests
	ops   uint32 // a bit for each operation
	op    string
	when  string
	holds func(*Switch, *Operation) bool
	then  string
	do    func(*Switch, *Operation) Found
}

const everyOp = 1<<opCount - 1

var operations = []operation{
	{
		"hand-stale", everyOp, "any; a higher election id than the register's becomes the register's", "the election id is below the register's",
		func(s *Switch, o *Operation) bool { return o.Election < s.Election }, "answers `stale`", answer(Stale),
	}, {
		"hand-read", 1<<ReadWords | 1<<ReadSlots, "read words (8 at a time), read slots (4)", "always",
		anyway, "answers with them", (*Switch).read,
	}, {
		"hand-ended", 1 << FailCall, "fail call: first slot, number", "the slot is not the first of a call that is open with this number",
		func(s *Switch, o *Operation) bool {
			f := s.slots.at(o.Ref.Slot)
			return s.call(o.Ref.Slot) == 0 || f.State != Open || f.Number != o.Ref.Number
		}, "answers `nothing to do`", answer(Nothing),
	}, {
		"hand-children", 1 << FailCall, "", "one of its slots has children",
		func(s *Switch, o *Operation) bool { return s.children(o.Ref.Slot) },
		"its slots are *ending*: nothing more is lent on from them; answers `has children`; asked again: leaves first", (*Switch).ending,
	}, {
		"hand-given", 1 << FailCall, "", "*given*",
		func(s *Switch, o *Operation) bool { return s.slots.at(o.Ref.Slot).Given },
		"as EXCEPTION, state failed: regions that the callee owns are the caller's again",
		func(s *Switch, o *Operation) Found {
			s.end(o.Ref.Slot, Failed)
			s.take(o.Ref.Slot)
			return Found{}
		},
	}, {
		"hand-fails", 1 << FailCall, "", "else", anyway, "as EXCEPTION, state failed",
		func(s *Switch, o *Operation) Found {
			s.end(o.Ref.Slot, Failed)
			return Found{}
		},
	}, {
		"hand-lent", 1 << Lend, "lend: slot, number, regions, owner, lessee", "the slot has this number",
		func(s *Switch, o *Operation) bool { return s.slots.at(o.Ref.Slot).Number == o.Ref.Number }, "answers `nothing to do`", answer(Nothing),
	}, {
		"hand-lends", 1 << Lend, "", "the number is above the slot's, which is not open; the regions, up to four, are good, each once, with this owner, and `lent` is not at its end",
		(*Switch).mayShare, "slot = (number, open, *standing*, owner, lessee, regions); `lent` +1 for each region", (*Switch).share,
	}, {
		"hand-seizes", 1 << Seize, "seize: region, owner", "good, with this owner, `lent` 0",
		func(s *Switch, o *Operation) bool {
			return len(o.Regions) == 1 && s.good(o.Regions[0]) && s.words.at(o.Regions[0].Slot) == Word{o.Regions[0].Generation, o.Owner, 0}
		},
		"owner nobody",
		func(s *Switch, o *Operation) Found {
			s.words.ref(o.Regions[0].Slot).Owner = Nobody
			return Found{}
		},
	}, {
		"hand-sets", 1<<SetWord | 1<<SetSlot, "set word, set slot", "the registers are being rebuilt",
		func(s *Switch, _ *Operation) bool { return s.Rebuilding }, "the register has this content", (*Switch).write,
	}, {
		"hand-rebuilt", 1 << Rebuilt, "rebuilt", "always", anyway, "packets pass again",
		func(s *Switch, _ *Operation) Found {
			s.Rebuilding = false
			return Found{}
		},
	}, {
		"hand-denied", everyOp, "any", "else", anyway, "answers `denied`", answer(Denied),
	},
}

// Do does one operation of the Gatekeeper.
func (s *Switch) Do(o *Operation) Found {
	for i := range operations {
		if r := &operations[i]; (r.ops == everyOp || r.ops>>o.Op&1 == 1) && !s.without[len(table)+i] && r.holds(s, o) {
			s.counts[len(table)+i]++
			s.Election = max(s.Election, o.Election)
			return r.do(s, o)
		}
	}
	return Found{Outcome: Nothing}
}

// Operations returns the table of operations. A line without an operation is about the same one as the line before it.
func Operations() (lines []Line) {
	for i := range operations {
		lines = append(lines, Line{operations[i].op, operations[i].when, operations[i].then})
	}
	return lines
}

func anyway(*Switch, *Operation) bool { return true }

func answer(o Outcome) func(*Switch, *Operation) Found {
	return func(*Switch, *Operation) Found { return Found{Outcome: o} }
}

func (s *Switch) read(o *Operation) (f Found) {
	if o.Op == ReadWords {
		for i := range uint32(wordsAtOnce) {
			f.Words = append(f.Words, s.words.at(o.First+i))
		}
		return f
	}
	for i := range uint32(slotsAtOnce) {
		f.Slots = append(f.Slots, s.slots.at(o.First+i))
	}
	return f
}

func (s *Switch) ending(o *Operation) Found {
	for i := range s.call(o.Ref.Slot) {
		s.slots.ref(o.Ref.Slot + i).Ending = true
	}
	return Found{Outcome: HasChildren}
}

func (s *Switch) mayShare(o *Operation) bool {
	k := s.slots.at(o.Ref.Slot)
	if k.State == Open || k.Number >= o.Ref.Number || len(o.Regions) > s.PerSlot || o.Owner == Nobody || o.Lessee == Nobody {
		return false
	}
	for i, r := range o.Regions {
		if w := s.words.at(r.Slot); !s.good(r) || w.Owner != o.Owner || w.Lent >= s.Lent || slices.Contains(o.Regions[:i], r) {
			return false
		}
	}
	return true
}

func (s *Switch) share(o *Operation) Found {
	k := s.slots.ref(o.Ref.Slot)
	*k = Slot{Number: o.Ref.Number, State: Open, Standing: true, Slots: 1, Caller: o.Owner, Callee: o.Lessee}
	for _, r := range o.Regions {
		k.list(r)
		s.words.ref(r.Slot).Lent++
	}
	return Found{}
}

func (s *Switch) write(o *Operation) Found {
	if o.Op == SetWord {
		*s.words.ref(o.First) = o.Word
	} else {
		*s.slots.ref(o.First) = o.Slot
	}
	return Found{}
}

// Check returns what does not hold though it always must, of registers that are not being rebuilt:
//
//   - lent of a word is how many open slots list the region with that generation, given ones left out;
//   - children of a slot is how many open slots name it, with its number, as their parent;
//   - the parent of an open slot is open;
//   - the slots of an open call are all open, next to each other;
//   - nobody owns what was never allocated.
func (s *Switch) Check() error {
	listed, children := map[Region]uint32{}, map[Ref]uint8{}
	for i, k := range s.slots.all() {
		if k.State != Open {
			continue
		}
		if !k.Given {
			for _, r := range k.Regions[:k.Count] {
				listed[r]++
			}
		}
		if k.Parent != (Ref{}) {
			children[k.Parent]++
			if p := s.slots.at(k.Parent.Slot); p.State != Open || p.Number != k.Parent.Number {
				return fmt.Errorf("slot %d is open, and slot %d, which it lends on from, is not", i, k.Parent.Slot)
			}
		}
		for j := range uint32(k.Slots) {
			if o := s.slots.at(i - uint32(k.Place) + j); o.State != Open || o.Number != k.Number || uint32(o.Place) != j || o.Slots != k.Slots {
				return fmt.Errorf("slot %d is open, and slot %d of its call is not", i, i-uint32(k.Place)+j)
			}
		}
	}
	for i, k := range s.slots.all() {
		if n := children[Ref{i, k.Number}]; k.Children != n {
			return fmt.Errorf("slot %d counts %d children, and has %d", i, k.Children, n)
		}
	}
	for i, w := range s.words.all() {
		if n := listed[Region{i, w.Generation}]; w.Lent != n {
			return fmt.Errorf("region %d is lent %d times, and %d open slots list it", i, w.Lent, n)
		}
		if w.Generation == 0 && w.Owner != Nobody {
			return fmt.Errorf("region %d was never allocated, and row %d owns it", i, w.Owner)
		}
	}
	return nil
}
