package direct

import (
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/rpc/record"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// ask has an incarnation ask about a call.
func (b *bench) ask(asker [16]byte, h rpcpacket.Header, incarnation uint32, want Verdict) {
	b.t.Helper()
	h.Type, h.CallerIncarnation = rpcpacket.Ask, incarnation
	if got, _ := b.Ask(asker, &h); got != want {
		b.t.Errorf("a question about call %s, slot %d: %s, want %s", h.Call, h.Slot, got, want)
	}
}

// bySlot is the question that names slot and number only.
func bySlot(h rpcpacket.Header) rpcpacket.Header {
	h.Call = rpcpacket.ID{}
	return h
}

// A question is answered by what is known of the call, by its id or by its place, before and after a crash, also when nobody else may
// ask any more.
func TestAsk(t *testing.T) {
	for what, h := range map[string]rpcpacket.Header{"plain": plainOf(server, 9, 1), "derived": child(7, 1, 5, 1)} {
		b := newBench(t)
		asks := func(want Verdict) {
			t.Helper()
			b.ask(server, h, 2, want)
			b.ask(server, bySlot(h), 2, want)
			b.ask(stranger, bySlot(h), 2, Unbegun)
			if want != Unbegun {
				b.ask(stranger, h, 2, Foreign)
			}
		}
		asks(Unbegun)
		b.receive(server, h, Run)
		asks(Duplicate)
		b.write(begun(server, h))
		asks(Duplicate)
		b.crash()
		asks(Duplicate)
		b.Resumes(h.Call)
		asks(Duplicate)
		r := done(server, h)
		r.Over, r.Owed.Machines = false, []uint8{1}
		b.write(r)
		asks(Answer)
		b.crash()
		asks(Answer)
		b.forget(server, 1, []Item{itemOf(h)})
		asks(Answer)
		b.crash()
		asks(Answer)
		b.write(&record.Over{Execution: h.Call})
		if asks(Unbegun); b.State().Keeps() {
			t.Errorf("%s: something is kept", what)
		}
	}
}

// What has not begun when it is asked about never does: that is on record before it is said. Another node's question says nothing of that.
func TestAsk_NeverBegins(t *testing.T) {
	b := newBench(t)
	former, next := child(7, 1, 5, 1), child(7, 2, 5, 1)
	b.ask(stranger, former, 3, Unbegun)
	b.write(b.Bury(stranger, 2, false))
	b.receive(server, former, Run)
	b.Drop(former.Call)
	b.ask(server, former, 2, Unbegun)
	b.write(b.Bury(server, 1, false))
	b.receive(server, former, Late)
	b.crash()
	b.receive(server, former, Late)
	b.receive(server, next, Run) // under a number of its own
	b.ask(server, former, 3, Duplicate)
}

// A question is about a call of an earlier incarnation, and about no durable main.
func TestAsk_Malformed(t *testing.T) {
	b := newBench(t)
	h, main := child(7, 2, 5, 1), rpcpacket.ID{77}
	b.ask(server, h, 2, Malformed)
	b.ask(server, h, 1, Malformed)
	b.ask(server, h, rpcpacket.MaxIncarnation+1, Malformed)
	b.ask(server, rpcpacket.Header{Call: h.Call}, 3, Malformed)
	h.Call = main
	b.Claim(main)
	b.ask(server, h, 3, Foreign)
	b.write(&record.Checkpoint{Main: main, Index: 1})
	b.crash()
	b.ask(server, h, 3, Foreign)
}

// Whoever shares the fate of its callee asks when it has been taken back. The question takes the callee back, or lets it run, as a copy of the
// call would. The Gatekeeper asks for a caller that is gone: it takes nobody back.
func TestAsk_Supersedes(t *testing.T) {
	b := newBench(t)
	h := sharing(rpcpacket.PolicyFateShare, 0, 1)
	b.receive(server, h, Run)
	b.ask(server, h, 2, Duplicate) // its handler has not started: it runs for this one
	b.starts(server, h)
	b.ask(server, h, 2, Duplicate)
	b.ask(server, bySlot(h), 4, Duplicate)
	b.ask(server, h, 3, Superseded)
	b.write(b.Bury(server, 2, false))
	if !b.outlived() {
		t.Error("it goes on for a caller that is dead")
	}
	b.crash()
	if b.resumes(h.Call) {
		t.Error("it waits for a caller that has been taken back")
	}
}

// The calls that an execution has given up are asked about until they are heard, over crashes. Then their callees are told to forget them, but for
// those of policy none.
func TestAsks(t *testing.T) {
	one := plain(9, 1)
	kept := record.Call{ID: rpcpacket.ID{6}, Node: other, Slot: 30, Number: 1, Slots: 1, Lends: true}
	gone := record.Call{ID: rpcpacket.ID{7}, Node: other, Slot: 31, Number: 2, Slots: 2, Lends: true, GivenUp: true}
	none := record.Call{ID: rpcpacket.ID{8}, Node: other, Incarnation: 5, Slot: 33, Number: 3, Slots: 1, GivenUp: true}
	heard := record.Call{ID: rpcpacket.ID{9}, Node: other, Incarnation: 5, Slot: 34, Number: 3, Slots: 1}
	unsent := record.Call{ID: rpcpacket.ID{10}, Node: other, GivenUp: true}
	for _, crashes := range []bool{false, true} {
		b := newBench(t)
		again := func(asks ...record.Call) {
			t.Helper()
			if crashes {
				b.crash()
				b.Resume()
			}
			if got := b.Asks(); !slices.Equal(got, asks) {
				t.Fatalf("%+v are asked about, want %+v", got, asks)
			}
			var attempts []record.Call
			b.Attempts(func(e *record.Execution, k record.Call) {
				if attempts = append(attempts, k); e.ID != one.Call {
					t.Errorf("%s has made it", e.ID)
				}
			})
			slices.SortFunc(attempts, func(a, b record.Call) int { return a.ID.Compare(b.ID) })
			if !slices.Equal(attempts, asks) {
				t.Fatalf("%+v are not heard, want %+v", attempts, asks)
			}
		}
		b.receive(client, one, Run)
		b.write(done(client, one, kept, gone, none, heard, unsent))
		again(gone, none)
		want := []Item{{ID: kept.ID}, {ID: unsent.ID}}
		if got := b.Forgets(); len(got) != 1 || !slices.Equal(got[other], want) {
			t.Fatalf("to be forgotten: %+v", got)
		}
		if rs := b.Acknowledged(other, []rpcpacket.ID{gone.ID}); rs != nil {
			t.Errorf("%v, and it is not heard", rs)
		}
		b.write(b.Heard(gone.ID)...)
		if rs := slices.Concat(b.Heard(gone.ID), b.Heard(kept.ID), b.Heard(heard.ID)); len(rs) > 0 {
			t.Errorf("heard again: %v", rs)
		}
		if !crashes {
			want = slices.Insert(want, 1, Item{ID: gone.ID})
			again(none)
			if got := b.Forgets(); len(got) != 1 || !slices.Equal(got[other], want) {
				t.Fatalf("to be forgotten: %+v, want %+v", got, want)
			}
		} else {
			again(gone, none) // nobody knows that it is freed
			b.write(b.Heard(gone.ID)...)
		}
		b.write(b.Acknowledged(other, []rpcpacket.ID{kept.ID, gone.ID, unsent.ID})...)
		if b.State().Execution(one.Call).Over {
			t.Error("it owes nothing, and a call is not heard")
		}
		if b.write(b.Heard(none.ID)...); !b.State().Execution(one.Call).Over || b.Owes() {
			t.Errorf("it owes something: %+v", b.Forgets())
		}
	}
}

// TestAttempts: the last attempts count of the calls of what is to run again, and of a main since its last checkpoint and before.
func TestAttempts(t *testing.T) {
	b := newBench(t)
	h, main := plain(9, 1), rpcpacket.ID{77}
	attempt := func(id byte, slot rpcpacket.Slot) record.Call {
		return record.Call{ID: rpcpacket.ID{id}, Node: other, Slot: slot, Number: rpcpacket.Number(slot), Slots: 1}
	}
	given := attempt(4, 24)
	given.GivenUp = true
	b.write(begun(client, h), &record.Journal{Execution: h.Call, Called: []record.Call{attempt(1, 20), attempt(2, 21), attempt(1, 22), {ID: rpcpacket.ID{3}, Node: other}}})
	b.write(&record.Checkpoint{Main: main, Index: 3, Owed: record.Owed{Called: []record.Call{given, attempt(7, 27)}}}, &record.Journal{Execution: main, Called: []record.Call{attempt(8, 28)}})
	for range 2 {
		var got []rpcpacket.Slot
		b.Attempts(func(_ *record.Execution, k record.Call) { got = append(got, k.Slot) })
		slices.Sort(got)
		if want := []rpcpacket.Slot{21, 22, 24, 28}; !slices.Equal(got, want) {
			t.Errorf("attempts in slots %v, want %v", got, want)
		}
		if owing := b.Owing(main); len(owing) != 2 || owing[0] != given || owing[1] != attempt(7, 27) {
			t.Errorf("the next checkpoint owes %+v", owing)
		}
		b.crash()
		b.Resume()
	}
}

// region is a pointer to one.
func region(id uint32) [16]byte { return dsmpacket.Make(0xfd, 1, dsmpacket.RegionID(id)<<22|1) }

// The results of an answer that nobody asks for any more are freed; but not before everything has run that was
// to run again, and may have got them. What another execution may hand over since, a main has, or a one-way is to hand over, is theirs.
func TestRest(t *testing.T) {
	b := newBench(t)
	again, one, two := plain(8, 1), plain(9, 1), plain(10, 1)
	returns := func(h rpcpacket.Header, regions ...[16]byte) *record.Done {
		r := done(client, h)
		r.Over, r.Owed.Rest = false, regions
		return r
	}
	own, both, mains, letters := region(1), region(2), region(3), region(4)
	b.write(begun(client, again))
	b.write(returns(one, own, both, mains, letters), returns(two, both))
	b.write(&record.Checkpoint{Main: rpcpacket.ID{77}, Index: 1, Has: [][16]byte{mains}})
	handing := b.owing(plain(11, 1), other, 5)
	m := rpcpacket.Message{Header: rpcpacket.Header{Type: rpcpacket.Oneway}, Lists: rpcpacket.ListsOf(dsmpacket.Pointer(letters))}
	handing.Owed.Oneways[0].Message = m.Append(nil)
	b.write(handing)
	b.crash()
	b.Resume()
	b.Committed(one.Call)
	b.Committed(two.Call)
	frees := func(want ...[16]byte) (f Free) {
		t.Helper()
		all := b.Frees()
		if len(all) == 0 && len(want) == 0 {
			return f
		}
		if len(all) != 1 || !all[0].Rest || !slices.Equal(all[0].Regions, want) {
			t.Fatalf("%+v is freed, want %v", all, want)
		}
		return all[0]
	}
	frees()
	b.forget(client, 1, []Item{itemOf(one)})
	frees() // an execution is to run again
	b.Resumes(again.Call)
	b.write(done(client, again))
	f := frees(own)
	if over := b.Freed(&f); len(over) != 1 || over[0].Kind() != record.KindOver {
		t.Errorf("%v", over)
	}
	b.write(&record.Over{Execution: one.Call})
	b.forget(client, 1, []Item{itemOf(two)})
	f = frees(both)
	b.write(b.Freed(&f)...)
	b.write(&record.Checkpoint{Main: rpcpacket.ID{77}, Index: 2, Ended: true})
	b.Leave(handing.Execution)
	b.next(5)
	b.delivered(other, 5)
	if len(b.hands) > 0 {
		t.Errorf("%v is handed over by nobody", b.hands)
	}
}

// A node that closes does not wait for regions which a main may have got that is to run again: it may not run here.
func TestRest_Idle(t *testing.T) {
	b := newBench(t)
	one := plain(9, 1)
	r := done(client, one)
	r.Over, r.Owed.Rest = false, [][16]byte{region(1)}
	b.write(r, &record.Journal{Execution: rpcpacket.ID{77}, Called: []record.Call{{ID: rpcpacket.ID{7}, Node: other}}})
	b.crash()
	b.Resume()
	if b.Committed(one.Call); b.Idle() {
		t.Error("its answer may be asked for")
	}
	b.forget(client, 1, []Item{itemOf(one)})
	if len(b.Frees()) > 0 || !b.Idle() {
		t.Error("the node waits, or frees what a main may have got")
	}
	b.write(&record.Checkpoint{Main: rpcpacket.ID{77}, Index: 1})
	if all := b.Frees(); len(all) != 1 || b.Idle() {
		t.Errorf("%+v is freed", all)
	}
}

// Copies of calls and questions arrive in any order, and the node crashes. A call runs to its end at most once. Once it was said that it has not begun, it
// begins for no incarnation before the asker's.
func TestAsk_Model(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		b := newBench(t)
		var packets []rpcpacket.Header
		said, ended := map[rpcpacket.ID]uint32{}, map[rpcpacket.ID]int{} // the asker's incarnation
		incarnation, count := uint32(1), uint64(0)
		deliver := func(h rpcpacket.Header) {
			if h.Type != rpcpacket.Ask {
				v, _ := b.Receive(server, &h, 7)
				if v == Run && h.CallerIncarnation < said[h.Call] {
					rt.Fatalf("call %s of incarnation %d begins, and %d was told that it has not", h.Call, h.CallerIncarnation, said[h.Call])
				}
				return
			}
			switch v, e := b.Ask(server, &h); v {
			case Unbegun:
				if r := b.Bury(server, h.CallerIncarnation-1, false); r != nil {
					b.write(r)
				}
				if !h.Call.IsZero() {
					if ended[h.Call] > 0 {
						rt.Fatalf("call %s is done, and has not begun", h.Call)
					}
					said[h.Call] = max(said[h.Call], h.CallerIncarnation)
				}
			case Answer:
				if e == nil || ended[e.ID] != 1 {
					rt.Fatalf("the answer of %+v", e)
				}
			case Duplicate:
			default:
				rt.Fatalf("a question is %s", v)
			}
		}
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			switch rapid.IntRange(0, 6).Draw(rt, "act") {
			case 0: // the caller makes a call, perhaps again
				count++
				h := child(rapid.Byte().Draw(rt, "call")%4, incarnation, rapid.SampledFrom([]rpcpacket.Slot{5, 6}).Draw(rt, "slot"), count)
				h.Type = rpcpacket.Call
				packets = append(packets, h)
			case 1: // it fails, and asks
				incarnation++
				for _, h := range packets {
					if h.Type == rpcpacket.Call && rapid.Bool().Draw(rt, "asks") {
						h.Type, h.CallerIncarnation = rpcpacket.Ask, incarnation
						if rapid.Bool().Draw(rt, "by slot") {
							h.Call = rpcpacket.ID{}
						}
						packets = append(packets, h)
					}
				}
			case 2, 3, 4:
				if len(packets) > 0 {
					deliver(packets[rapid.IntRange(0, len(packets)-1).Draw(rt, "packet")])
				}
			case 5: // what runs comes to its end
				for _, id := range slices.SortedFunc(maps.Keys(b.running), rpcpacket.ID.Compare) {
					if r := b.running[id]; rapid.Bool().Draw(rt, "ends") {
						h := rpcpacket.Header{Call: id, Slot: r.at.Slot, Number: r.number, CallerIncarnation: r.number.Incarnation()}
						if b.Obsolete(server, &h) {
							b.Drop(id)
							continue
						}
						ended[id]++
						b.write(done(server, h))
					}
				}
			case 6:
				b.crash()
				for _, e := range b.Resume().Rerun {
					b.Resumes(e.ID)
				}
			}
		}
		for id, n := range ended {
			if n > 1 {
				rt.Fatalf("call %s is done %d times", id, n)
			}
		}
	})
}
