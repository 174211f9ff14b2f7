package record

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
	"github.com/bifrost-rack/bifrost/rpc/trailer"
)

// history draws the records that a node might write: of a few executions, of which many
// are cut off and run again, of a durable main and of a service with state.
type history struct {
	rng     *rand.Rand
	state   State
	records [][]byte
	main    uint32
}

func (h *history) write(r Record) {
	b := Append(nil, r)
	if err := h.state.Apply(r); err != nil {
		panic(fmt.Sprintf("record %d, %s: %v", len(h.records), r.Kind(), err))
	}
	h.records = append(h.records, b)
}

func (h *history) bytes() []byte {
	b := make([]byte, h.rng.IntN(6))
	for i := range b {
		b[i] = byte(h.rng.IntN(256))
	}
	return b
}

func (h *history) owed() (o Owed) {
	for range h.rng.IntN(3) {
		o.Machines = append(o.Machines, uint8(h.rng.IntN(3)))
		o.Called = append(o.Called, h.call(rpcpacket.ID{9, 15: byte(h.rng.IntN(100))}))
		o.Oneways = append(o.Oneways, Oneway{ID: rpcpacket.ID{8, 15: byte(h.rng.IntN(100))}, Place: h.rng.Uint64(), Message: h.bytes()})
		o.Frees = append(o.Frees, [16]byte{byte(h.rng.IntN(3))})
		o.Rest = append(o.Rest, [16]byte{byte(h.rng.IntN(3))})
	}
	return o
}

// call is one of any kind, and in any slots.
func (h *history) call(id rpcpacket.ID) Call {
	k := Call{ID: id, Node: [16]byte{byte(h.rng.IntN(3))}, Lends: h.rng.IntN(2) == 0, GivenUp: h.rng.IntN(2) == 0}
	if h.rng.IntN(3) > 0 {
		k.Slot, k.Number, k.Slots = rpcpacket.Slot(h.rng.Uint32()), rpcpacket.Number(h.rng.Uint64()), uint8(h.rng.IntN(256)) //nolint:gosec // a byte
	}
	if h.rng.IntN(3) == 0 {
		k.Incarnation = h.rng.Uint32()
	}
	return k
}

func (h *history) change() []byte {
	switch h.rng.IntN(3) {
	case 0:
		return trailer.Section{Type: trailer.Snapshot, Data: h.bytes()}.Append(nil)
	case 1:
		return trailer.Section{Type: trailer.Delta, Data: h.bytes()}.Append(nil)
	}
	return nil
}

func callerOf(number uint64) [16]byte { return [16]byte{15: byte(number)} }

// plain is the n-th plain call of a caller's incarnation 1 in its slot.
func plain(number, n uint64) (id rpcpacket.ID, at Place, its rpcpacket.Number) {
	at, its = Place{callerOf(number), rpcpacket.Slot(16 + number)}, rpcpacket.NumberOf(1, n)
	return rpcpacket.PlainID(netip.AddrFrom16(at.Caller), at.Slot, its), at, its
}

