package direct

import (
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/bifrost-rack/bifrost/internal/share"
	"github.com/bifrost-rack/bifrost/rpc/record"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Nodes.
var (
	client   = [16]byte{15: 1} // a plain client
	server   = [16]byte{15: 2} // a node whose executions call
	other    = [16]byte{15: 3}
	stranger = [16]byte{15: 4}
)

// plain is the n-th plain call of a client in a slot.
func plain(slot rpcpacket.Slot, n uint64) rpcpacket.Header { return plainOf(client, slot, n) }

func plainOf(caller [16]byte, slot rpcpacket.Slot, n uint64) rpcpacket.Header {
	h := child(0, 1, slot, n)
	h.Call = rpcpacket.PlainID(netip.AddrFrom16(caller), h.Slot, h.Number)
	return h
}

// execution is the id of an execution's call.
func execution(id byte) rpcpacket.ID {
	derived := rpcpacket.ID{id}
	derived.Derive()
	return derived
}

// child is a call of an execution, the n-th of a caller's incarnation in a slot.
func child(id byte, incarnation uint32, slot rpcpacket.Slot, n uint64) rpcpacket.Header {
	return rpcpacket.Header{Call: execution(id), CallerIncarnation: incarnation, Slot: 100 + slot, Number: rpcpacket.NumberOf(incarnation, n)}
}

// itemOf names a call to who is to forget it.
func itemOf(h rpcpacket.Header) Item { return Item{ID: h.Call, Slot: h.Slot, Number: h.Number} }

// bench is a Table and what has been written.
type bench struct {
	*Table
	t       *testing.T
	records [][]byte
}

// ownerOf has each caller of the tests owned by somebody else.
func ownerOf(node netip.Addr) share.Owner { return share.Owner{Port: 1 + share.Stranger(node).User} }

func newBench(t *testing.T) *bench { return &bench{Table: New(new(record.State), ownerOf), t: t} }

func (b *bench) write(rs ...record.Record) {
	b.t.Helper()
	for len(rs) > 0 {
		if rs[0] == nil {
			b.t.Fatal("nothing to write")
		}
		b.records = append(b.records, record.Append(nil, rs[0]))
		follow, err := b.Apply(rs[0])
		if err != nil {
			b.t.Fatal(err)
		}
		rs = append(rs[1:], follow...)
	}
}

// crash makes b what the node's next incarnation has.
func (b *bench) crash() {
	b.t.Helper()
	s, err := record.Fold(b.records)
	if err != nil {
		b.t.Fatal(err)
	}
	b.Table = New(s, ownerOf)
}

// plenty is room in a ledger.
const plenty = 1 << 20

// forget takes a word to forget that is written down.
func (b *bench) forget(caller [16]byte, incarnation uint32, items []Item) {
	b.t.Helper()
	w := b.Forget(caller, incarnation, items, plenty)
	if w.Foreign+w.Full > 0 || len(w.Forgotten) != len(items) {
		b.t.Fatalf("%+v", w)
	}
	b.write(w.Record)
}

func (b *bench) receive(caller [16]byte, h rpcpacket.Header, want Verdict) {
	b.t.Helper()
	if got, _ := b.Receive(caller, &h, 7); got != want {
		b.t.Fatalf("call %s of incarnation %d: %s, want %s", h.Call, h.CallerIncarnation, got, want)
	}
}

func begun(caller [16]byte, h rpcpacket.Header) *record.Begun {
	return &record.Begun{Execution: h.Call, Caller: caller, Incarnation: h.CallerIncarnation, Slot: h.Slot, Number: h.Number, Call: []byte{1}}
}

func done(caller [16]byte, h rpcpacket.Header, called ...record.Call) *record.Done {
	r := &record.Done{Execution: h.Call, Caller: caller, Incarnation: h.CallerIncarnation, Arguments: 7, Answer: []byte{2}, Over: len(called) == 0, Slot: h.Slot, Number: h.Number}
	r.Owed.Called = called
	return r
}

// A call runs once, whatever copies of it come, before and after a crash.
func TestOnce(t *testing.T) {
	b := newBench(t)
	one, two := plain(9, 1), plain(9, 2)
	b.receive(client, one, Run)
	b.receive(client, one, Duplicate)
	b.crash() // nothing of it was written, and nobody has seen anything of it
	b.receive(client, one, Run)
	b.write(begun(client, one))
	b.crash()
	b.receive(client, one, Duplicate) // it will run again
	if r := b.Resume(); len(r.Rerun) != 1 || r.Rerun[0].ID != one.Call {
		t.Fatalf("%+v", r)
	}
	b.write(done(client, one))
	b.receive(client, one, Answer)
	b.crash()
	b.receive(client, one, Answer)
	if v, _ := b.Receive(client, &one, 8); v != Diverged {
		t.Fatalf("other arguments: %s", v)
	}
	b.receive(client, two, Run)
	b.receive(client, one, Answer) // until two is written down
	b.write(done(client, two))
	b.receive(client, one, Refused)
	b.crash()
	b.receive(client, one, Refused)
	b.receive(client, two, Answer)
	if n := len(b.State().Executions()); n != 1 {
		t.Fatalf("%d executions are kept", n)
	}
}

// An heir runs nothing: what has begun ends, and what is done is answered.
func TestInherit(t *testing.T) {
	b := newBench(t)
	one, two, three := plain(9, 1), plain(10, 1), plain(11, 1)
	for _, h := range []*rpcpacket.Header{&one, &two, &three} {
		b.receive(client, *h, Run)
	}
	b.write(begun(client, one))
	b.write(done(client, two))
	b.crash()
	r := b.Resume()
	if len(r.Rerun) != 1 || r.Rerun[0].ID != one.Call {
		t.Fatalf("%+v", r)
	}
	b.receive(client, one, Duplicate)
	b.receive(client, two, Answer)
	b.receive(client, three, Run) // for its node to refuse it
	if b.Idle() {
		t.Error("nobody asks for an answer any more")
	}
}

// What was dropped for want of room is new when it comes again; a slot's earlier number is
// late.
func TestDropped(t *testing.T) {
	b := newBench(t)
	first, next := child(1, 1, 5, 3), child(2, 1, 5, 4)
	b.receive(server, first, Run)
	b.Drop(first.Call)
	b.receive(server, first, Run)
	b.receive(server, next, Run)
	b.receive(server, child(3, 1, 5, 2), Refused)
	b.receive(server, first, Duplicate) // it runs
	b.receive(server, rpcpacket.Header{Call: execution(4), CallerIncarnation: 1}, Malformed)
}

// A call that nobody has seen anything of must not be written when its slot has gone on.
func TestObsolete(t *testing.T) {
	b := newBench(t)
	one, two := plain(9, 1), plain(9, 2)
	b.receive(client, one, Run)
	b.receive(client, two, Run)
	if b.Obsolete(client, &one) {
		t.Fatal("nothing is written yet")
	}
	b.write(done(client, two))
	if !b.Obsolete(client, &one) || b.Obsolete(client, &two) {
		t.Fatal("the first call was given up")
	}
}

// Children are forgotten when their parent is done, by its node's next incarnation too; then
// the parent is over. What is forgotten stays refused.
func TestForgotten(t *testing.T) {
	x, y := newBench(t), newBench(t)
	parent, kid := plain(9, 1), child(7, 1, 5, 1)
	x.receive(client, parent, Run)
	x.write(begun(client, parent), &record.Journal{Execution: parent.Call, Called: []record.Call{{ID: kid.Call, Node: other}}})
	y.receive(server, kid, Run)
	y.write(done(server, kid))
	x.write(done(client, parent, record.Call{ID: kid.Call, Node: other}))
	x.crash()
	x.Resume()
	want := map[[16]byte][]Item{other: {{ID: kid.Call}}}
	if got := x.Forgets(); !reflect.DeepEqual(got, want) {
		t.Fatalf("to be forgotten: %+v", got)
	}
	y.forget(server, 2, want[other])
	if w := y.Forget(server, 2, want[other], plenty); w.Record != nil || len(w.Forgotten) != 1 {
		t.Fatalf("a second word is written: %+v", w)
	}
	y.crash()
	y.receive(server, kid, Late)
	y.receive(server, child(8, 1, 6, 1), Late) // of an incarnation that is dead
	y.receive(server, child(8, 2, 6, 1), Run)
	over := x.Acknowledged(other, []rpcpacket.ID{kid.Call})
	if len(over) != 1 || x.Owes() {
		t.Fatalf("%+v", over)
	}
	x.write(over...)
	x.crash()
	if r := x.Resume(); len(r.Rerun)+len(r.Over) != 0 || x.Owes() {
		t.Fatalf("%+v", r)
	}
}

// A child that was given up may never have come: its copies are refused by its place.
func TestForgottenBeforeItComes(t *testing.T) {
	b := newBench(t)
	kid := child(7, 1, 5, 4)
	b.forget(server, 1, []Item{itemOf(kid)})
	b.receive(server, kid, Refused)
	b.crash()
	b.receive(server, kid, Refused)
	running := child(8, 1, 5, 5)
	b.receive(server, running, Run)
	if w := b.Forget(server, 1, []Item{itemOf(running)}, plenty); w.Record != nil {
		t.Fatalf("%+v", w)
	}
	b.write(done(server, running))
	b.receive(server, running, Refused)
	if b.State().Keeps() {
		t.Fatal("it is kept")
	}
}

// A call that a later run of its caller has sent again, in another slot, is answered from the
// record. When it is forgotten, copies of both runs are late.
func TestForgottenInEachSlot(t *testing.T) {
	b := newBench(t)
	first, again, once := child(7, 1, 5, 1), child(7, 2, 6, 3), child(7, 2, 8, 1)
	b.receive(server, first, Run)
	b.write(done(server, first))
	b.receive(server, again, Answer)
	b.forget(server, 2, []Item{itemOf(again), itemOf(once)})
	for range 2 {
		b.receive(server, first, Late)
		b.receive(server, again, Refused)
		b.receive(server, once, Refused)
		b.receive(server, child(8, 2, 6, 4), Run)
		b.crash()
	}
}

// So is a call that the later run has sent again in the same slot, where it has a later number: whether the call was done when the
// copy came, or still ran.
func TestForgottenUnderALaterNumber(t *testing.T) {
	for name, early := range map[string]bool{"done": true, "running": false} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			first, again := child(7, 1, 5, 1), child(7, 2, 5, 3)
			b.receive(server, first, Run)
			if early {
				b.write(done(server, first))
				b.receive(server, again, Answer)
				b.forget(server, 2, []Item{itemOf(again)})
			} else {
				b.receive(server, again, Duplicate)
				b.forget(server, 2, []Item{itemOf(again)})
				b.write(done(server, first))
			}
			for range 2 {
				b.receive(server, first, Late)
				b.receive(server, again, Refused)
				b.receive(server, child(8, 2, 5, 4), Run)
				b.crash()
			}
		})
	}
}

