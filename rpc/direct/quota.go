package direct

import (
	"net/netip"

	"github.com/bifrost-rack/bifrost/internal/share"
	"github.com/bifrost-rack/bifrost/rpc/record"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// What a node must keep of direct calls is charged to their callers' owners, in bytes of its ledger: what is promised to calls, what they have on
// record, and their call slots. Owners share that room (package share). So nobody who fills it takes all, and to have many nodes gains nothing.
//
// A charge is an upper bound: it is counted anew, from what is there, when it matters.

// slotCharge is what a call slot takes.
const slotCharge = 64

// quota is what is charged to callers.
type quota struct {
	held *share.Nodes
	// since is how often was charged after all was counted, counted how many entries that was made of.
	since, counted int
}

// Admits reports whether there is room for a call that has arrived and needs so many bytes of the ledger, and charges its
// caller. A call that is known needs none. room is how many bytes are left for new calls.
func (t *Table) Admits(caller [16]byte, h *rpcpacket.Header, need, room int) bool {
	if t.running[h.Call] != nil || t.state.Execution(h.Call) != nil {
		return true
	}
	if misnamed(caller, h) != 0 {
		return true // and is refused for that
	}
	if !t.slotKnown(record.Place{Caller: caller, Slot: h.Slot}) {
		need += slotCharge
	}
	return t.Charge(caller, need, room)
}

// Charge charges a caller with bytes of the ledger, unless its owner has its share of them; room is as in Admits.
func (t *Table) Charge(caller [16]byte, bytes, room int) bool {
	q, node := &t.quota, netip.AddrFrom16(caller)
	need, free := uint64(max(bytes, 0)), uint64(max(room, 0)) //nolint:gosec // not negative
	q.since++
	q.held.SetFree(free)
	if q.since > q.counted/8 && (q.held.Crowded() || need > q.held.Room(node)) {
		t.count()
		q.held.SetFree(free)
	}
	return q.held.Take(node, need)
}

// Crowded reports whether it matters whose callers are.
func (t *Table) Crowded() bool { return t.quota.held.Crowded() }

// Learn has what is kept for a caller charged to its owner, of whom there is news.
func (t *Table) Learn(caller netip.Addr) { t.quota.held.Learn(caller) }

// Promises notes that a call which is run may write so many bytes more, or less, into the ledger.
func (t *Table) Promises(id rpcpacket.ID, bytes int) {
	if r := t.running[id]; r != nil {
		r.promised += bytes
	}
}

// slotKnown reports whether a call slot has its place in the ledger, or will have it with what runs.
func (t *Table) slotKnown(at record.Place) bool {
	_, accepted := t.floors[at]
	return accepted || t.state.Floor(at) > 0
}

// count counts anew what is charged to callers.
func (t *Table) count() {
	q := &t.quota
	q.held.Reset()
	q.since, q.counted = 0, 0
	add := func(caller [16]byte, bytes int) {
		q.held.Force(netip.AddrFrom16(caller), uint64(max(bytes, 0))) //nolint:gosec // not negative
		q.counted++
	}
	t.state.Slots(func(l *record.Slot) { add(l.Caller, slotCharge) })
	for at := range t.floors {
		if t.state.Floor(at) == 0 {
			add(at.Caller, slotCharge)
		}
	}
	for _, r := range t.running {
		add(r.at.Caller, r.promised)
	}
	t.state.Each(func(e *record.Execution) {
		if !e.Main() { // those are the node's own
			at, _, _ := e.Caller()
			add(at.Caller, e.Weight())
		}
	})
}