// step writes a record that may follow.
func (h *history) step() {
	id, at, number := plain(1+h.rng.Uint64N(3), 1+h.rng.Uint64N(12))
	e := h.state.Execution(id)
	entry := trailer.Section{Type: trailer.Random, Index: h.rng.Uint32N(9), Data: h.bytes()}.Append(nil)
	main := rpcpacket.ID{77}
	switch n := h.rng.IntN(12); {
	case n == 0:
		var f Forgotten
		for _, e := range h.state.Executions() {
			if !e.Forgotten && e.Checkpoint == nil && e.ID != main && h.rng.IntN(3) == 0 {
				f.Executions = append(f.Executions, e.ID)
			}
		}
		if _, at, _ := plain(1+h.rng.Uint64N(3), 1); h.rng.IntN(3) == 0 {
			f.Slots = append(f.Slots, Slot{at, max(h.state.Floor(at), rpcpacket.NumberOf(1, 0)) + rpcpacket.Number(h.rng.Uint64N(3))})
		}
		if h.rng.IntN(9) == 0 {
			f.Callers = append(f.Callers, Caller{Node: callerOf(h.rng.Uint64N(4)), Dead: uint32(h.rng.IntN(3)), Gone: h.rng.IntN(2) == 0})
		}
		h.write(&f)
	case n == 1:
		h.main++
		h.write(&Checkpoint{Main: main, Index: h.main, State: h.bytes(), Owed: h.owed()})
	case n == 2 && h.state.Execution(main) != nil && len(h.state.Execution(main).Owed().Oneways) > 0:
		h.write(&Delivered{Execution: main, Oneway: h.state.Execution(main).Owed().Oneways[0].ID})
	case n == 2:
		h.write(&Journal{Execution: main, Entries: entry})
	case n == 3 && h.state.Execution(main) != nil && h.state.Execution(main).Checkpoint != nil && !h.state.Execution(main).Over:
		h.write(&Over{Execution: main})
	case e == nil && number < h.state.Floor(at), e != nil && e.Over:
	case e == nil && n < 6:
		h.write(&Begun{Execution: id, Caller: at.Caller, Incarnation: 1, Slot: at.Slot, Number: number, Call: h.bytes()})
	case e == nil || e.Done == nil && n < 7:
		h.write(&Journal{Execution: id, Entries: entry, Called: h.owed().Called})
	case e.Begun != nil && n == 8:
		again := *e.Begun
		again.Attempt++
		h.write(&again)
	case e.Done == nil:
		d := &Done{
			Execution: id, Caller: at.Caller, Incarnation: 1, Slot: at.Slot, Number: number,
			Answer: h.bytes(), Service: 5, State: h.change(), Over: h.rng.IntN(2) == 0,
		}
		if !d.Over {
			d.Owed = h.owed()
		}
		h.write(d)
	case n == 10 && e.Done != nil && len(e.Done.Owed.Oneways) > 0:
		h.write(&Moved{Execution: id, Oneway: e.Done.Owed.Oneways[0].ID, Node: [16]byte{7}})
	case n == 11 && e.Done != nil && len(e.Done.Owed.Oneways) > 0:
		h.write(&Delivered{Execution: id, Oneway: e.Done.Owed.Oneways[0].ID})
	default:
		h.write(&Over{Execution: id})
	}
}

// TestBaseStandsForAll: wherever a ledger gets a base, and however many, the base with
// what follows adds up to what all records do.
func TestBaseStandsForAll(t *testing.T) {
	for seed := range uint64(300) {
		h := &history{rng: rand.New(rand.NewPCG(seed, 7))}
		from := 0
		for range 20 + h.rng.IntN(150) {
			h.step()
			if h.rng.IntN(30) == 0 {
				from = len(h.records)
				h.write(h.state.Base())
			}
		}
		want := Append(nil, h.state.Base())
		for _, part := range [][][]byte{h.records, h.records[from:]} {
			s, err := Fold(part)
			if err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			if got := Append(nil, s.Base()); !bytes.Equal(got, want) {
				t.Fatalf("seed %d: the last %d of %d records add up to\n%x, not\n%x", seed, len(part), len(h.records), got, want)
			}
		}
	}
}

// TestState_At: an execution is found by the place in which its call has come, as long as anything is known of it, and by the next
// incarnation, too.
func TestState_At(t *testing.T) {
	for _, derived := range []bool{false, true} {
		id, at, number := plain(1, 5)
		if derived {
			id = rpcpacket.ID{5}
			id.Derive()
		}
		var s State
		apply := func(r Record) {
			t.Helper()
			if err := s.Apply(r); err != nil {
				t.Fatal(err)
			}
			var again State
			if err := again.Apply(s.Base()); err != nil {
				t.Fatal(err)
			}
			for _, s := range []*State{&s, &again} {
				for _, other := range []bool{s.At(Place{callerOf(2), at.Slot}, number) != nil, s.At(Place{at.Caller, at.Slot + 1}, number) != nil, s.At(at, number+1) != nil} {
					if other {
						t.Errorf("derived %t: %s: there is one in another place", derived, r.Kind())
					}
				}
				if got := s.At(at, number); got != s.Execution(id) {
					t.Errorf("derived %t: %s: found %+v", derived, r.Kind(), got)
				}
			}
		}
		begun := &Begun{Execution: id, Caller: at.Caller, Incarnation: 1, Slot: at.Slot, Number: number}
		apply(begun)
		second := *begun
		second.Attempt++
		apply(&second)
		apply(&Done{Execution: id, Caller: at.Caller, Incarnation: 1, Slot: at.Slot, Number: number, Owed: Owed{Machines: []uint8{1}}})
		apply(&Forgotten{Executions: []rpcpacket.ID{id}})
		if s.At(at, number) == nil {
			t.Errorf("derived %t: it still owes something, and is not found", derived)
		}
		apply(&Over{Execution: id})
		if s.At(at, number) != nil || len(s.attempts) > 0 {
			t.Errorf("derived %t: what is forgotten is found: %v", derived, s.attempts)
		}
	}
}