// A stranger that knows a durable main's name makes no call of its id, and so no ledger in which the main cannot
// go on: not when the main has begun, and if before, then the call goes.
func TestDurableMain_Strangers(t *testing.T) {
	b := newBench(t)
	forged := child(3, 1, 1, 1)
	begins := func() {
		t.Helper()
		b.write(&record.Journal{Execution: forged.Call, Called: []record.Call{{ID: rpcpacket.ID{8}, Node: other}}})
		b.write(&record.Checkpoint{Main: forged.Call, Index: 1})
		b.receive(stranger, forged, Foreign)
		b.crash()
		b.receive(stranger, forged, Foreign)
	}
	if r, free := b.Claim(forged.Call); r != nil || !free {
		t.Fatalf("%+v, %t", r, free)
	}
	b.receive(stranger, forged, Foreign)
	begins()

	b = newBench(t)
	b.receive(stranger, forged, Run)
	if r, free := b.Claim(forged.Call); r != nil || free {
		t.Errorf("a call that runs: %+v, %t", r, free)
	}
	b.write(done(stranger, forged))
	if r, free := b.Claim(forged.Call); r != nil || !free {
		t.Errorf("it has ended: %+v, %t", r, free)
	}
	begins()

	b = newBench(t)
	b.receive(stranger, forged, Run)
	b.write(done(stranger, forged))
	b.crash()
	r, free := b.Claim(forged.Call)
	if !free {
		t.Fatal("a call that was done before the crash keeps the main from beginning")
	}
	b.write(r)
	begins()
}

