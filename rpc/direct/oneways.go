package direct

import (
	"cmp"
	"slices"

	"github.com/bifrost-rack/bifrost/rpc/record"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// The one-ways of an execution are in its done, and leave when that is settled and what the
// execution changed in memory is committed. Those to one node leave one after the other, in the
// order of the commits; the next one leaves when the one before is acknowledged. When all of an
// execution are, the ledger says so, and only then are their receivers told to forget them: an
// incarnation that did not know of the acknowledgements would send them again.
//
//	done settled, committed ─Leave▶ ONEWAY ─▶ acknowledged ─▶ delivered settled ─▶ forget ─▶ over
//	                                  ▲             └─ refused for good ─▶ moved settled ─┐
//	                                  └──────────────── another node ◀────────────────────┘

// owedOneway is a one-way until it is acknowledged.
type owedOneway struct {
	record.Oneway
	owner rpcpacket.ID
	place uint64
	out   bool
}

// oneways are those that the node owes.
type oneways struct {
	queues map[[16]byte][]*owedOneway // by the nodes that they are for, in the order in which they leave
	left   map[rpcpacket.ID]int       // of executions: how many are not acknowledged
	leave  map[rpcpacket.ID]bool      // executions whose one-ways may leave
	last   uint64                     // Place
	// acknowledged are those of executions that have others which are not.
	acknowledged map[rpcpacket.ID][]item
}

// Place is the next one for one-ways that a done owes.
func (t *Table) Place() uint64 { return t.oneways.last + 1 }

// oweOneways notes the one-ways of an execution that is done.
func (t *Table) oweOneways(e *record.Execution) {
	o := e.Done.Owed
	if len(o.Oneways) == 0 {
		return
	}
	t.oneways.last = max(t.oneways.last, o.Place)
	t.oneways.left[e.ID] = len(o.Oneways)
	t.owed[e.ID]++
	for _, w := range o.Oneways {
		t.queue(&owedOneway{Oneway: w, owner: e.ID, place: o.Place})
	}
}

// queue puts a one-way behind those that leave before it.
func (t *Table) queue(w *owedOneway) {
	q := t.oneways.queues[w.Node]
	at := len(q)
	for at > 0 && q[at-1].place > w.place && !q[at-1].out {
		at--
	}
	t.oneways.queues[w.Node] = slices.Insert(q, at, w)
}

// Leave notes that the one-ways of an execution may leave. Next has those that do.
func (t *Table) Leave(id rpcpacket.ID) {
	if t.oneways.left[id] > 0 {
		t.oneways.leave[id] = true
	}
}

// Next returns the one-ways that leave now. Whoever sends them tells of each what has become of it
// (Delivered, Moves).
func (t *Table) Next() (all []record.Oneway) {
	for _, q := range t.oneways.queues {
		if w := q[0]; !w.out && t.oneways.leave[w.owner] {
			w.out = true
			all = append(all, w.Oneway)
		}
	}
	slices.SortFunc(all, func(a, b record.Oneway) int { return a.ID.Compare(b.ID) })
	return all
}

// take takes a one-way that is out off its queue; nil if there is none.
func (t *Table) take(node [16]byte, id rpcpacket.ID) *owedOneway {
	q := t.oneways.queues[node]
	if len(q) == 0 || q[0].ID != id || !q[0].out {
		return nil
	}
	if t.oneways.queues[node] = q[1:]; len(q) == 1 {
		delete(t.oneways.queues, node)
	}
	return q[0]
}

// Delivered notes that a node has acknowledged a one-way, or never will, since it is gone. It
// returns the record that says that all of its execution are acknowledged, if that is so.
func (t *Table) Delivered(node [16]byte, i Item) []record.Record {
	w := t.take(node, i.ID)
	if w == nil {
		return nil
	}
	o := &t.oneways
	o.acknowledged[w.owner] = append(o.acknowledged[w.owner], item{Item: i, node: node})
	if o.left[w.owner]--; o.left[w.owner] > 0 {
		return nil
	}
	delete(o.left, w.owner)
	delete(o.leave, w.owner)
	return []record.Record{&record.Delivered{Execution: w.owner}}
}

// Moves notes that a one-way which its node has refused for good goes to another one, and returns
// the record of that.
func (t *Table) Moves(node [16]byte, id rpcpacket.ID, to [16]byte) []record.Record {
	w := t.take(node, id)
	if w == nil {
		return nil
	}
	w.Node, w.out = to, false
	t.queue(w)
	return []record.Record{&record.Moved{Execution: w.owner, Oneway: id, Node: to}}
}

// Again lets a one-way leave once more, to the same node. It reports whether it is owed.
func (t *Table) Again(node [16]byte, id rpcpacket.ID) bool {
	q := t.oneways.queues[node]
	if len(q) == 0 || q[0].ID != id {
		return false
	}
	q[0].out = false
	return true
}

// forgetOneways notes that the one-ways of an execution are to be forgotten: all are acknowledged.
func (t *Table) forgetOneways(id rpcpacket.ID) {
	for _, i := range t.oneways.acknowledged[id] {
		t.add(id, i.Item, i.node, false)
	}
	delete(t.oneways.acknowledged, id)
	t.owed[id]-- // there is an item at least
}

// byPlace sorts executions so that those which owe one-ways come in the order of their commits.
func byPlace(all []*record.Execution) {
	place := func(e *record.Execution) uint64 {
		if e.Done == nil {
			return 0
		}
		return e.Done.Owed.Place
	}
	slices.SortStableFunc(all, func(a, b *record.Execution) int { return cmp.Compare(place(a), place(b)) })
}
