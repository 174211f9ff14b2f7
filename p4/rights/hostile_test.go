package rights

import (
	"slices"
	"testing"
)

// hostile are packets that no honest node sends, and what becomes of them. TestNeeded runs them, too.
var hostile = map[string]func(rig){
	"memory": hostileMemory, "lending": hostileLending, "lending on": hostileLendingOn, "slots": hostileSlots, "blocks": hostileBlocks,
	"results": hostileResults, "one-ways": hostileOneways, "ends": hostileEnds, "the hand": hostileHand, "standing leases": hostileShares, "counts": hostileCounts,
}

// TestHostile sends what no honest node sends.
func TestHostile(t *testing.T) {
	for name, f := range hostile {
		t.Run(name, func(t *testing.T) { f(newRig(t, Rack)) })
	}
}

func hostileMemory(r rig) {
	mine := r.alloc(1, 0)
	r.is("an allocation in another's batch", memory(1, Alloc, r.region(2, 0, 1)), "permission denied")
	r.is("an allocation in a batch of nobody", memory(1, Alloc, r.region(9, 0, 1)), "permission denied")
	p := memory(1, Alloc, r.region(1, 1, 1))
	p.Machine = 2
	r.is("an allocation on another machine", p, "permission denied")
	r.is("a write of another's region", memory(2, Write, mine), "permission denied")
	r.is("a free of another's region", memory(2, Free, mine), "permission denied")
	r.is("a read of another's region", memory(2, Read, mine), "permission denied")
	r.is("a read of a former generation", memory(1, Read, r.region(1, 0, 0)), "permission denied")
	r.is("a write of a former generation", memory(1, Write, r.region(1, 0, 0)), "permission denied")
	r.is("a write of what was never allocated", memory(1, Write, r.region(1, 5, 0)), "permission denied")
	r.is("a late answer to an allocation", allocated(1, mine), "passes")
	r.is("an answer to who has not the batch", allocated(2, r.region(1, 0, 9)), "passes")
	p = allocated(1, r.region(1, 0, 9))
	p.OK = false
	r.is("a refusal of an allocation", p, "passes")
	p = allocated(1, r.region(1, 0, 9))
	p.Incarnation = 7
	r.is("an answer of another boot", p, "dropped")
	p = allocated(1, r.region(1, 0, 9))
	p.Source = Source{2, at(2)}
	r.is("an answer of memory from a node", p, "dropped")
	p = memory(1, Write, mine)
	p.Source = Source{memoryAt, at(memoryAt)}
	r.is("a write by a memory server", p, "dropped")
	p.Source = Source{101, at(101)}
	r.is("a write by a daemon", p, "dropped")
	p.Source = Source{2, at(1)}
	r.is("a write with another's address", p, "dropped")
	p = memory(1, Write, mine)
	p.Incarnation = 0
	r.is("a write of another incarnation", p, "dropped")
	r.is("a settle", from(1, Plain, memoryAt), "passes")
	p = from(1, Plain, memoryAt)
	p.Source = Source{101, at(101)}
	r.is("a settle by a daemon", p, "passes")
	if w := r.Word(mine.Slot); w != (Word{1, 1, 0}) {
		r.Errorf("a word has changed: %+v", w)
	}
	r.is("a free", memory(1, Free, mine), "passes to all copies")
	if v := r.Judge(new(memory(1, Kind(99), mine))); v.Action != Drop {
		r.Errorf("a packet of an unknown kind %v", v)
	}
	delete(r.Controls, Control{1, 1, 1})
	r.is("an answer after the control rule has gone", allocated(1, r.region(1, 0, 9)), "passes")
	if w := r.Word(mine.Slot); w.Generation != 1 {
		r.Errorf("a late answer to an allocation has taken a word: %+v", w)
	}
}