// TestDirect: a call of policy none is bound to an incarnation, and nobody is told to forget it.
func TestDirect(t *testing.T) {
	for _, c := range []struct {
		k    Call
		want bool
	}{{Call{}, false}, {Call{Node: [16]byte{1}}, true}, {Call{Node: [16]byte{1}, Incarnation: 3}, false}} {
		if c.k.Direct() != c.want {
			t.Errorf("%+v is direct: %t", c.k, !c.want)
		}
	}
}

// TestRefused: what does not follow from the records before it is an error that says so,
// and changes nothing.
func TestRefused(t *testing.T) {
	a, at, five := plain(1, 5)
	b, _, six := plain(1, 6)
	below, _, three := plain(1, 3)
	entry := trailer.Section{Type: trailer.Time, Data: make([]byte, 8)}.Append(nil)
	before := []Record{
		&Begun{Execution: a, Caller: at.Caller, Slot: at.Slot, Number: five, Attempt: 1}, &Journal{Execution: a, Entries: entry},
		&Done{Execution: b, Caller: at.Caller, Slot: at.Slot, Number: six, Service: 3, State: trailer.Section{Type: trailer.Snapshot, Data: []byte("s")}.Append(nil), Owed: Owed{Machines: []uint8{1}}},
		&Checkpoint{Main: rpcpacket.ID{9}, Index: 2},
		&Forgotten{Slots: []Slot{{at, five - 1}}},
	}
	s := new(State)
	for _, r := range before {
		if err := s.Apply(r); err != nil {
			t.Fatal(err)
		}
	}
	want := Append(nil, s.Base())
	for _, c := range []struct {
		why string
		r   Record
	}{
		{"later attempt", &Begun{Execution: a, Caller: at.Caller, Slot: at.Slot, Number: five, Attempt: 1}},
		{"has no slot", &Begun{Execution: a, Attempt: 2}},
		{"has no slot", &Done{Execution: a}},
		{"it is done", &Begun{Execution: b}},
		{"below its slot", &Begun{Execution: below, Caller: at.Caller, Slot: at.Slot, Number: three}},
		{"below its slot", &Done{Execution: below, Caller: at.Caller, Slot: at.Slot, Number: three}},
		{"is not owed", &Delivered{Execution: b}},
		{"is not owed", &Moved{Execution: b}},
		{"no entries", &Journal{Execution: a}},
		{"no entry of a journal", &Journal{Execution: a, Entries: trailer.Section{Type: trailer.Delta}.Append(nil)}},
		{"it is done", &Done{Execution: b}},
		{"no change of a state", &Done{Execution: a, Caller: at.Caller, Slot: at.Slot, Number: five, Service: 3, State: entry}},
		{"is a durable main", &Done{Execution: rpcpacket.ID{9}}},
		{"nothing is owed", &Over{Execution: rpcpacket.ID{8}}},
		{"not known", &Forgotten{Executions: []rpcpacket.ID{{7}}}},
		{"not known", &Forgotten{Executions: []rpcpacket.ID{b, b}}},
		{"later checkpoint", &Checkpoint{Main: rpcpacket.ID{9}, Index: 2}},
		{"no durable main", &Checkpoint{Main: a, Index: 1}},
		{"stands for 9", &Base{Records: 9}},
		{"add up to this", &Base{Records: 5, Executions: []Execution{{ID: a}}}},
		{"out of order", &Base{Records: 5, Executions: []Execution{{ID: b, Begun: &Begun{Execution: b}}, {ID: a, Begun: &Begun{Execution: a}}}}},
	} {
		err := s.Apply(c.r)
		if err == nil || !strings.Contains(err.Error(), c.why) {
			t.Errorf("%s: %v", c.why, err)
		}
		if got := Append(nil, s.Base()); !bytes.Equal(got, want) {
			t.Fatalf("%s: the state has changed", c.why)
		}
	}
	if _, err := Fold([][]byte{Append(nil, before[0]), {99}}); err == nil || !strings.Contains(err.Error(), "record 1: ") {
		t.Errorf("a record of an unknown kind: %v", err)
	}
}

