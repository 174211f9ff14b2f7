package batches

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
)

// machine is a memory machine as far as slots go. Its answers may be late.
type machine struct {
	last  map[uint32]uint32
	live  map[uint32]bool
	rests map[uint32]bool
}

func (m *machine) tell(number uint32) (states [dsmpacket.BatchSlots]dsmpacket.SlotState) {
	for i := range states {
		at := number*dsmpacket.BatchSlots + uint32(i)
		states[i] = dsmpacket.SlotState{Generation: m.last[at], Live: m.live[at], Rests: m.rests[at]}
	}
	return states
}

// Whatever is told when, and however late: a region that is taken is one that the machine makes, unless an allocation of the same slot is under
// way; and every slot that is free comes up in the end.
func TestTable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &machine{last: map[uint32]uint32{}, live: map[uint32]bool{}, rests: map[uint32]bool{}}
		var table Table
		type told struct {
			number uint32
			turn   uint64
			states [dsmpacket.BatchSlots]dsmpacket.SlotState
		}
		var answers []told
		var under, live []dsmpacket.RegionID
		batches := uint32(0)
		pick := func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "which") }
		t.Repeat(map[string]func(*rapid.T){
			"add": func(*rapid.T) {
				batches = min(batches+1, 3)
				all := []uint32{1, 2, 3}[:batches]
				had := table.Len()
				if news := table.Add(all); news != (table.Len() > had) || table.Len() != len(all) {
					t.Fatalf("%d batches, news %v", table.Len(), news)
				}
			},
			"ask": func(*rapid.T) {
				if n, turn, ok := table.Ask(); ok {
					answers = append(answers, told{n, turn, m.tell(n)})
				}
			},
			"learn": func(*rapid.T) {
				if len(answers) > 0 {
					i := pick(len(answers))
					table.Learn(answers[i].number, answers[i].turn, &answers[i].states)
				}
			},
			"take": func(*rapid.T) {
				free := table.Free()
				id, ok := table.Take()
				if ok != (free > 0) {
					t.Fatalf("%d slots were free, and one was taken: %v", free, ok)
				}
				if ok {
					under = append(under, id)
				}
			},
			"made": func(*rapid.T) {
				if len(under) == 0 {
					return
				}
				i := pick(len(under))
				id := under[i]
				under = append(under[:i], under[i+1:]...)
				if m.live[id.Slot()] || id.Generation() <= m.last[id.Slot()] || m.rests[id.Slot()] {
					t.Fatalf("%s, whose slot has had generation %d, live %v, rests %v", id, m.last[id.Slot()], m.live[id.Slot()], m.rests[id.Slot()])
				}
				switch rapid.IntRange(0, 2).Draw(t, "made") {
				case 0:
					m.last[id.Slot()], m.live[id.Slot()] = id.Generation(), true
					live = append(live, id)
					table.Done(id)
				case 1:
					table.Done(id)
				case 2:
					had := table.Free()
					if table.Refused(id); table.Free() > had {
						t.Fatalf("%d slots are free after a refusal, %d were", table.Free(), had)
					}
				}
			},
			"free": func(*rapid.T) {
				if len(live) > 0 {
					i := pick(len(live))
					m.live[live[i].Slot()], m.rests[live[i].Slot()] = false, true
					live = append(live[:i], live[i+1:]...)
				}
			},
			"rest": func(*rapid.T) { clear(m.rests) },
		})
		clear(m.rests)
		for range 4 * table.Len() {
			if n, turn, ok := table.Ask(); ok {
				states := m.tell(n)
				table.Learn(n, turn, &states)
			}
		}
		if want := int(batches)*dsmpacket.BatchSlots - len(live) - len(under); table.Free() != want {
			t.Fatalf("%d slots are free, want %d", table.Free(), want)
		}
	})
}

// A slot whose generations are used up retires: nothing is allocated there any more.
func TestTable_Retires(t *testing.T) {
	var table Table
	table.Add([]uint32{1})
	states := [dsmpacket.BatchSlots]dsmpacket.SlotState{}
	for i := range states {
		states[i].Generation = dsmpacket.MaxGeneration
	}
	states[5].Generation--
	number, turn, _ := table.Ask()
	table.Learn(number, turn, &states)
	id, ok := table.Take()
	if want := dsmpacket.IDOf(dsmpacket.BatchSlots+5, dsmpacket.MaxGeneration); !ok || id != want || table.Free() > 0 {
		t.Errorf("took %s, %v, and %d are free; want %s and none", id, ok, table.Free(), want)
	}
}

// learnt is a table with batch 1, of which the machine has told.
func learnt(states *[dsmpacket.BatchSlots]dsmpacket.SlotState) *Table {
	t := &Table{}
	t.Add([]uint32{1})
	number, turn, _ := t.Ask()
	t.Learn(number, turn, states)
	return t
}

// A slot that rests is not free, and is asked about again: it is free then.
func TestTable_Rests(t *testing.T) {
	states := [dsmpacket.BatchSlots]dsmpacket.SlotState{}
	for i := range states {
		states[i] = dsmpacket.SlotState{Generation: 7, Live: i != 5, Rests: i == 5}
	}
	table := learnt(&states)
	if id, ok := table.Take(); ok || !table.Rests() {
		t.Fatalf("took %s, %v; a slot rests: %v", id, ok, table.Rests())
	}
	states[5].Rests = false
	number, turn, _ := table.Ask()
	table.Learn(number, turn, &states)
	if id, ok := table.Take(); !ok || id != dsmpacket.IDOf(dsmpacket.BatchSlots+5, 8) || table.Rests() {
		t.Errorf("took %s, %v; a slot rests: %v", id, ok, table.Rests())
	}
}

// A slot that is refused again and again is asked for with generations that its machine takes: none of them is too new.
func TestTable_MostAhead(t *testing.T) {
	states := [dsmpacket.BatchSlots]dsmpacket.SlotState{}
	for i := range states {
		states[i] = dsmpacket.SlotState{Generation: 7, Live: i != 5}
	}
	table := learnt(&states)
	for try := range uint32(3 * dsmpacket.MostAhead) {
		id, ok := table.Take()
		if want := dsmpacket.IDOf(dsmpacket.BatchSlots+5, 7+min(try+1, dsmpacket.MostAhead)); !ok || id != want {
			t.Fatalf("try %d: took %s, %v; want %s", try+1, id, ok, want)
		}
		table.Refused(id)
		number, turn, _ := table.Ask()
		table.Learn(number, turn, &states)
	}
}