func hostileLending(r rig) {
	mine, theirs := r.alloc(1, 0), r.alloc(2, 0)
	k := r.ref(1, 0, 2)
	r.is("a call", call(1, 2, k, own(mine)), "passes")
	r.is("its copy", call(1, 2, k, own(mine)), "passes")
	r.is("a copy with another region", call(1, 2, k, own(theirs)), "dropped")
	r.is("a copy with fewer", call(1, 2, k), "dropped")
	r.is("a copy to somebody else", call(1, 3, k, own(mine)), "dropped")
	r.is("a copy with a block more", call(1, 2, k, own(mine), own()), "dropped")
	r.is("a one-way in an open slot", oneway(1, 2, r.ref(1, 0, 4), mine), "dropped")
	r.is("a write while lent", memory(1, Write, mine), "lent")
	r.is("a free while lent", memory(1, Free, mine), "lent")
	r.is("a read while lent", memory(1, Read, mine), "passes")
	r.is("a read by the callee", readBy(2, mine, k), "passes")
	r.is("a read of a former generation by the callee", readBy(2, r.region(1, 0, 0), k), "permission denied")
	r.is("a read by another", readBy(3, mine, k), "permission denied")
	r.is("a read by another number", readBy(2, mine, r.ref(1, 0, 4)), "permission denied")
	r.is("a read of what the slot does not list", readBy(2, r.region(1, 1, 1), k), "permission denied")
	r.is("a read without the slot", memory(2, Read, mine), "permission denied")
	r.is("a write by the callee", memory(2, Write, mine), "permission denied")
	r.is("an answer of another", reply(3, 1, k), "dropped")
	r.is("an answer to another", reply(2, 3, k), "dropped")
	r.is("an answer with another number", reply(2, 1, r.ref(1, 0, 4)), "dropped")
	r.is("the answer", reply(2, 1, k, theirs), "passes")
	r.is("a read after the answer", readBy(2, mine, k), "permission denied")
	r.is("a write after the answer", memory(1, Write, mine), "passes to all copies")
	r.is("a write of the result", memory(1, Write, theirs), "passes to all copies")
	r.is("a write of the result by the callee", memory(2, Write, theirs), "permission denied")
	r.is("a late copy of the call", call(1, 2, k, own(mine)), "passes")
	r.is("a call with a lower number", call(1, 2, r.ref(1, 0, 0), own(mine)), "dropped")
	r.is("a call with the next number", call(1, 2, r.ref(1, 0, 4), own(mine)), "passes")
	r.is("an answer to the call before", reply(2, 1, k), "dropped")
}

func hostileLendingOn(r rig) {
	a, b := r.alloc(1, 0), r.alloc(1, 1)
	k, on := r.ref(1, 0, 2), r.ref(2, 0, 2)
	r.is("a call with two blocks", call(1, 2, k, own(a), own(b)), "passes")
	second := Ref{k.Slot + 1, k.Number}
	r.is("lending on by another", call(3, 1, r.ref(3, 0, 2), lentOn(k, a)), "permission denied")
	r.is("lending on without the parent", call(2, 3, on, own(a)), "permission denied")
	r.is("a refused call again", call(2, 3, on, lentOn(k, a)), "permission denied")
	r.is("lending on with another number", call(2, 3, r.ref(2, 0, 4), lentOn(r.ref(1, 0, 4), a)), "permission denied")
	r.is("a parent that does not list it", call(2, 3, r.ref(2, 0, 6), lentOn(second, a)), "permission denied")
	r.is("a foreign parent of nothing", call(3, 1, r.ref(3, 1, 2), lentOn(k)), "permission denied")
	r.is("a one-way of what was lent", func() Packet { p := oneway(2, 3, r.ref(2, 1, 2)); p.Blocks[0] = lentOn(k, a); return p }(), "permission denied")
	r.is("two parents in two blocks", call(2, 3, r.ref(2, 2, 2), lentOn(k, a), lentOn(second, b)), "passes")
	r.is("what is its own beside what it was lent", call(2, 3, r.ref(2, 6, 2), lentOn(k, a, r.alloc(2, 0))), "passes")
	r.is("the answer to that", reply(3, 2, r.ref(2, 6, 2)), "passes")
	r.is("lending on to itself", call(2, 2, r.ref(2, 4, 2), lentOn(k, a)), "passes")
	r.is("the answer", reply(2, 1, k), "lent")
	r.is("an exception", about(2, Exception, 1, k), "lent")
	r.is("a READ by who has it at second hand", readBy(3, b, Ref{r.ref(2, 2, 2).Slot + 1, r.ref(2, 2, 2).Number}), "passes")
	r.is("the inner answer", reply(2, 2, r.ref(2, 4, 2)), "passes")
	r.is("the answer while the second block is lent on", reply(2, 1, k), "lent")
	r.is("the other inner answer", reply(3, 2, r.ref(2, 2, 2)), "passes")
	r.is("lending on from the second block only", call(2, 3, r.ref(2, 5, 2), lentOn(second, b)), "passes")
	r.is("the answer while that is open", reply(2, 1, k), "lent")
	r.is("the end of that", reply(3, 2, r.ref(2, 5, 2)), "passes")
	r.is("the answer at last", reply(2, 1, k), "passes")
	r.is("lending on after the answer", call(2, 3, r.ref(2, 0, 8), lentOn(k, a)), "permission denied")
}

