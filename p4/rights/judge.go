package rights

import "slices"

// ---- memory

// owns reports whether the sender is the owner of a region.
func (t *turn) owns(r Region) bool { return t.good(r) && t.words.at(r.Slot).Owner == t.id.Row }

// control is what a control rule of a node must say that it may allocate the packet's region.
func (t *turn) control(n Row) Control {
	return Control{n, t.p.Machine, t.p.Region.Slot / t.Batch}
}

// controls reports whether a node may allocate the packet's region.
func (t *turn) controls(n Row) bool {
	_, may := t.Controls[t.control(n)]
	return may
}

// has reports whether the sender may use a region by a use of a slot.
func (t *turn) has(by Ref, r Region) bool {
	s := t.slots.at(by.Slot)
	return s.State == Open && !s.Given && s.Number == by.Number && s.Callee == t.id.Row && s.Lists(r)
}

func (t *turn) allocates() bool {
	return t.p.OK && t.controls(t.to.Row) && t.p.Region.Generation > t.words.at(t.p.Region.Slot).Generation
}

func (t *turn) allocate() Verdict {
	*t.words.ref(t.p.Region.Slot) = Word{Generation: t.p.Region.Generation, Owner: t.to.Row}
	at := t.p.Region.Slot % t.Batch
	return Verdict{Action: Pass, HalfUsed: t.Controls[t.control(t.to.Row)] && (at == t.Batch/2 || at == t.Batch*3/4)}
}

// ---- CALL, ONEWAY

// first returns the packet's first slot.
func (t *turn) first() Slot { return t.slots.at(t.p.Ref.Slot) }

// gone reports whether the destination takes no new calls.
func (t *turn) gone() bool { return t.to.Row == Nobody || t.to.Going }

func (t *turn) malformed() bool {
	n := uint32(len(t.p.Blocks))
	return n < 1 || int(n) > t.PerCall || t.p.Ref.Slot%t.Block+n > t.Block ||
		slices.ContainsFunc(t.p.Blocks, func(b Block) bool { return len(b.Regions) > t.PerSlot })
}

// isNew reports whether a CALL may open its slots: its number is above that of each, and none is open.
func (t *turn) isNew() bool {
	for i := range t.p.Blocks {
		if s := t.slots.at(t.p.Ref.Slot + uint32(i)); s.State == Open || s.Number >= t.p.Ref.Number {
			return false
		}
	}
	return true
}

// mayLend reports whether the sender has the right to lend, or hand over, all regions of a new call. A parent must be good
// though no region needs it: else a stranger could keep a call open by naming it.
func (t *turn) mayLend() bool {
	var seen [slotRegions * slotRegions]uint32
	n := 0
	for _, b := range t.p.Blocks {
		parent := Slot{}
		if b.Parent != (Ref{}) {
			parent = t.slots.at(b.Parent.Slot)
			if t.p.Kind == Oneway || parent.State != Open || parent.Given || parent.Ending || parent.Number != b.Parent.Number || parent.Callee != t.id.Row {
				return false
			}
		}
		for _, r := range b.Regions {
			if !t.good(r) || slices.Contains(seen[:n], r.Slot) || !t.owns(r) && !parent.Lists(r) {
				return false
			}
			seen[n] = r.Slot
			n++
		}
	}
	return true
}

// full reports whether a new call that would be permitted has to wait.
func (t *turn) full() bool {
	for i, b := range t.p.Blocks {
		for _, r := range b.Regions {
			if w := t.words.at(r.Slot); w.Lent >= t.Lent || t.p.Kind == Oneway && w.Lent > 0 {
				return true
			}
		}
		if b.Parent == (Ref{}) {
			continue
		}
		more := 0 // blocks of this call with this parent
		for _, o := range t.p.Blocks[:i+1] {
			if o.Parent == b.Parent {
				more++
			}
		}
		if int(t.slots.at(b.Parent.Slot).Children)+more > int(t.Children) {
			return true
		}
	}
	return false
}

// set begins a use of all slots of a call.
func (t *turn) set(state State) {
	for i := range t.p.Blocks {
		*t.slots.ref(t.p.Ref.Slot + uint32(i)) = Slot{
			Number: t.p.Ref.Number, State: state, Place: uint8(i), Slots: uint8(len(t.p.Blocks)), Caller: t.id.Row, Callee: t.to.Row,
		}
	}
}

func (t *turn) refuse() Verdict {
	t.set(Refused)
	return denied(t)
}

