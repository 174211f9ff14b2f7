package direct

import (
	"slices"

	"github.com/bifrost-rack/bifrost/rpc/record"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Item names a call whose outcome nobody will ask for any more, to the node that has it.
type Item struct {
	ID rpcpacket.ID
	// Slot and Number are the call's, if this incarnation of the caller has sent it: copies
	// of it that are on their way are refused. Of those that an earlier one has sent, the
	// incarnation says enough.
	Slot   rpcpacket.Slot
	Number rpcpacket.Number
}

// item is an Item until it is forgotten.
type item struct {
	Item
	call  record.Call  // as it is on record
	more  []Item       // the same call in other slots
	node  [16]byte     // that is to forget it
	owner rpcpacket.ID // the execution that owes it; zero for a plain call
	asked bool         // the call is asked about before that (Table.Asks)
}

// regions is what an execution that is done, or a durable main, still owes because of regions.
type regions struct {
	committed bool  // memory has what was changed
	frees     phase // Owed.Frees
	rest      phase // Owed.Rest
}

// phase is how far one of them has come.
type phase uint8

const (
	none phase = iota // or over
	due
	told
)

// Free is regions that are to be freed.
type Free struct {
	Owner   rpcpacket.ID // the execution, or the call that has handed them over
	Regions [][16]byte
	// Rest says that they were results of an answer which nobody asks for any more. The switch denies to free those
	// which the caller has got. Those that the node has got again stay: an execution that runs here has them, or another one owes something
	// about them.
	Rest bool
	// Heard says that a call of Asks has handed them over, which is the Owner: its callee is told to forget it when they are gone.
	Heard      bool
	checkpoint uint32
}

// Same reports whether two name the same regions, for the same reason.
func (f Free) Same(o Free) bool {
	return f.Owner == o.Owner && f.Rest == o.Rest && f.checkpoint == o.checkpoint && slices.Equal(f.Regions, o.Regions)
}

// owe notes what an execution owes: one that is done, that memory machines commit what it has
// changed, that regions are freed, and that its callees
// forget its calls; a durable main (see also oweMemory), that its callees forget those before its last checkpoint.
func (t *Table) owe(e *record.Execution) {
	if e == nil || e.Over || t.owed[e.ID] > 0 && e.Checkpoint == nil {
		return
	}
	var called []record.Call
	switch {
	case e.Done != nil:
		o := &e.Done.Owed
		called = o.Called
		if len(o.Machines) > 0 {
			t.commits[e.ID] = true
			t.owed[e.ID]++
		}
		r := regions{frees: dueIf(len(o.Frees) > 0), rest: dueIf(len(o.Rest) > 0)}
		if r != (regions{}) {
			t.regions[e.ID] = &r
			t.owed[e.ID]++
			t.hand(o.Rest, 1)
		}
	case e.Checkpoint != nil:
		called = e.Checkpoint.Owed.Called
	default:
		return
	}
	t.oweForgets(e.ID, called)
}

func dueIf(owed bool) phase {
	if owed {
		return due
	}
	return none
}

// oweForgets notes that callees are to forget what an execution has called. Calls that were given up are asked about before that;
// a callee forgets by itself those of policy none.
func (t *Table) oweForgets(owner rpcpacket.ID, called []record.Call) {
	for _, k := range slices.Backward(called) { // of a call that was refused, the node that took it is the last one
		k.GivenUp = k.GivenUp && k.Slot != 0
		if k.Direct() || k.GivenUp {
			t.add(owner, k, Item{ID: k.ID})
		}
	}
}

// oweMemory notes what a durable main owes because of memory since its last checkpoint.
func (t *Table) oweMemory(e *record.Execution) {
	o := e.Owed()
	if len(o.Machines) > 0 && !t.commits[e.ID] {
		t.commits[e.ID] = true
		t.owed[e.ID]++
	}
	if len(o.Frees) == 0 {
		return
	}
	if t.regions[e.ID] == nil {
		t.owed[e.ID]++
	}
	t.regions[e.ID] = &regions{frees: due}
}

// hand counts regions that an execution may hand over, or does not any more.
func (t *Table) hand(all [][16]byte, n int) {
	for _, p := range all {
		t.handRegion(rpcpacket.RegionOf(p), n)
	}
}

func (t *Table) handRegion(g rpcpacket.Region, n int) {
	if t.hands[g] += n; t.hands[g] == 0 {
		delete(t.hands, g)
	}
}

// has counts the regions that a main has since its last checkpoint.
func (t *Table) has(e *record.Execution) {
	if e == nil || e.Checkpoint == nil {
		return
	}
	t.hand(t.mainHas[e.ID], -1)
	t.mainHas[e.ID] = e.Checkpoint.Has
	t.hand(e.Checkpoint.Has, 1)
}

// rest are the results of an answer that are to be freed. Nobody has told which of them the caller has got: what
// another execution may hand over, or a main has, has come back since, and stays.
func (t *Table) rest(o *record.Owed) [][16]byte {
	return slices.DeleteFunc(slices.Clone(o.Rest), func(p [16]byte) bool { return t.hands[rpcpacket.RegionOf(p)] > 1 })
}

// Unfreed lists the regions which go because of a durable main's checkpoints so far, and are not known to be gone. They
// belong to what its next checkpoint owes.
func (t *Table) Unfreed(main rpcpacket.ID) [][16]byte {
	if t.regions[main] == nil {
		return nil
	}
	return t.state.Execution(main).Owed().Frees
}

// paid reports whether an execution has nothing more to do, and its ledger does not say so.
func (t *Table) paid(e *record.Execution) bool {
	return e != nil && t.state.Execution(e.ID) == e && !e.Over && t.owed[e.ID] == 0 && (e.Done != nil || e.Checkpoint != nil)
}

// Owing lists the calls of a durable main that were to be forgotten at its last checkpoint, and are
// not known to be. They belong to what its next checkpoint owes.
func (t *Table) Owing(main rpcpacket.ID) (calls []record.Call) {
	for _, i := range t.items {
		if i.owner == main {
			k := i.call
			k.GivenUp = i.asked
			calls = append(calls, k)
		}
	}
	slices.SortFunc(calls, func(a, b record.Call) int { return a.ID.Compare(b.ID) })
	return calls
}

// Hands reports whether one-ways of a durable main's checkpoints hand regions over, and are not known to be delivered.
func (t *Table) Hands(main rpcpacket.ID) bool {
	e := t.state.Execution(main)
	if e == nil {
		return false
	}
	o := e.Owed()
	return o.Hands()
}

// Owes reports whether somebody is to be told to forget.
func (t *Table) Owes() bool { return len(t.items) > 0 }

// add has a call forgotten by its node.
func (t *Table) add(owner rpcpacket.ID, k record.Call, i Item) {
	if t.items[i.ID] != nil {
		return
	}
	t.items[i.ID] = &item{Item: i, call: k, node: k.Node, owner: owner, asked: k.GivenUp}
	t.owed[owner]++
}

// Left adds a plain call that is over, to be forgotten by a node that has answered it.
func (t *Table) Left(node [16]byte, id rpcpacket.ID) {
	if t.items[id] != nil {
		return
	}
	slot, n := id.Place()
	t.items[id] = &item{Item: Item{ID: id, Slot: slot, Number: n}, node: node}
}

// Sent notes in which slot this incarnation has sent a call that is to be forgotten; of a durable
// main's there may be several.
func (t *Table) Sent(i Item) {
	o := t.items[i.ID]
	switch {
	case o == nil:
	case o.Slot == 0:
		o.Slot, o.Number = i.Slot, i.Number
	case o.Slot != i.Slot || o.Number != i.Number:
		o.more = append(o.more, i)
	}
}

// Forgets lists what is to be forgotten, by node.
func (t *Table) Forgets() map[[16]byte][]Item {
	all := map[[16]byte][]Item{}
	for _, i := range t.items {
		if i.asked {
			continue // see Asks
		}
		all[i.node] = append(append(all[i.node], i.Item), i.more...)
	}
	for _, items := range all {
		slices.SortStableFunc(items, func(a, b Item) int { return a.ID.Compare(b.ID) })
	}
	return all
}

// Asks lists the calls that executions have given up, and that are asked about until their answers are heard. A
// call that is out is sent again in the place of a question. Heard ends it.
func (t *Table) Asks() (all []record.Call) {
	for _, i := range t.items {
		if i.asked {
			all = append(all, i.call)
		}
	}
	slices.SortFunc(all, func(a, b record.Call) int { return a.ID.Compare(b.ID) })
	return all
}

// Heard notes that the answer to a call of Asks is heard, and that what it has handed over is freed; or that there is no answer. The callee is told
// to forget the call then. Heard returns the records of executions that owe nothing any more.
func (t *Table) Heard(id rpcpacket.ID) []record.Record {
	i := t.items[id]
	if i == nil || !i.asked {
		return nil
	}
	if i.call.Direct() {
		i.asked = false
		return nil
	}
	return t.forgot(i)
}

// Attempts calls f with each attempt on record whose answer may not have been heard, and with the execution that has made it: the last
// ones of the calls of executions and mains that are to run again, and of those that were given up. A call may come twice if a main has made it before
// its last checkpoint. Resume comes before it.
func (t *Table) Attempts(f func(e *record.Execution, k record.Call)) {
	t.state.Each(func(e *record.Execution) {
		seen := make(map[rpcpacket.ID]bool, len(e.Called))
		for _, k := range slices.Backward(e.Called) {
			if !seen[k.ID] && k.Slot != 0 {
				f(e, k)
			}
			seen[k.ID] = true
		}
		o := e.Owed()
		for _, k := range o.Called {
			if i := t.items[k.ID]; k.Slot != 0 && i != nil && i.asked {
				f(e, k)
			}
		}
	})
}

// Acknowledged takes the word of a node that it has forgotten calls. It returns the records of executions that owe nothing any more.
func (t *Table) Acknowledged(node [16]byte, forgotten []rpcpacket.ID) (all []record.Record) {
	for _, id := range forgotten {
		if i := t.items[id]; i != nil && i.node == node && !i.asked {
			all = append(all, t.forgot(i)...)
		}
	}
	return all
}

// forgot notes that a call is forgotten.
func (t *Table) forgot(i *item) []record.Record {
	delete(t.items, i.ID)
	if i.owner.IsZero() {
		return nil
	}
	return t.pay(i.owner)
}

// Committed notes that all memory machines have committed what an execution has changed. It
// returns the record that the execution owes nothing any more, if that is so.
func (t *Table) Committed(id rpcpacket.ID) []record.Record {
	if r := t.regions[id]; r != nil {
		r.committed = true
	}
	if !t.commits[id] {
		return nil
	}
	delete(t.commits, id)
	return t.pay(id)
}

// Frees returns the regions that are to be freed now, once each. Those of an answer are not before nobody asks for that any more.
func (t *Table) Frees() (all []Free) {
	for id, r := range t.regions {
		e := t.state.Execution(id)
		if !r.committed || e == nil {
			continue
		}
		o := e.Owed()
		if r.frees == due {
			r.frees = told
			f := Free{Owner: id, Regions: o.Frees}
			if e.Checkpoint != nil {
				f.checkpoint = e.Checkpoint.Index
			}
			all = append(all, f)
		}
		if e.Done != nil && e.Forgotten && r.rest == due && len(t.reruns) == 0 { // what is to run again may have got them
			r.rest = told
			all = append(all, Free{Owner: id, Regions: t.rest(&o), Rest: true})
		}
	}
	slices.SortFunc(all, func(a, b Free) int { return a.Owner.Compare(b.Owner) })
	return all
}

// Freed notes that regions are gone. It returns the record that their owner owes nothing any more, if that is so.
func (t *Table) Freed(f *Free) []record.Record {
	r, e := t.regions[f.Owner], t.state.Execution(f.Owner)
	switch {
	case f.Heard:
		return t.Heard(f.Owner)
	case r == nil || e == nil || e.Checkpoint != nil && e.Checkpoint.Index != f.checkpoint: // there is a later checkpoint, which owes them, too
		return nil
	case f.Rest:
		t.hand(e.Owed().Rest, -1)
		r.rest = none
	default:
		r.frees = none
	}
	return t.freed(f.Owner)
}

// freed returns the record that an execution owes nothing any more, if it owes nothing because of regions, and nothing else.
func (t *Table) freed(id rpcpacket.ID) []record.Record {
	if r := t.regions[id]; r.frees != none || r.rest != none {
		return nil
	}
	delete(t.regions, id)
	return t.pay(id)
}

// pay notes that an execution owes one thing less.
func (t *Table) pay(id rpcpacket.ID) []record.Record {
	if t.owed[id]--; t.owed[id] > 0 {
		return nil
	}
	delete(t.owed, id)
	return []record.Record{&record.Over{Execution: id}}
}

// Word is what a caller's word that it asks no more for calls comes to.
type Word struct {
	// Record says so; nil if there is nothing to write. When it is settled, the word is acknowledged
	// for the calls in Forgotten.
	Record    record.Record
	Forgotten []rpcpacket.ID
	// Foreign counts the calls that are not the sender's to forget, Full those for which there is no room:
	// the word about these comes again.
	Foreign, Full int
}

// Forget takes a caller's word that it asks no more for calls. A slot that is not known takes room of the
// ledger, whether there is a call in it or not; room is as in Admits.
func (t *Table) Forget(caller [16]byte, incarnation uint32, items []Item, room int) (w Word) {
	t.heard[caller] = max(t.heard[caller], incarnation)
	r, listed := new(record.Forgotten), map[record.Place]int{}
	for _, i := range items {
		e, runs := t.state.Execution(i.ID), t.running[i.ID]
		if !t.asks(caller, e, runs) || i.Slot != 0 && (!i.Slot.Valid() || i.Number.Incarnation() > incarnation) {
			w.Foreign++
			w.Forgotten = append(w.Forgotten, i.ID) // so that its sender does not repeat it
			continue
		}
		at := record.Place{Caller: caller, Slot: i.Slot}
		var came record.Slot // where the call has come: forgetting it raises the floor so far
		switch {
		case e != nil:
			at, _, n := e.Caller()
			came = record.Slot{Place: at, Floor: n + 1}
		case runs != nil:
			if at == runs.at {
				runs.number = max(runs.number, i.Number)
			}
			came = record.Slot{Place: runs.at, Floor: runs.number + 1}
		}
		if i.Slot != 0 && (at != came.Place || i.Number >= came.Floor) && i.Number >= t.state.Floor(at) {
			k, again := listed[at]
			switch {
			case again:
				r.Slots[k].Floor = max(r.Slots[k].Floor, i.Number+1)
			case !t.slotKnown(at) && !t.Charge(caller, slotCharge, room):
				w.Full++
				continue
			default:
				listed[at] = len(r.Slots)
				r.Slots = append(r.Slots, record.Slot{Place: at, Floor: i.Number + 1})
			}
		}
		switch {
		case e != nil && !e.Forgotten && !slices.Contains(r.Executions, i.ID):
			r.Executions = append(r.Executions, i.ID)
		case e == nil && runs != nil:
			runs.forgotten = true
		}
		w.Forgotten = append(w.Forgotten, i.ID)
	}
	if dead, _ := t.state.Dead(caller); incarnation > dead+1 {
		r.Callers = append(r.Callers, record.Caller{Node: caller, Dead: incarnation - 1})
	}
	if len(r.Executions)+len(r.Slots)+len(r.Callers) > 0 {
		w.Record = r
	}
	return w
}

// Passed returns the record that nobody asks any more for the plain calls of a slot before one that has come, nil if the node keeps
// none. The call itself may be dropped: the caller would not have made it if it waited for another one.
func (t *Table) Passed(caller [16]byte, h *rpcpacket.Header) record.Record {
	at := record.Place{Caller: caller, Slot: h.Slot}
	dead, _ := t.state.Dead(caller)
	if h.Call.Derived() || misnamed(caller, h) != 0 || h.CallerIncarnation <= dead || h.CallerIncarnation < t.heard[caller] || len(t.state.Before(at, h.Number)) == 0 {
		return nil
	}
	return &record.Forgotten{Slots: []record.Slot{{Place: at, Floor: h.Number}}}
}

// asks reports whether a node is the one that a call is of, as far as the call is known. Nobody calls a
// durable main.
func (t *Table) asks(caller [16]byte, e *record.Execution, runs *running) bool {
	if e != nil {
		at, _, _ := e.Caller()
		return !e.Main() && at.Caller == caller
	}
	return runs == nil || runs.at.Caller == caller
}

// Holders is Callers, and those of whom the node keeps call slots.
func (t *Table) Holders() map[[16]byte]uint32 {
	all := t.Callers()
	t.state.Slots(func(l *record.Slot) { all[l.Caller] = max(all[l.Caller], l.Floor.Incarnation()) })
	return all
}

// Callers lists the callers whose calls the node still keeps, each with its latest
// incarnation that has sent one.
func (t *Table) Callers() map[[16]byte]uint32 {
	all := map[[16]byte]uint32{}
	for _, e := range t.state.Executions() {
		if at, incarnation, _ := e.Caller(); at.Slot != 0 && !e.Forgotten {
			all[at.Caller] = max(all[at.Caller], incarnation)
		}
	}
	return all
}

// Bury returns the record that a caller's incarnations up to one are dead, nil if that is
// known; gone says that there will be no other.
func (t *Table) Bury(caller [16]byte, incarnation uint32, gone bool) record.Record {
	if dead, buried := t.state.Dead(caller); incarnation <= dead && (buried || !gone) {
		return nil
	}
	return &record.Forgotten{Callers: []record.Caller{{Node: caller, Dead: incarnation, Gone: gone}}}
}

// Idle reports whether nobody will ask for anything of the node, and it owes nobody a word. Words about plain calls
// are not owed: the rack tells the callees that the node has left.
func (t *Table) Idle() bool {
	if len(t.running)+len(t.oneways.queues) > 0 {
		return false
	}
	for _, i := range t.items {
		if !i.owner.IsZero() {
			return false
		}
	}
	for _, e := range t.state.Executions() {
		if !e.Main() && (!e.Forgotten || !e.Over && !t.waitsForMains(e)) {
			return false
		}
	}
	return true
}

// waitsForMains reports whether an execution owes nothing but regions which a main that is to run again may have got. It may never run
// again here. What it leaves, and those regions, the rack takes back when the node has left.
func (t *Table) waitsForMains(e *record.Execution) bool {
	r := t.regions[e.ID]
	return len(t.reruns) > 0 && r != nil && *r == regions{committed: true, rest: due} && t.owed[e.ID] == 1
}

// Keeps reports whether the node keeps something of calls.
func (t *Table) Keeps() bool { return t.state.Keeps() }