func hostileSlots(r rig) {
	mine := r.alloc(1, 0)
	r.is("a number of another incarnation", call(1, 2, Ref{r.ref(1, 0, 0).Slot, MakeNumber(1<<26, 2)}), "dropped")
	r.is("a slot of another's block", call(1, 2, r.ref(2, 0, 2)), "dropped")
	r.is("a slot of nobody's block", call(1, 2, r.ref(9, 0, 2)), "dropped")
	r.is("a call without a number", call(1, 2, Ref{r.ref(1, 0, 0).Slot, 0}), "dropped")
	r.is("an answer without a number", reply(1, 2, Ref{}), "dropped")
	r.is("a question without a number", about(1, Ask, 2, Ref{}), "dropped")
	r.is("a call to nowhere", call(1, 9, r.ref(1, 0, 2), own(mine)), "unavailable")
	r.is("a question to nowhere", about(1, Ask, 9, r.ref(1, 0, 2)), "unavailable")
	if v := r.Judge(new(call(1, 9, r.ref(1, 0, 2), own(mine)))); !v.NeverBegun {
		r.Error("a call to nowhere may have begun")
	}
	r.is("the same region twice", call(1, 2, r.ref(1, 0, 2), own(mine, mine)), "permission denied")
	r.is("the refused call again", call(1, 2, r.ref(1, 0, 2), own(mine)), "permission denied")
	r.is("an answer to a refused call", reply(2, 1, r.ref(1, 0, 2)), "dropped")
	r.is("the same region in two blocks", call(1, 2, r.ref(1, 0, 4), own(mine), own(mine)), "permission denied")
	r.is("an old generation", call(1, 2, r.ref(1, 0, 6), own(Region{mine.Slot, 0})), "permission denied")
	r.is("a region beside another's", call(1, 2, r.ref(1, 0, 8), own(mine), own(r.region(2, 0, 0))), "permission denied")
	if r.Word(mine.Slot).Lent != 0 {
		r.Error("a refused call has lent something")
	}
	top := MakeNumber(1, 1<<CounterBits-1)
	r.is("the last number", call(1, 2, Ref{r.ref(1, 5, 0).Slot, top}), "passes")
	r.is("its answer", reply(2, 1, Ref{r.ref(1, 5, 0).Slot, top}), "passes")
	r.is("a number behind the last one", call(1, 2, Ref{r.ref(1, 5, 0).Slot, top + 1}), "dropped")
	far := Ref{1<<SlotBits - 1, MakeNumber(1, 2)}
	r.is("an answer in the last slot", reply(2, 1, far), "dropped")
	r.is("a read of the last region", readBy(2, Region{1<<SlotBits - 1, 1}, far), "permission denied")
}

func hostileBlocks(r rig) {
	k := r.ref(1, 0, 2)
	r.is("no block at all", func() Packet { p := call(1, 2, k); p.Blocks = nil; return p }(), "dropped")
	r.is("five blocks", call(1, 2, k, own(), own(), own(), own(), own()), "dropped")
	r.is("slots over the end of a block", call(1, 2, r.ref(1, 15, 2), own(), own()), "dropped")
	r.is("five regions in a slot", call(1, 2, k, own(make([]Region, 5)...)), "dropped")
	r.is("two blocks", call(1, 2, k, own(r.alloc(1, 0)), own(r.alloc(1, 1))), "passes")
	r.is("a copy with the first block only", call(1, 2, k, own(r.region(1, 0, 1))), "dropped")
	r.is("a copy in the other order", call(1, 2, k, own(r.region(1, 1, 1)), own(r.region(1, 0, 1))), "dropped")
	r.is("an answer to the second block", reply(2, 1, Ref{k.Slot + 1, k.Number}), "dropped")
	r.is("a call in the second block", call(1, 2, r.ref(1, 1, 4)), "dropped")
	r.is("the answer", reply(2, 1, k), "passes")
	r.is("a call in the second slot", call(1, 3, r.ref(1, 1, 4)), "passes")
	r.is("a copy of the first call", call(1, 2, k, own(r.region(1, 0, 1)), own(r.region(1, 1, 1))), "dropped")
	r.is("the answer again, while the second slot is another call's", reply(2, 1, k), "passes")
	r.is("a call over both", call(1, 2, r.ref(1, 0, 6), own(), own()), "dropped")
}