// A durable main owes at a checkpoint what it owed before, as long as that is not forgotten, and
// the calls since. Nobody else has it forgotten: its id is no secret.
func TestDurableMain(t *testing.T) {
	b := newBench(t)
	id, one, two := execution(3), child(7, 1, 5, 1), child(8, 1, 5, 2)
	calls := func(k rpcpacket.Header) []record.Call { return []record.Call{{ID: k.Call, Node: other}} }
	b.write(&record.Journal{Execution: id, Called: calls(one)})
	if w := b.Forget(server, 9, []Item{{ID: id}}, plenty); w.Foreign != 1 || len(w.Record.(*record.Forgotten).Executions) > 0 {
		t.Fatalf("a stranger has the main forgotten: %+v", w)
	}
	b.write(&record.Checkpoint{Main: id, Index: 1, Owed: record.Owed{Called: append(b.Owing(id), calls(one)...)}})
	again := child(7, 1, 6, 1)
	b.Sent(itemOf(one))
	b.Sent(itemOf(again)) // by a run that followed in the same incarnation
	b.write(&record.Journal{Execution: id, Called: calls(two)})
	b.write(&record.Checkpoint{Main: id, Index: 2, State: []byte{4}, Owed: record.Owed{Called: append(b.Owing(id), calls(two)...)}})
	want := map[[16]byte][]Item{other: {itemOf(one), itemOf(again), {ID: two.Call}}}
	if got := b.Forgets(); !reflect.DeepEqual(got, want) {
		t.Fatalf("to be forgotten: %+v", got)
	}
	b.crash()
	b.Resume()
	if got := b.Forgets()[other]; len(got) != 2 || b.Idle() {
		t.Fatalf("to be forgotten after a crash: %+v", got)
	}
	b.write(b.Acknowledged(other, []rpcpacket.ID{one.Call})...)
	b.write(&record.Checkpoint{Main: id, Index: 3, State: []byte{5}, Ended: true, Owed: record.Owed{Called: b.Owing(id)}})
	b.write(b.Acknowledged(other, []rpcpacket.ID{two.Call})...)
	if e := b.State().Execution(id); !e.Over || len(e.Checkpoint.Owed.Called) > 0 || !e.Checkpoint.Ended || b.Owes() || !b.Idle() {
		t.Fatalf("%+v, %+v", e, e.Checkpoint)
	}
	b.write(&record.Checkpoint{Main: id, Index: 5}) // of another run
	b.crash()
	if r := b.Resume(); len(r.Rerun)+len(r.Over) != 0 || b.State().Execution(id).Checkpoint.Index != 5 {
		t.Fatalf("%+v", r)
	}
}