// TestMainMemory: a checkpoint owes the commit of what the main has changed in memory, until the main changes memory
// again. What it has changed since is known until the next checkpoint.
func TestMainMemory(t *testing.T) {
	main := rpcpacket.ID{77}
	for name, c := range map[string]struct {
		records        []Record
		owed, machines []uint8
	}{
		"changed":          {[]Record{&Journal{Execution: main, Machines: []uint8{2}}}, nil, []uint8{2}},
		"a checkpoint":     {[]Record{&Journal{Execution: main, Machines: []uint8{2}}, &Checkpoint{Main: main, Index: 3, Owed: Owed{Machines: []uint8{2}, Run: 1}}}, []uint8{2}, nil},
		"changed again":    {[]Record{&Checkpoint{Main: main, Index: 3, Owed: Owed{Machines: []uint8{2}, Run: 1}}, &Journal{Execution: main, Machines: []uint8{1}}}, nil, []uint8{1}},
		"a second one":     {[]Record{&Checkpoint{Main: main, Index: 3, Owed: Owed{Machines: []uint8{2}, Run: 1}}, &Checkpoint{Main: main, Index: 4}}, nil, nil},
		"all acknowledged": {[]Record{&Checkpoint{Main: main, Index: 3, Owed: Owed{Machines: []uint8{2}, Run: 1}}, &Over{Execution: main}}, nil, nil},
	} {
		var s State
		for _, r := range c.records {
			if err := s.Apply(r); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		var e Execution
		if is := s.Execution(main); is != nil {
			e = *is
		}
		if owed := e.Owed().Machines; !slices.Equal(owed, c.owed) || !slices.Equal(e.Machines, c.machines) {
			t.Errorf("%s: machines %v are to commit, and %v changed; want %v and %v", name, owed, e.Machines, c.owed, c.machines)
		}
	}
}

// TestState_Linear: what a record takes does not grow with those that there are: changes of a state, and of a main's journal.
func TestState_Linear(t *testing.T) {
	const n = 1 << 12
	done := func(i uint64) Record {
		id, at, number := plain(1, i+1)
		return &Done{
			Execution: id, Caller: at.Caller, Incarnation: 1, Slot: at.Slot, Number: number, Service: 1, Over: true,
			State: trailer.Section{Type: trailer.Delta, Data: []byte{1}}.Append(nil),
		}
	}
	journal := func(i uint64) Record {
		return &Journal{Execution: rpcpacket.ID{77}, Entries: trailer.Section{Type: trailer.Random, Index: uint32(i)}.Append(nil), Called: []Call{{}}} //nolint:gosec // small
	}
	for name, next := range map[string]func(uint64) Record{"changes of a state": done, "journal": journal} {
		s := new(State)
		if err := s.Apply(&Checkpoint{Main: rpcpacket.ID{77}, Index: 1}); err != nil {
			t.Fatal(err)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for i := range uint64(n) {
			if err := s.Apply(next(i)); err != nil {
				t.Fatal(err)
			}
		}
		runtime.ReadMemStats(&after)
		if each := (after.TotalAlloc - before.TotalAlloc) / n; each > 4<<10 {
			t.Errorf("%s: %d records take %d bytes of memory each", name, n, each)
		}
		if v, _ := s.Service(1); len(v.Deltas)+len(s.Execution(rpcpacket.ID{77}).Called) != n {
			t.Errorf("%s: %d deltas and %d calls are kept", name, len(v.Deltas), len(s.Execution(rpcpacket.ID{77}).Called))
		}
	}
}