func hostileResults(r rig) {
	mine, theirs, more, third := r.alloc(1, 0), r.alloc(2, 0), r.alloc(2, 1), r.alloc(3, 0)
	k, l := r.ref(1, 0, 2), r.ref(2, 0, 2)
	r.is("a call", call(1, 2, k, own(mine)), "passes")
	r.is("an answer with a third one's region", reply(2, 1, k, mine, third), "permission denied")
	r.is("an answer with a former generation", reply(2, 1, k, r.region(2, 0, 0)), "permission denied")
	r.is("an answer with a former generation of the caller's", reply(2, 1, k, r.region(1, 0, 0)), "permission denied")
	r.is("an answer with too many results", reply(2, 1, k, slices.Repeat([]Region{more}, 17)...), "permission denied")
	p := about(2, Exception, 1, k)
	p.Results = []Region{theirs}
	r.is("an exception with a region", p, "permission denied")
	r.is("another call of the callee's", call(2, 3, l, own(theirs)), "passes")
	r.is("an answer with what is lent", reply(2, 1, k, more, theirs), "lent")
	if r.Word(more.Slot).Owner != 2 {
		r.Error("an answer that was turned around has given a result")
	}
	r.is("the end of that", reply(3, 2, l), "passes")
	p = reply(2, 1, k, mine, theirs)
	before := r.picture()
	if v := r.Judge(&p); v.Action != Pass || v.Had != 1 || r.step(before, &p, v) != nil {
		r.Errorf("an answer with a result that is the caller's already: %+v", v)
	}
	r.is("the answer again, with more", reply(2, 1, k, theirs, more), "permission denied")
	r.is("the answer again, with fewer", reply(2, 1, k), "passes")
	r.is("the answer again, with too many", reply(2, 1, k, slices.Repeat([]Region{mine}, 17)...), "permission denied")
	if v := r.Judge(new(reply(2, 1, k, mine, theirs))); v.Had != 3 {
		r.Errorf("a copy of an answer has results that are new: %+v", v)
	}
	r.is("a region that is handed on", oneway(1, 3, r.ref(1, 1, 2), theirs), "passes")
	r.is("the answer again, when a result has another owner", reply(2, 1, k, theirs), "permission denied")
}

