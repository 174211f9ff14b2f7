package direct

import (
	"slices"
	"testing"

	"github.com/bifrost-rack/bifrost/rpc/record"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// An execution that is done owes that regions are freed, over crashes, when memory has committed, and beside what else it owes.
func TestRegions(t *testing.T) {
	b := newBench(t)
	one, region := plain(9, 1), [16]byte{5}
	r := done(client, one)
	r.Over, r.Owed.Machines, r.Owed.Frees = false, []uint8{1}, [][16]byte{region}
	b.receive(client, one, Run)
	b.write(r)
	b.crash()
	if r := b.Resume(); len(r.Commit) != 1 || len(r.Over) != 0 {
		t.Fatalf("%+v", r)
	}
	if all := b.Frees(); len(all) != 0 {
		t.Errorf("%+v is freed before memory has committed", all)
	}
	if over := b.Committed(one.Call); len(over) != 0 {
		t.Errorf("%v, though nothing is freed", over)
	}
	all := b.Frees()
	if len(all) != 1 || !slices.Equal(all[0].Regions, [][16]byte{region}) || len(b.Frees()) != 0 {
		t.Fatalf("%+v, want one region once", all)
	}
	if over := b.Freed(&all[0]); len(over) != 1 || over[0].Kind() != record.KindOver {
		t.Errorf("%v", over)
	}
	if again := b.Freed(&all[0]); len(again) != 0 {
		t.Errorf("%v: freed twice", again)
	}
}

// The regions of an answer go when nobody asks for that any more, and not before, over crashes. They are freed once.
func TestRegions_Returned(t *testing.T) {
	for _, crashes := range []bool{false, true} {
		b := newBench(t)
		one, region := plain(9, 1), [16]byte{5}
		again := func() {
			if crashes {
				b.crash()
				if r := b.Resume(); len(r.Commit) != 1 {
					t.Fatalf("%+v", r)
				}
				b.Committed(one.Call)
			}
		}
		quiet := func(what string) {
			t.Helper()
			if all := b.Frees(); len(all) != 0 || b.Owes() {
				t.Fatalf("%s: %+v is freed, and %+v forgotten", what, all, b.Forgets())
			}
		}
		r := done(client, one)
		r.Over, r.Owed.Machines, r.Owed.Rest = false, []uint8{1}, [][16]byte{region}
		b.receive(client, one, Run)
		b.write(r)
		b.Committed(one.Call)
		again()
		quiet("asked for")
		b.receive(client, one, Answer)
		b.receive(client, plain(9, 2), Run)
		b.write(done(client, plain(9, 2)))
		again()
		all := b.Frees()
		if len(all) != 1 || !all[0].Rest || !slices.Equal(all[0].Regions, [][16]byte{region}) || len(b.Frees()) != 0 {
			t.Fatalf("%+v is freed", all)
		}
		if over := b.Freed(&all[0]); len(over) != 1 || over[0].Kind() != record.KindOver {
			t.Errorf("%v follows", over)
		}
		quiet("at the end")
	}
}

// TestMainMemory: a durable main owes the commit of its last checkpoint, and that regions are freed, over crashes. A later
// checkpoint owes what is not known to be gone, too.
func TestMainMemory(t *testing.T) {
	b := newBench(t)
	main := rpcpacket.ID{77}
	first, second := [16]byte{1}, [16]byte{2}
	b.write(&record.Checkpoint{Main: main, Index: 3, Owed: record.Owed{Machines: []uint8{1}, Run: 1, Frees: [][16]byte{first}}})
	b.crash()
	if r := b.Resume(); len(r.Commit) != 1 || len(r.Over) != 0 {
		t.Fatalf("%+v", r)
	}
	if over := b.Committed(main); len(over) != 0 {
		t.Errorf("%v, though nothing is freed", over)
	}
	former := b.Frees()
	unfreed := b.Unfreed(main)
	if !slices.Equal(unfreed, [][16]byte{first}) || len(former) != 1 {
		t.Errorf("%v is not freed, %+v is to be", unfreed, former)
	}
	b.write(&record.Checkpoint{Main: main, Index: 5, Owed: record.Owed{Machines: []uint8{2}, Run: 1, Frees: append(unfreed, second)}})
	if over := b.Freed(&former[0]); len(over) != 0 {
		t.Errorf("what a former checkpoint owes counts for the next one: %v", over)
	}
	b.crash()
	if r := b.Resume(); len(r.Commit) != 1 || !slices.Equal(r.Commit[0].Owed().Frees, [][16]byte{first, second}) || !slices.Equal(r.Commit[0].Owed().Machines, []uint8{2}) {
		t.Errorf("%+v", r)
	}
	over := b.Committed(main)
	for _, f := range b.Frees() {
		over = append(over, b.Freed(&f)...)
	}
	if len(over) != 1 || over[0].Kind() != record.KindOver {
		t.Errorf("%v", over)
	}
	if unfreed := b.Unfreed(main); unfreed != nil {
		t.Errorf("%v is not freed", unfreed)
	}
}

// The calls that an execution has given up are asked about, and then their callees are told to forget them, in the slots
// that the calls were sent in. So it is with the node's next incarnation, which does not know these. The other calls are
// forgotten at once.
func TestCallsGivenUp(t *testing.T) {
	for _, crash := range []bool{false, true} {
		b := newBench(t)
		one, kept := plain(9, 1), rpcpacket.ID{7}
		gone := record.Call{ID: rpcpacket.ID{8}, Node: other, Slot: 22, Number: 5, Slots: 1, GivenUp: true}
		sent := []Item{{ID: kept, Slot: 20, Number: 1}, {ID: gone.ID, Slot: 21, Number: 4}, {ID: gone.ID, Slot: 22, Number: 5}}
		b.receive(client, one, Run)
		b.write(done(client, one, record.Call{ID: kept, Node: other}, gone))
		for _, i := range sent {
			b.Sent(i)
		}
		gaveUp := sent[1:]
		if crash {
			b.crash()
			b.Resume()
			sent, gaveUp = []Item{{ID: kept}}, []Item{{ID: gone.ID}}
		}
		if asks := b.Asks(); !slices.Equal(asks, []record.Call{gone}) {
			t.Errorf("%+v is asked about", asks)
		}
		if got := b.Forgets(); len(got) != 1 || !slices.Equal(got[other], sent[:1]) {
			t.Errorf("first %+v is to be forgotten", got)
		}
		b.write(b.Acknowledged(other, []rpcpacket.ID{kept})...)
		if early := b.Acknowledged(other, []rpcpacket.ID{gone.ID}); len(early) != 0 {
			t.Errorf("it is forgotten before it is heard: %v", early)
		}
		if over := b.Heard(gone.ID); len(over) != 0 || len(b.Asks()) != 0 {
			t.Errorf("a callee has not forgotten a call: %v", over)
		}
		if got := b.Forgets(); !slices.Equal(got[other], gaveUp) || len(got) != 1 {
			t.Errorf("after that %+v, want %v", got, gaveUp)
		}
		if over := b.Acknowledged(other, []rpcpacket.ID{gone.ID}); len(over) != 1 {
			t.Errorf("nothing is owed: %v", over)
		}
	}
}