// open opens the slots of a call: a CALL lends, a ONEWAY gives.
func (t *turn) open() Verdict {
	t.set(Open)
	for i, b := range t.p.Blocks {
		s := t.slots.ref(t.p.Ref.Slot + uint32(i))
		s.Given = t.p.Kind == Oneway
		for _, r := range b.Regions {
			s.list(r)
			if w := t.words.ref(r.Slot); s.Given {
				w.Owner = t.to.Row
			} else {
				w.Lent = min(w.Lent+1, t.Lent)
			}
		}
		if b.Parent != (Ref{}) {
			s.Parent = b.Parent
			if p := t.slots.ref(b.Parent.Slot); p.Children < t.Children {
				p.Children++
			}
		}
	}
	return Verdict{Action: Pass}
}

// isCopy reports whether the packet's slots are those of one call with its number.
func (t *turn) isCopy() bool {
	for i := range t.p.Blocks {
		s := t.slots.at(t.p.Ref.Slot + uint32(i))
		if s.Number != t.p.Ref.Number || int(s.Place) != i || int(s.Slots) != len(t.p.Blocks) {
			return false
		}
	}
	return true
}

// same reports whether a copy goes to the callee, and lists what the slots list, in the same order: a copy is the same packet.
func (t *turn) same() bool {
	for i, b := range t.p.Blocks {
		s := t.slots.at(t.p.Ref.Slot + uint32(i))
		if s.Callee != t.to.Row || !slices.Equal(b.Regions, s.Regions[:s.Count]) {
			return false
		}
	}
	return true
}

// ---- REPLY, EXCEPTION

// answers reports whether the packet is of the callee of an open or closed call, to its caller.
func (t *turn) answers() bool {
	s := t.first()
	return t.call(t.p.Ref.Slot) > 0 && (s.State == Open || s.State == Closed) && !s.Standing &&
		s.Number == t.p.Ref.Number && s.Caller == t.to.Row && s.Callee == t.id.Row
}

// children reports whether one of a call's slots is lent on from.
func (s *Switch) children(first uint32) bool {
	for i := range s.call(first) {
		if s.slots.at(first+i).Children > 0 {
			return true
		}
	}
	return false
}

func (t *turn) mayReturn() bool {
	return len(t.p.Results) <= t.Results && !slices.ContainsFunc(t.p.Results, func(r Region) bool {
		return !t.owns(r) && !t.isCallers(r)
	})
}

// isCallers reports whether a result is the caller's already.
func (t *turn) isCallers(r Region) bool { return t.good(r) && t.words.at(r.Slot).Owner == t.to.Row }

func (t *turn) returnsLent() bool {
	return slices.ContainsFunc(t.p.Results, func(r Region) bool { return !t.isCallers(r) && t.words.at(r.Slot).Lent > 0 })
}

func (t *turn) closes() Verdict {
	v := Verdict{Action: Pass}
	for i, r := range t.p.Results {
		if t.isCallers(r) {
			v.Had |= 1 << i
		}
	}
	for _, r := range t.p.Results {
		t.words.ref(r.Slot).Owner = t.to.Row
	}
	t.end(t.p.Ref.Slot, Closed)
	return v
}

func (t *turn) giveBack() Verdict {
	t.end(t.p.Ref.Slot, Closed)
	t.take(t.p.Ref.Slot)
	return Verdict{Action: Pass}
}

func (t *turn) returned() bool {
	return t.first().State == Closed && len(t.p.Results) <= t.Results && !slices.ContainsFunc(t.p.Results, func(r Region) bool { return !t.isCallers(r) })
}

func (t *turn) passAgain() Verdict {
	return Verdict{Action: Pass, Had: uint16(1<<len(t.p.Results) - 1)}
}

// end ends the slots of a call: what they list is lent no longer, and their parents have a child less.
func (s *Switch) end(first uint32, state State) {
	for i := range s.call(first) {
		k := s.slots.ref(first + i)
		k.State, k.Ending = state, false
		for _, r := range k.Regions[:k.Count] {
			if w := s.words.ref(r.Slot); !k.Given && w.Generation == r.Generation && w.Lent > 0 {
				w.Lent--
			}
		}
		if k.Parent != (Ref{}) {
			if p := s.slots.ref(k.Parent.Slot); p.Number == k.Parent.Number && p.Children > 0 {
				p.Children--
			}
		}
	}
}

// take gives the caller of a one-way back what its slots list and the callee still has.
func (s *Switch) take(first uint32) {
	for i := range s.call(first) {
		k := s.slots.at(first + i)
		for _, r := range k.Regions[:k.Count] {
			if w := s.words.ref(r.Slot); w.Generation == r.Generation && w.Owner == k.Callee {
				w.Owner = k.Caller
			}
		}
	}
}