func hostileOneways(r rig) {
	mine, other, theirs := r.alloc(1, 0), r.alloc(1, 1), r.alloc(2, 0)
	k := r.ref(1, 0, 2)
	r.is("a call", call(1, 3, r.ref(1, 5, 2), own(other)), "passes")
	r.is("a one-way of what is lent", oneway(1, 2, k, mine, other), "lent")
	if r.Slot(k.Slot).Number != 0 {
		r.Error("a one-way that has to wait has used its number")
	}
	r.is("the call's end", reply(3, 1, r.ref(1, 5, 2)), "passes")
	r.is("the one-way", oneway(1, 2, k, mine, other), "passes")
	r.is("its copy", oneway(1, 2, k, mine, other), "passes")
	r.is("a copy that hands over the receiver's own", oneway(1, 2, k, mine, theirs), "dropped")
	r.is("a write by who had it", memory(1, Write, mine), "permission denied")
	r.is("a read by the one-way's slot", readBy(2, mine, k), "permission denied")
	r.is("lending on by the one-way's slot", call(2, 3, r.ref(2, 0, 2), lentOn(k, mine)), "permission denied")
	r.is("lending as its owner", call(2, 3, r.ref(2, 1, 2), own(mine)), "passes")
	r.is("the acknowledgement with a result", reply(2, 1, k, theirs), "passes")
	l := r.ref(2, 2, 2)
	r.is("a one-way back", oneway(2, 1, l, other), "passes")
	r.is("which is declined", about(1, Exception, 2, l), "passes")
	r.is("a write by its sender", memory(2, Write, other), "passes to all copies")
	m := r.ref(2, 3, 2)
	r.is("another one-way", oneway(2, 1, m, other), "passes")
	r.is("lending what it has brought", call(1, 3, r.ref(1, 1, 2), own(other)), "passes")
	r.is("the one-way is declined all the same", about(1, Exception, 2, m), "passes")
	if w := r.Word(other.Slot); w.Owner != 2 || w.Lent != 1 {
		r.Errorf("what was declined has the word %+v", w)
	}
	r.is("a write while the decliner lends it", memory(2, Write, other), "lent")
	third, fourth := r.alloc(1, 2), r.alloc(1, 3)
	o := r.ref(1, 3, 2)
	r.is("one more", oneway(1, 2, o, third, fourth), "passes")
	r.is("handing on what it has brought", oneway(2, 3, r.ref(2, 4, 2), third), "passes")
	r.Controls[Control{2, 1, 1}] = true // the machine has lost the other region, and the batch is another node's
	fourth.Generation++
	r.is("an allocation in its slot", allocated(2, fourth), "passes")
	r.is("it is declined", about(2, Exception, 1, o), "passes")
	if r.Word(third.Slot).Owner != 3 || r.Word(fourth.Slot).Owner != 2 {
		r.Errorf("what was declined has the words %+v and %+v", r.Word(third.Slot), r.Word(fourth.Slot))
	}
}

func hostileEnds(r rig) {
	mine := r.alloc(1, 0)
	k, l := r.ref(1, 0, 2), r.ref(1, 1, 2)
	r.is("a call", call(1, 2, k, own(mine)), "passes")
	r.is("another", call(1, 2, l, own(mine)), "passes")
	r.is("the answer to that", reply(2, 1, l), "passes")
	delete(r.Identities, Source{2, at(2)})
	r.Routes[at(2)] = Route{2, true}
	r.is("a call to who is going", call(1, 2, r.ref(1, 2, 2), own(mine)), "unavailable")
	r.is("a one-way to who is going", oneway(1, 2, r.ref(1, 2, 2)), "unavailable")
	r.is("a copy of what is open", call(1, 2, k, own(mine)), "passes")
	r.is("a copy of what is closed", call(1, 2, l, own(mine)), "unavailable")
	r.is("a question about what is open", about(1, Ask, 2, k), "passes")
	r.is("a question about what is closed", about(1, Ask, 2, l), "unavailable")
	r.is("a question about a former call in a slot that is open", about(1, Ask, 2, r.ref(1, 0, 0)), "unavailable")
	r.is("an answer of who is gone", reply(2, 1, k), "dropped")
	r.hand("the end of the call", Operation{Op: FailCall, Ref: k}, Done)
	r.is("a copy of what has failed", call(1, 2, k, own(mine)), "unavailable")
	if v := r.Judge(new(call(1, 2, k, own(mine)))); v.NeverBegun {
		r.Error("a call that has failed has never begun")
	}
	r.is("a question about what has failed", about(1, Ask, 2, k), "unavailable")
	r.Routes[at(2)] = Route{Row: 2} // its next incarnation
	r.is("a question about what has failed, to the next incarnation", about(1, Ask, 2, k), "unavailable")
	r.is("a question about another call", about(1, Ask, 2, l), "passes")
	r.is("a question about a former call in a slot that has failed", about(1, Ask, 2, r.ref(1, 0, 0)), "passes")
	r.is("a write after the end", memory(1, Write, mine), "passes to all copies")
	r.Lose()
	r.is("a write when registers are lost", memory(1, Write, mine), "dropped")
	r.is("a settle when registers are lost", from(1, Plain, memoryAt), "dropped")
}

