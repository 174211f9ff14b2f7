package rights

import (
	"fmt"
	"maps"
	"slices"
)

// picture is the content of all registers that are not zero.
type picture struct {
	words map[uint32]Word
	slots map[uint32]Slot
}

func (s *Switch) picture() picture {
	p := picture{map[uint32]Word{}, map[uint32]Slot{}}
	for i, w := range s.words.all() {
		if *w != (Word{}) {
			p.words[i] = *w
		}
	}
	for i, k := range s.slots.all() {
		if *k != (Slot{}) {
			p.slots[i] = *k
		}
	}
	return p
}

func (p picture) equal(o picture) bool {
	return maps.Equal(p.words, o.words) && maps.Equal(p.slots, o.slots)
}

// step returns what one packet has done that no packet may do. It does not look at how the table says it, but at what the
// table is for: the theorems of section 10 of docs/rights.md.
func (s *Switch) step(before picture, p *Packet, v Verdict) error {
	after := s.picture()
	if err := s.Check(); err != nil && !s.Rebuilding {
		return err
	}
	if v.Action == Drop || v.Action == TurnAround && v.Row != "call-refused" {
		if !before.equal(after) {
			return fmt.Errorf("a packet that %v has changed registers", v)
		}
		return nil
	}
	id, to := s.Identities[p.Source], s.Routes[p.To]
	old := before.words[p.Region.Slot]
	if v.Action == PassToAll && p.Kind != Alloc && (old.Lent > 0 || old.Owner != id.Row || old.Generation != p.Region.Generation) {
		return fmt.Errorf("a %v passes, of a region with the word %+v", p.Kind, old)
	}
	if v.Action == Pass && p.Kind == Read {
		k := before.slots[p.Ref.Slot]
		byCall := k.State == Open && k.Number == p.Ref.Number && k.Callee == id.Row && k.Lists(p.Region) && !k.Given
		if old.Generation != p.Region.Generation || old.Owner != id.Row && !byCall {
			return fmt.Errorf("a READ passes that nobody has permitted")
		}
	}
	if err := wordsChanged(before, after, p, id.Row, to.Row); err != nil {
		return err
	}
	return slotsChanged(before, after, p, to)
}

// wordsChanged returns which change of a word is no change that a packet of this kind may make.
func wordsChanged(before, after picture, p *Packet, from, to Row) error {
	for i, w := range after.words {
		old := before.words[i]
		switch {
		case w.Generation != old.Generation:
			if p.Kind != AllocAnswer || !p.OK || w.Generation < old.Generation || w.Owner != to {
				return fmt.Errorf("a %v changes the word of region %d from %+v to %+v", p.Kind, i, old, w)
			}
		case w.Owner != old.Owner:
			k := before.slots[p.Ref.Slot]
			given := p.Kind == Exception && k.Given && old.Owner == k.Callee && w.Owner == k.Caller
			handed := (p.Kind == Oneway || p.Kind == Reply) && old.Owner == from && w.Owner == to && old.Lent == 0
			if !given && !handed || k.Number == p.Ref.Number && k.State != Open {
				return fmt.Errorf("a %v changes the owner of region %d from %d to %d", p.Kind, i, old.Owner, w.Owner)
			}
		}
	}
	return nil
}

// slotsChanged returns which change of a slot is none that a packet may make.
func slotsChanged(before, after picture, p *Packet, to Route) error {
	moves := [][2]State{{Unused, Open}, {Closed, Open}, {Refused, Open}, {Failed, Open}, {Unused, Refused}, {Closed, Refused}, {Refused, Refused}, {Failed, Refused}, {Open, Closed}}
	for i, k := range after.slots {
		old := before.slots[i]
		if k == old {
			continue
		}
		if k.Number == old.Number && k.State == old.State { // a parent, whose children have changed
			old.Children = k.Children
			if k != old {
				return fmt.Errorf("slot %d has changed in its state", i)
			}
			continue
		}
		switch {
		case !slices.Contains(moves, [2]State{old.State, k.State}):
			return fmt.Errorf("slot %d goes from %v to %v", i, old.State, k.State)
		case old.State == Open && (old.Children > 0 || k.Number != old.Number):
			return fmt.Errorf("slot %d has %d children, and is closed", i, old.Children)
		case old.State != Open && k.Number <= old.Number:
			return fmt.Errorf("slot %d goes from number %d to %d", i, old.Number, k.Number)
		case k.State == Open && (to.Going || to.Row == Nobody || k.Callee != to.Row || k.Number != p.Ref.Number):
			return fmt.Errorf("slot %d opens to who is not there", i)
		}
	}
	return nil
}