// A call that a closing node has refused is not run by its next incarnation either. Each copy is
// refused again: the first refusal may be lost.
func TestRefusedForGood(t *testing.T) {
	b := newBench(t)
	one := plain(9, 1)
	b.receive(client, one, Run)
	b.write(b.Refuse(client, &one))
	b.receive(client, one, Refused)
	b.crash()
	b.receive(client, one, Refused)
	b.receive(client, plain(9, 2), Run)
}

// A call that a node has refused is forgotten by the node that took it in the end, before and after a crash.
func TestForgottenByTheLast(t *testing.T) {
	b := newBench(t)
	one, child := plain(9, 1), rpcpacket.ID{1}
	b.receive(client, one, Run)
	b.write(done(client, one, record.Call{ID: child, Node: other}, record.Call{ID: child, Node: server}))
	for range 2 {
		if got := b.Forgets(); len(got) != 1 || !slices.Equal(got[server], []Item{{ID: child}}) {
			t.Fatalf("to be forgotten: %+v", got)
		}
		b.crash()
		b.Resume()
	}
}

// A plain call has its answer, and the node closes and refuses the next one, or is told to forget that one.
// Either way nobody asks for the first one any more, and the node may go.
func TestForgottenByTheNext(t *testing.T) {
	for _, refused := range []bool{true, false} {
		b := newBench(t)
		one, two := plain(9, 1), plain(9, 2)
		b.receive(client, one, Run)
		b.write(done(client, one))
		if b.Idle() {
			t.Fatal("the client may ask for the answer")
		}
		if refused {
			b.receive(client, two, Run)
			b.write(b.Refuse(client, &two))
		} else {
			b.forget(client, 1, []Item{itemOf(two)})
		}
		if !b.Idle() {
			t.Errorf("refused %t: the first answer is kept", refused)
		}
		b.crash()
		if b.Resume(); !b.Idle() {
			t.Errorf("refused %t: the next incarnation keeps the first answer", refused)
		}
	}
}