func hostileHand(r rig) {
	mine, given := r.alloc(1, 0), r.alloc(1, 1)
	k, on, g := r.ref(1, 0, 2), r.ref(2, 0, 2), r.ref(1, 2, 2)
	r.is("a call", call(1, 2, k, own(mine)), "passes")
	r.is("which is lent on", call(2, 3, on, lentOn(k, mine)), "passes")
	r.hand("a fail of a former Gatekeeper", Operation{Op: FailCall, Ref: on, Election: 8}, Stale)
	r.hand("a fail of another number", Operation{Op: FailCall, Ref: r.ref(2, 0, 4)}, Nothing)
	r.hand("a fail of what is lent on", Operation{Op: FailCall, Ref: k}, HasChildren)
	r.is("lending on from what is to end", call(2, 3, r.ref(2, 1, 2), lentOn(k, mine)), "permission denied")
	r.is("a read by what is to end", readBy(2, mine, k), "passes")
	r.hand("a seizure of what is lent", Operation{Op: Seize, Regions: []Region{mine}, Owner: 1}, Denied)
	r.hand("a fail of the leaf", Operation{Op: FailCall, Ref: on}, Done)
	r.hand("a fail of the root", Operation{Op: FailCall, Ref: k}, Done)
	r.hand("a fail again", Operation{Op: FailCall, Ref: k}, Nothing)
	r.is("a late answer", reply(2, 1, k), "dropped")
	r.hand("a seizure with another owner", Operation{Op: Seize, Regions: []Region{mine}, Owner: 2}, Denied)
	r.hand("a seizure of a former generation", Operation{Op: Seize, Regions: []Region{{mine.Slot, 0}}, Owner: 1}, Denied)
	r.hand("a seizure", Operation{Op: Seize, Regions: []Region{mine}, Owner: 1}, Done)
	if r.Word(mine.Slot) != (Word{1, Nobody, 0}) {
		r.Errorf("a seized region has the word %+v", r.Word(mine.Slot))
	}
	r.is("a write of what was seized", memory(1, Write, mine), "permission denied")
	r.is("a one-way", oneway(1, 2, g, given), "passes")
	r.hand("its failure", Operation{Op: FailCall, Ref: g}, Done)
	if state := r.Slot(g.Slot).State; state != Failed {
		r.Errorf("a one-way that has failed is %v", state)
	}
	r.is("a write by its sender", memory(1, Write, given), "passes to all copies")
	if f := r.hand("a reading", Operation{Op: ReadWords, First: mine.Slot}, Done); len(f.Words) != 8 || f.Words[1].Generation != 1 {
		r.Errorf("a reading of words finds %v", f)
	}
	if f := r.hand("a reading", Operation{Op: ReadSlots, First: k.Slot}, Done); len(f.Slots) != 4 || f.Slots[0].State != Failed {
		r.Errorf("a reading of slots finds %v", f)
	}
	r.hand("a word that is set", Operation{Op: SetWord, First: 5}, Denied)
	r.hand("an unknown operation", Operation{Op: 99}, Denied)
	r.is("a call with two slots", call(1, 2, r.ref(1, 4, 2), own(), own()), "passes")
	r.hand("a fail of the second one", Operation{Op: FailCall, Ref: r.ref(1, 5, 2)}, Nothing)
	second := r.ref(1, 5, 2)
	r.is("lending on from that one", call(2, 3, r.ref(2, 3, 2), lentOn(second)), "passes")
	r.hand("a fail of both", Operation{Op: FailCall, Ref: r.ref(1, 4, 2)}, HasChildren)
	r.is("lending on from the second of what is to end", call(2, 3, r.ref(2, 4, 2), lentOn(second)), "permission denied")
	r.is("the end of what was lent on", reply(3, 2, r.ref(2, 3, 2)), "passes")
	r.hand("an operation of the next Gatekeeper", Operation{Op: ReadWords, Election: 10}, Done)
	r.hand("one of the former", Operation{Op: FailCall, Ref: r.ref(1, 4, 2), Election: 9}, Stale)
	r.Lose()
	r.hand("a word that is set", Operation{Op: SetWord, First: mine.Slot, Word: Word{1, 1, 0}}, Done)
	r.hand("a slot that is set", Operation{Op: SetSlot, First: k.Slot, Slot: Slot{Number: k.Number, State: Closed, Slots: 1, Caller: 1, Callee: 2}}, Done)
	r.hand("the end of the rebuilding", Operation{Op: Rebuilt}, Done)
	r.is("a write after the rebuilding", memory(1, Write, mine), "passes to all copies")
	r.is("a copy after the rebuilding", call(1, 2, k), "passes")
}

