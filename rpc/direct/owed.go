package direct

import (
	"net/netip"
	"slices"

	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/record"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Item names a call whose outcome nobody will ask for any more, to the node that has it, or
// to the Gatekeeper.
type Item struct {
	ID rpcpacket.ID
	// Lane and Number are the call's, if this incarnation of the caller has sent it: copies
	// of it that are on their way are refused. Of those that an earlier one has sent, the
	// incarnation says enough.
	Lane, Number uint64
}

// item is an Item until the node has acknowledged it.
type item struct {
	Item
	more  []Item // the same call in other lanes
	node  [16]byte
	lends bool         // when the node has forgotten it, the Gatekeeper is to forget its rights
	owner rpcpacket.ID // the execution that owes it; zero for a session's call
}

// controller is the Gatekeeper as a node that forgets.
var controller = rackaddr.Gatekeeper.As16()

// owe notes what an execution owes: one that is done, that memory machines commit what it has
// changed, that the Gatekeeper hears what becomes of regions, and that its callees
// forget its calls; a durable main (see also oweMemory), that its callees forget those before its last checkpoint.
func (t *Table) owe(e *record.Execution) {
	if e == nil || e.Over || t.owed[e.ID] > 0 && e.Checkpoint == nil {
		return
	}
	var called []record.Call
	switch {
	case e.Done != nil:
		called = slices.DeleteFunc(slices.Clone(e.Done.Owed.Called), func(k record.Call) bool { return k.GivenUp }) // see Told
		if len(e.Done.Owed.Machines) > 0 {
			t.commits[e.ID] = true
			t.owed[e.ID]++
		}
		if e.Done.Owed.Told() {
			t.regions[e.ID] = true
			t.owed[e.ID]++
			if e.Done.Owed.Later || e.Done.Owed.Hands() {
				t.later[e.ID] = true
			}
		}
	case e.Checkpoint != nil:
		called = e.Checkpoint.Owed.Called
	default:
		return
	}
	t.oweForgets(e.ID, called)
}

// oweForgets notes that callees are to forget what an execution has called.
func (t *Table) oweForgets(owner rpcpacket.ID, called []record.Call) {
	for _, k := range slices.Backward(called) { // of a call that was refused, the node that took it is the last one
		if k.Direct() {
			t.add(owner, Item{ID: k.ID}, k.Node, k.Lends)
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
	if o.Told() && !t.regions[e.ID] {
		t.regions[e.ID] = true
		t.owed[e.ID]++
	}
}

// Untold lists the regions which go because of a durable main's checkpoints so far, and of which the Gatekeeper is not
// known to have heard. They belong to what its next checkpoint owes.
func (t *Table) Untold(main rpcpacket.ID) [][16]byte {
	if !t.regions[main] {
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
			calls = append(calls, record.Call{ID: i.ID, Node: i.node, Lends: i.lends})
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

func (t *Table) add(owner rpcpacket.ID, i Item, node [16]byte, lends bool) {
	if t.items[i.ID] != nil {
		return
	}
	t.items[i.ID] = &item{Item: i, node: node, owner: owner, lends: lends}
	if !owner.IsZero() {
		t.owed[owner]++
	}
}

// Settled adds a call of a session, to be forgotten by the node that has answered it.
func (t *Table) Settled(node [16]byte, i Item) { t.add(rpcpacket.ID{}, i, node, false) }

// SentBy notes in which lanes this incarnation has sent the calls of an execution that is done.
func (t *Table) SentBy(id rpcpacket.ID, sent []Item) {
	e := t.state.Execution(id)
	for _, i := range sent {
		if t.items[i.ID] == nil && e != nil && e.Done != nil && slices.ContainsFunc(e.Done.Owed.Called, func(k record.Call) bool { return k.GivenUp && k.ID == i.ID }) {
			t.sent[id] = append(t.sent[id], i)
		} else {
			t.Sent(i)
		}
	}
}

// Sent notes in which lane this incarnation has sent a call that is to be forgotten; of a durable
// main's there may be several.
func (t *Table) Sent(i Item) {
	o := t.items[i.ID]
	switch {
	case o == nil:
	case o.Lane == 0:
		o.Item = i
	case o.Item != i:
		o.more = append(o.more, i)
	}
}

// Forgets lists what is to be forgotten, by node.
func (t *Table) Forgets() map[[16]byte][]Item {
	all := map[[16]byte][]Item{}
	for _, i := range t.items {
		all[i.node] = append(append(all[i.node], i.Item), i.more...)
	}
	for _, items := range all {
		slices.SortStableFunc(items, func(a, b Item) int { return a.ID.Compare(b.ID) })
	}
	return all
}

// Acknowledged takes the word of a node that it has forgotten calls. It returns the records
// of executions that owe nothing any more.
func (t *Table) Acknowledged(node [16]byte, forgotten []rpcpacket.ID) (all []record.Record) {
	for _, id := range forgotten {
		i := t.items[id]
		if i == nil || i.node != node {
			continue
		}
		if i.lends {
			i.Item, i.more, i.node, i.lends = Item{ID: id}, nil, controller, false
			continue
		}
		delete(t.items, id)
		if i.owner.IsZero() {
			continue
		}
		all = append(all, t.pay(i.owner)...)
	}
	return all
}

// Committed notes that all memory machines have committed what an execution has changed. It
// returns the record that the execution owes nothing any more, if that is so.
func (t *Table) Committed(id rpcpacket.ID) []record.Record {
	if !t.commits[id] {
		return nil
	}
	delete(t.commits, id)
	return t.pay(id)
}

// Tells returns executions of whose regions the Gatekeeper is to be told now: if their answers have
// pointers nobody asks for these any more, and their one-ways have handed over what they were to. Each is returned once.
func (t *Table) Tells() (all []*record.Done) {
	for id := range t.later {
		if e := t.state.Execution(id); e != nil && (e.Forgotten || !e.Done.Owed.Later) && !e.Done.Owed.Hands() && !t.commits[id] {
			delete(t.later, id)
			all = append(all, e.Done)
		}
	}
	slices.SortFunc(all, func(a, b *record.Done) int { return a.Execution.Compare(b.Execution) })
	return all
}

// Told notes that the Gatekeeper knows what becomes of an execution's regions, and which calls it has given up: their
// callees may forget them. Told returns the record that the execution owes nothing any more, if that is so.
func (t *Table) Told(id rpcpacket.ID) []record.Record {
	if !t.regions[id] {
		return nil
	}
	delete(t.regions, id)
	if e := t.state.Execution(id); e != nil && e.Done != nil {
		t.oweForgets(id, e.Done.Owed.GivenUp())
		for _, i := range t.sent[id] {
			t.Sent(i)
		}
		delete(t.sent, id)
	}
	return t.pay(id)
}

// GaveUp lists the calls that an execution which is done has given up. One that this incarnation has sent in several lanes
// is there several times.
func (t *Table) GaveUp(id rpcpacket.ID) (all []Item) {
	e := t.state.Execution(id)
	if e == nil || e.Done == nil {
		return nil
	}
	all = slices.Clone(t.sent[id])
	for _, k := range e.Done.Owed.GivenUp() {
		if !slices.ContainsFunc(all, func(i Item) bool { return i.ID == k.ID }) {
			all = append(all, Item{ID: k.ID})
		}
	}
	return all
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

// Forget takes a caller's word that it asks no more for calls. A lane that is not known takes room of the
// ledger, whether there is a call in it or not; room is as in Admits.
func (t *Table) Forget(caller [16]byte, incarnation uint32, items []Item, room int) (w Word) {
	t.heard[caller] = max(t.heard[caller], incarnation)
	r, at := new(record.Forgotten), map[uint64]int{}
	for _, i := range items {
		e, runs := t.state.Execution(i.ID), t.running[i.ID]
		if !t.asks(caller, e, runs) || i.Lane != 0 && !rpcpacket.Owns(netip.AddrFrom16(caller), i.Lane) {
			w.Foreign++
			w.Forgotten = append(w.Forgotten, i.ID) // so that its sender does not repeat it
			continue
		}
		var came uint64 // the lane in which the call has come, whose floor is raised with it
		switch {
		case e != nil:
			_, _, came, _ = e.Caller()
		case runs != nil:
			came = runs.lane
		}
		if i.Lane != 0 && i.Lane != came && i.Number >= t.state.Floor(i.Lane) {
			k, listed := at[i.Lane]
			switch {
			case listed:
				r.Lanes[k].Floor = max(r.Lanes[k].Floor, i.Number+1)
			case !t.laneKnown(i.Lane) && !t.Charge(caller, laneCharge, room):
				w.Full++
				continue
			default:
				at[i.Lane] = len(r.Lanes)
				r.Lanes = append(r.Lanes, record.Lane{Lane: i.Lane, Caller: caller, Incarnation: incarnation, Floor: i.Number + 1})
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
	if len(r.Executions)+len(r.Lanes)+len(r.Callers) > 0 {
		w.Record = r
	}
	return w
}

// Passed returns the record that nobody asks any more for the calls of a session before one that has come, nil if the node keeps
// none. The call itself may be dropped: the caller would not have made it if it waited for another one.
func (t *Table) Passed(caller [16]byte, h *rpcpacket.Header) record.Record {
	lane, number := LaneOf(h)
	dead, _ := t.state.Dead(caller)
	if h.Flags&rpcpacket.FlagSession == 0 || !rpcpacket.Owns(netip.AddrFrom16(caller), lane) || h.CallerIncarnation <= dead ||
		h.CallerIncarnation < t.heard[caller] || len(t.state.Before(lane, number)) == 0 {
		return nil
	}
	return &record.Forgotten{Lanes: []record.Lane{{Lane: lane, Caller: caller, Incarnation: h.CallerIncarnation, Floor: number}}}
}

// asks reports whether a node is the one that a call is of, as far as the call is known. Nobody calls a
// durable main.
func (t *Table) asks(caller [16]byte, e *record.Execution, runs *running) bool {
	if e != nil {
		by, _, _, _ := e.Caller()
		return !e.Main() && by == caller
	}
	return runs == nil || runs.caller == caller
}

// Holders is Callers, and those of whom the node keeps lanes.
func (t *Table) Holders() map[[16]byte]uint32 {
	all := t.Callers()
	t.state.Lanes(func(l *record.Lane) { all[l.Caller] = max(all[l.Caller], l.Incarnation) })
	return all
}

// Callers lists the callers whose calls the node still keeps, each with its latest
// incarnation that has sent one.
func (t *Table) Callers() map[[16]byte]uint32 {
	all := map[[16]byte]uint32{}
	for _, e := range t.state.Executions() {
		if caller, incarnation, lane, _ := e.Caller(); lane != 0 && !e.Forgotten {
			all[caller] = max(all[caller], incarnation)
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

// Idle reports whether nobody will ask for anything of the node, and it owes nobody a word. Words about a session's calls
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
		if !e.Main() && (!e.Forgotten || !e.Over) {
			return false
		}
	}
	return true
}

// Keeps reports whether the node keeps something of calls.
func (t *Table) Keeps() bool { return t.state.Keeps() }
