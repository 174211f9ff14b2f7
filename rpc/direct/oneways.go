package direct

import (
	"slices"

	"github.com/bifrost-rack/bifrost/rpc/record"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// The one-ways of an execution are in its done, those of a durable main in its next checkpoint. They leave when
// that is settled and what the execution changed in memory is committed. Those to one node leave one
// after the other, in the order of the commits; the next one leaves when the one before is acknowledged.
// The ledger says so of each, and only then is its receiver told to forget it: an incarnation that did not
// know of the acknowledgement would send it again.
//
//	done settled, committed ─Leave▶ ONEWAY ─▶ acknowledged ─▶ delivered settled ─▶ forget ─▶ over
//	                                  ▲             └─ refused for good ─▶ moved settled ─┐
//	                                  └──────────────── another node ◀────────────────────┘
//
// The switch refuses a one-way which is sent again under a new number, since its receiver owns the regions. So the next
// incarnation first asks about the slots that have taken one-ways: their answers say which one-ways these were. A slot is not
// used again before delivered is settled (endpoint.Call.Holds).

// owedOneway is a one-way until it is acknowledged.
type owedOneway struct {
	record.Oneway
	owner  rpcpacket.ID
	leaves bool // it may
	out    bool
}

// oneways are those that the node owes.
type oneways struct {
	queues  map[[16]byte][]*owedOneway     // by the nodes that they are for, in the order in which they leave
	waiting map[rpcpacket.ID][]*owedOneway // of executions, those that may not leave yet
	last    uint64                         // Place
}

// Place is the next one for one-ways that a commit owes.
func (t *Table) Place() uint64 { return t.oneways.last + 1 }

// oweOneways notes one-ways that an execution owes since it is done, or a durable main since its checkpoint.
func (t *Table) oweOneways(owner rpcpacket.ID, all []record.Oneway) {
	if len(all) == 0 {
		return
	}
	t.owed[owner] += len(all)
	for _, k := range all {
		t.oneways.last = max(t.oneways.last, k.Place)
		w := &owedOneway{Oneway: k, owner: owner}
		t.oneways.waiting[owner] = append(t.oneways.waiting[owner], w)
		t.queue(w)
	}
}

// queue puts a one-way behind those that leave before it.
func (t *Table) queue(w *owedOneway) {
	q := t.oneways.queues[w.Node]
	at := len(q)
	for at > 0 && q[at-1].Place > w.Place && !q[at-1].out {
		at--
	}
	t.oneways.queues[w.Node] = slices.Insert(q, at, w)
	t.handOver(w, 1)
}

// handOver counts the regions that a one-way is to hand over, or has.
func (t *Table) handOver(w *owedOneway, n int) {
	m, err := rpcpacket.Parse(w.Message)
	if err != nil {
		return
	}
	for i := range m.Lists {
		for _, g := range m.Lists[i].Of() {
			t.handRegion(g, n)
		}
	}
}

// Leave notes that the one-ways of an execution may leave. Next has those that do.
func (t *Table) Leave(id rpcpacket.ID) {
	for _, w := range t.oneways.waiting[id] {
		w.leaves = true
	}
	delete(t.oneways.waiting, id)
}

// Next returns the one-ways that leave now. Whoever sends them tells of each what has become of it
// (Delivered, Moves).
func (t *Table) Next() (all []record.Oneway) {
	for _, q := range t.oneways.queues {
		if w := q[0]; !w.out && w.leaves {
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
	t.handOver(q[0], -1)
	return q[0]
}

// Delivered notes that a node has acknowledged a one-way, or never will, since it is gone. It
// returns the record that says so: when that is settled, the node is told to forget the one-way.
func (t *Table) Delivered(node [16]byte, i Item) []record.Record {
	w := t.take(node, i.ID)
	if w == nil {
		return nil
	}
	t.add(w.owner, record.Call{ID: w.ID, Node: w.Node}, i)
	t.owed[w.owner]-- // there is the item at least
	return []record.Record{&record.Delivered{Execution: w.owner, Oneway: i.ID}}
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