func hostileShares(r rig) {
	mine := r.alloc(1, 0)
	k, on := r.ref(9, 0, 2), r.ref(2, 0, 2)
	lease := Operation{Op: Lend, Ref: k, Regions: []Region{mine}, Owner: 1, Lessee: 2}
	r.hand("a lease of another's region", Operation{Op: Lend, Ref: k, Regions: []Region{mine}, Owner: 2, Lessee: 3}, Denied)
	r.hand("a lease of a former generation", Operation{Op: Lend, Ref: k, Regions: []Region{{mine.Slot, 0}}, Owner: 1, Lessee: 2}, Denied)
	five := []Region{mine, r.alloc(1, 1), r.alloc(1, 2), r.alloc(1, 3), r.alloc(1, 4)}
	r.hand("a lease of five regions", Operation{Op: Lend, Ref: k, Regions: five, Owner: 1, Lessee: 2}, Denied)
	r.hand("a lease of nobody's", Operation{Op: Lend, Ref: k, Owner: Nobody, Lessee: 2}, Denied)
	r.hand("a lease to nobody", Operation{Op: Lend, Ref: k, Owner: 1, Lessee: Nobody}, Denied)
	r.hand("a lease of one region twice", Operation{Op: Lend, Ref: k, Regions: []Region{mine, mine}, Owner: 1, Lessee: 2}, Denied)
	r.hand("a lease", lease, Done)
	r.hand("the lease again", lease, Nothing)
	if n := r.Word(mine.Slot).Lent; n != 1 {
		r.Errorf("a region with a lease is lent %d times", n)
	}
	r.hand("another lease in its slot", Operation{Op: Lend, Ref: r.ref(9, 0, 4), Regions: []Region{mine}, Owner: 1, Lessee: 2}, Denied)
	r.is("a read by the lessee", readBy(2, mine, k), "passes")
	r.is("a read by another", readBy(3, mine, k), "permission denied")
	r.is("a write by the owner", memory(1, Write, mine), "lent")
	r.is("a call in the lease's slot", call(1, 2, k, own(mine)), "dropped")
	r.is("an answer to the lease", reply(2, 1, k), "dropped")
	r.is("lending on", call(2, 2, on, lentOn(k, mine)), "passes")
	r.hand("its end", Operation{Op: FailCall, Ref: k}, HasChildren)
	r.is("lending on for ever", call(2, 2, r.ref(2, 1, 2), lentOn(k, mine)), "permission denied")
	r.is("the end of the lending on", reply(2, 2, on), "passes")
	r.hand("its end", Operation{Op: FailCall, Ref: k}, Done)
	r.is("a read after the end", readBy(2, mine, k), "permission denied")
	r.hand("the lease again after its end", lease, Nothing)
	if r.Slot(k.Slot).Ending {
		r.Error("a slot that has ended is to end")
	}
	lease.Ref = r.ref(9, 0, 1)
	r.hand("a lease with a lower number", lease, Denied)
	r.is("a write after the end", memory(1, Write, mine), "passes to all copies")
}

// hostileCounts brings counts to their ends.
func hostileCounts(r rig) {
	mine, other := r.alloc(1, 0), r.alloc(1, 1)
	r.Lent, r.Children = 1, 1
	k, l := r.ref(1, 0, 2), r.ref(1, 1, 2)
	r.is("a call", call(1, 2, k, own(mine)), "passes")
	r.is("a call more than can be counted", call(1, 3, l, own(mine)), "lent")
	if r.Slot(l.Slot).Number != 0 {
		r.Error("a count at its end was taken for a refusal")
	}
	r.hand("a lease more than can be counted", Operation{Op: Lend, Ref: r.ref(9, 0, 2), Regions: []Region{mine}, Owner: 1, Lessee: 2}, Denied)
	r.is("a call with the other", call(1, 3, l, own(other)), "passes")
	r.is("lending both on from nothing", call(3, 2, r.ref(3, 0, 2), lentOn(l), lentOn(l)), "lent")
	r.is("lending nothing on", call(3, 2, r.ref(3, 0, 2), lentOn(l)), "passes")
	r.is("lending nothing on once more", call(3, 2, r.ref(3, 1, 2), lentOn(l)), "lent")
}
