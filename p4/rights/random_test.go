package rights

import (
	"bytes"
	"math/rand"
	"testing"
)

// source gives numbers that decide what comes next: random ones, or those of a fuzzer.
type source func(below int) int

// arbitrary makes any packet, of any sender, that a switch with three nodes may get. It names what there is more often than
// what there is not.
func (s *Switch) arbitrary(pick source) Packet {
	sender := 1 + pick(3)
	p := from(sender, Kind(pick(int(kindCount))), 1+pick(4))
	if pick(16) == 0 {
		p.Incarnation = 2
	}
	if p.Kind == AllocAnswer || p.Kind == MemoryAnswer && pick(8) > 0 {
		p.Source, p.OK = Source{memoryAt, at(memoryAt)}, pick(8) > 0
	}
	p.Region = s.anyRegion(pick)
	p.Ref = s.anyRef(pick, sender)
	if k := s.slots.at(p.Ref.Slot); pick(4) > 0 && k.State != Unused { // who may, most of the time
		switch p.Kind {
		case Read:
			p.Source, p.Region, p.Ref.Number = Source{uint16(k.Callee), at(int(k.Callee))}, k.Regions[pick(slotRegions)], k.Number
		case Reply, Exception:
			p.Source, p.To, p.Ref.Number = Source{uint16(k.Callee), at(int(k.Callee))}, at(int(k.Caller)), k.Number
		default:
		}
	}
	for range pick(3) {
		p.Results = append(p.Results, s.anyRegion(pick))
	}
	for i := range pick(s.PerCall + 2) {
		b := Block{}
		for range pick(s.PerSlot + 1) {
			r := s.anyRegion(pick)
			for tries := 0; tries < 8 && s.words.at(r.Slot).Owner != Row(sender); tries++ {
				r = s.anyRegion(pick)
			}
			b.Regions = append(b.Regions, r)
		}
		if pick(3) == 0 {
			b.Parent = s.anyRef(pick, 1+pick(3))
			for tries := 0; tries < 8; tries++ {
				if k := s.slots.at(b.Parent.Slot); k.State == Open && k.Callee == Row(sender) {
					b.Parent.Number = k.Number
					copy(b.Regions, k.Regions[:k.Count])
					break
				}
				b.Parent = s.anyRef(pick, 1+pick(3))
			}
		}
		if k := s.slots.at(p.Ref.Slot + uint32(i)); pick(2) == 0 && k.Number == p.Ref.Number { // a copy
			b.Regions = append([]Region(nil), k.Regions[:k.Count]...)
		}
		p.Blocks = append(p.Blocks, b)
	}
	return p
}

func (s *Switch) anyRegion(pick source) Region {
	slot := uint32(1+pick(3))*s.Batch + uint32(pick(4))
	g := s.words.at(slot).Generation
	switch pick(8) {
	case 0:
		g++
	case 1:
		g = uint32(pick(3))
	}
	return Region{slot, g}
}

func (s *Switch) anyRef(pick source, n int) Ref {
	if pick(8) == 0 {
		return Ref{}
	}
	if pick(8) == 0 {
		n = 1 + pick(3)
	}
	slot := uint32(n)*s.Block + uint32(pick(4))
	number := s.slots.at(slot).Number
	switch pick(4) {
	case 0, 1:
		number = max(number, MakeNumber(1, 0)) + 2
	case 2:
		number = MakeNumber(uint32(1+pick(8)/7), uint64(pick(16)))
	}
	return Ref{slot, number}
}

// operation makes any operation of the Gatekeeper.
func (s *Switch) operation(pick source) Operation {
	o := Operation{Op: Op(pick(int(opCount) + 1)), Election: uint64(9 - pick(16)/15), Ref: s.anyRef(pick, 1+pick(3)), Owner: Row(pick(4)), Lessee: Row(pick(4))}
	if pick(4) > 0 {
		o.Ref.Number = s.slots.at(o.Ref.Slot).Number
	}
	if o.Op == Lend {
		o.Ref = Ref{s.Block*4 + uint32(pick(3)), MakeNumber(1, uint64(pick(64)))}
	}
	for range pick(4) {
		r := s.anyRegion(pick)
		o.Regions = append(o.Regions, r)
		if pick(4) > 0 {
			o.Owner = s.words.at(r.Slot).Owner
		}
	}
	return o
}

// abuse judges packets and does operations, and holds each against the theorems.
func abuse(t *testing.T, pick source, steps func() bool) *Switch {
	r := newRig(t, small)
	for n := 1; n <= 3; n++ {
		for place := range 3 {
			r.alloc(n, place)
		}
	}
	for steps() {
		switch pick(32) {
		case 0, 1:
			r.hands(pick)
		case 2:
			to := at(1 + pick(3))
			route := r.Routes[to]
			route.Going = pick(4) == 0
			r.Routes[to] = route
		default:
			p := r.arbitrary(pick)
			before := r.picture()
			v := r.Judge(&p)
			if err := r.step(before, &p, v); err != nil || v.Row == "" {
				t.Fatalf("%+v %v by %q: %v", p, v, v.Row, err)
			}
		}
	}
	return r.Switch
}

// hands does any operation, twice: the second time it must change nothing.
func (r rig) hands(pick source) {
	o := r.operation(pick)
	r.Do(&o)
	once := r.picture()
	r.Do(&o)
	if err := r.Check(); err != nil || !once.equal(r.picture()) {
		r.Errorf("operation %+v, twice: %v", o, err)
	}
}

// TestArbitraryPackets: whatever is sent, the theorems hold, and each row of the table has its turn.
func TestArbitraryPackets(t *testing.T) {
	reached := map[string]uint64{}
	for seed := range int64(40) {
		rnd := rand.New(rand.NewSource(seed))
		n := 0
		s := abuse(t, rnd.Intn, func() bool { n++; return n < 2000 })
		for i := range table {
			reached[table[i].name] += s.counts[i]
		}
	}
	for _, name := range sorted(reached) {
		if reached[name] == 0 && name != "rebuilding" && name != "kind" {
			t.Errorf("no packet came to row %q", name)
		}
	}
}

// FuzzPackets looks for packets that panic, or that make something true that must never be.
func FuzzPackets(f *testing.F) {
	for seed := range int64(4) {
		b := make([]byte, 300)
		rand.New(rand.NewSource(seed)).Read(b)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		in := bytes.NewReader(b)
		abuse(t, func(below int) int {
			c, err := in.ReadByte()
			if err != nil {
				return 0
			}
			return int(c) % below
		}, func() bool { return in.Len() > 0 })
	})
}