// What a client has got goes with it; what an execution has got stays, for its node's next
// incarnation asks for it, unless there is none.
func TestBuried(t *testing.T) {
	b := newBench(t)
	own, kid := plainOf(server, 9, 1), child(7, 1, 5, 1)
	b.receive(server, own, Run)
	b.receive(server, kid, Run)
	b.write(done(server, own), done(server, kid))
	if got := b.Callers(); len(got) != 1 || got[server] != 1 {
		t.Fatalf("callers: %v", got)
	}
	b.write(b.Bury(server, 1, false))
	b.receive(server, own, Late)
	b.receive(server, kid, Answer)
	if b.Bury(server, 1, false) != nil {
		t.Fatal("it is known")
	}
	b.write(b.Bury(server, 1, true))
	b.crash()
	b.receive(server, kid, Late)
	if b.State().Keeps() || !b.Idle() {
		t.Fatal("something is kept")
	}
}

// TestBuriedWhileItRuns: a caller is gone for good while its call runs of which the ledger has nothing. The call's outcome is
// not kept.
func TestBuriedWhileItRuns(t *testing.T) {
	b := newBench(t)
	kid := child(7, 1, 5, 1)
	b.receive(server, kid, Run)
	b.write(b.Bury(server, 1, true))
	_, err := b.Apply(done(server, kid)) // and the node dies
	if err != nil || b.Idle() {
		t.Fatal(err)
	}
	b.write(b.Resume().Over...)
	if b.State().Keeps() || !b.Idle() {
		t.Fatal("something is kept after a crash")
	}
	b = newBench(t)
	b.receive(server, kid, Run)
	b.write(b.Bury(server, 1, true))
	b.write(done(server, kid))
	if b.State().Keeps() || !b.Idle() {
		t.Fatal("something is kept")
	}
}

// A stranger that knows the id and the slot of a call uses neither, has nothing forgotten,
// and makes no call of the slot a late one.
func TestForeign(t *testing.T) {
	b := newBench(t)
	one, two, three, kid := plain(9, 1), plain(9, 2), plain(9, 3), child(7, 1, 8, 1)
	b.receive(stranger, one, Foreign)
	b.receive(client, one, Run)
	b.receive(server, kid, Run)
	b.receive(stranger, kid, Foreign)
	b.write(done(client, one), begun(server, kid))
	b.receive(stranger, one, Foreign)
	copied := child(7, 1, 1, 1) // in a slot of its own
	b.receive(stranger, copied, Foreign)
	copied.Call = one.Call
	b.receive(stranger, copied, Foreign) // it would get the answer
	far := itemOf(two)
	far.Number = rpcpacket.NumberOf(9, 1)
	all := []Item{itemOf(one), {ID: kid.Call}, far}
	for range 2 {
		b.receive(stranger, plain(9, 1<<30), Foreign)
		if w := b.Forget(stranger, 1, all, plenty); w.Record != nil || w.Foreign != len(all) {
			t.Fatalf("a stranger has something forgotten: %+v", w)
		}
		b.receive(client, one, Answer)
		b.crash()
		b.Resume()
	}
	b.receive(client, two, Run)
	if w := b.Forget(stranger, 1, []Item{{ID: two.Call}}, plenty); w.Record != nil || w.Foreign != 1 { // it is not written yet
		t.Fatalf("%+v", w)
	}
	b.write(done(client, two))
	b.receive(client, two, Answer)
	b.receive(client, three, Run)
}

// A failure counts for an execution that ran in the incarnation that ended with its program.
func TestFailures(t *testing.T) {
	for _, c := range []struct {
		run, before uint32
		exited      bool
		want        uint32
	}{{1, 1, true, 4}, {1, 1, false, 3}, {1, 2, true, 3}, {3, 2, true, 3}} {
		e := &record.Execution{Begun: &record.Begun{Run: c.run, Failures: 3}}
		if n := Failures(e, c.before, c.exited); n != c.want {
			t.Errorf("run by %d, then came %d, %t: %d failures, want %d", c.run, c.before, c.exited, n, c.want)
		}
	}
}

// TestMisnamed: a call names a slot of the rack, and a number of its caller's incarnation there; a plain one has both in its id, and
// who calls.
func TestMisnamed(t *testing.T) {
	for what, c := range map[string]struct {
		change func(h *rpcpacket.Header)
		want   Verdict
	}{
		"no slot":               {func(h *rpcpacket.Header) { h.Slot = 0 }, Malformed},
		"a slot of nobody's":    {func(h *rpcpacket.Header) { h.Slot = rpcpacket.BlockSlots - 1 }, Malformed},
		"too high a slot":       {func(h *rpcpacket.Header) { h.Slot = rpcpacket.Blocks * rpcpacket.BlockSlots }, Malformed},
		"another incarnation's": {func(h *rpcpacket.Header) { h.Number = rpcpacket.NumberOf(2, 1) }, Malformed},
		"too high a number":     {func(h *rpcpacket.Header) { h.Number |= 1 << 63 }, Malformed},
		"too high an incarnation": {func(h *rpcpacket.Header) {
			h.CallerIncarnation, h.Number = rpcpacket.MaxIncarnation+1, rpcpacket.NumberOf(rpcpacket.MaxIncarnation+1, 1)
		}, Malformed},
		"no id":          {func(h *rpcpacket.Header) { h.Call = rpcpacket.ID{} }, Malformed},
		"another slot's": {func(h *rpcpacket.Header) { h.Slot++ }, Foreign},
		"another call's": {func(h *rpcpacket.Header) { h.Number++ }, Foreign},
		"another node's": {func(h *rpcpacket.Header) { h.Call = plainOf(server, 9, 1).Call }, Foreign},
		"its own":        {func(h *rpcpacket.Header) {}, Run},
	} {
		h := plain(9, 1)
		if c.change(&h); h.Slot.Valid() != (what != "no slot" && what != "a slot of nobody's" && what != "too high a slot") {
			t.Errorf("%s: slot %d is valid: %t", what, h.Slot, h.Slot.Valid())
		}
		b := newBench(t)
		b.receive(client, h, c.want)
		if !b.Admits(client, &h, 1<<40, 1<<10) {
			t.Errorf("%s: it is refused for want of room", what)
		}
		h.CalleeIncarnation = 1
		if got := NewVolatile(1, DefaultLimits, nil).Receive(0, netip.AddrFrom16(client), &h).Verdict; got != c.want {
			t.Errorf("%s, policy none: %s, want %s", what, got, c.want)
		}
	}
}
