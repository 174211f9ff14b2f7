package execution

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// Up says that a node's present incarnation is ready to run a service's calls: it
// has exported it, with its state restored. What waits for it is delivered.
func (t *Table) Up(id wal.Node, service uint64) Output {
	n := t.node(id.Address)
	if id.Incarnation <= n.dead || n.gone {
		return t.take()
	}
	n.incarnation, n.up[service] = id.Incarnation, true
	t.releaseAll(n)
	return t.take()
}

// Empty says that a node's present incarnation is to end when it has finished the calls
// that it has got: those that it has not wait for its next one.
func (t *Table) Empty(id wal.Node) {
	if n := t.node(id.Address); id.Incarnation > n.dead && !n.gone {
		n.empties = true
	}
}

// Busy reports whether a node has calls to finish: those that it has got, if it
// empties, else all that are logged for it.
func (t *Table) Busy(a netip.Addr) bool {
	n := t.nodes[a]
	if n == nil {
		return false
	}
	for k := range n.calls {
		if !n.empties || k.sent {
			return true
		}
	}
	return false
}

func (t *Table) releaseAll(n *node) {
	for _, k := range sorted(n.calls) {
		t.release(k)
	}
}

// Fail says that an incarnation of a node has failed. From now on nothing that
// comes from it counts; what it executed is cut, and what it had asked that is
// not logged is discarded. Gone says that the node will have no other
// incarnation: its calls fail, and those that it has out run on, for nobody.
func (t *Table) Fail(id wal.Node, gone bool, now time.Time) Output {
	n := t.node(id.Address)
	switch {
	case id.Incarnation <= n.dead:
	case id.Incarnation < n.incarnation: // known before, and its place is taken
		n.dead = id.Incarnation
	default:
		n.dead, n.incarnation, n.fenced = id.Incarnation, 0, false
		clear(n.up)
		n.empties = false
		t.discard(n)
		t.endSessions(n.address) // its next incarnation has sessions of its own
		t.cutAll(n, now)
		t.touch(n)
	}
	if gone && !n.gone {
		n.gone = true
		t.abandon(n, now)
		t.touch(n)
	}
	return t.take()
}

// discard drops the calls of a failed node that are not logged.
func (t *Table) discard(n *node) {
	for _, k := range t.calls {
		if k.stage == admitting && k.caller == n.address {
			k.discarded = true
		}
	}
}

// cutAll cuts what a node executed. In a stateful service, only the first call
// can have been the cause.
func (t *Table) cutAll(n *node, now time.Time) {
	first := map[uint64]*call{}
	calls := sorted(n.calls)
	for _, k := range calls {
		f := first[k.service]
		if k.stage == running && n.failed(k.incarnation) && (k.serial || k.order > 0 && (f == nil || k.order < f.order)) {
			first[k.service] = k // a serial call has order 0
		}
	}
	for _, k := range calls {
		k.sent = false
		if k.cut || t.held(k) || k.stage != running || !n.failed(k.incarnation) {
			continue // what is cut already has not been delivered since, nor has what is held
		}
		t.cut(&k.execution)
		if k.order == 0 || first[k.service] == k {
			k.attempts++
		}
		if k.attempts >= t.attempts {
			t.abort(k, fault.New(fault.Unavailable, "call", "%d nodes failed while they executed it", k.attempts), now)
		}
	}
	for m := range n.mains {
		if n.failed(m.incarnation) && (!m.over || m.committing) {
			t.cut(&m.execution)
		}
	}
}

// failed reports whether what was delivered to an incarnation, if any, is lost.
func (n *node) failed(incarnation uint32) bool { return incarnation > 0 && incarnation <= n.dead }

func (t *Table) cut(e *execution) {
	if !e.cut {
		e.cut = true
		e.at.cuts++
		for child := range e.children {
			if child.sent {
				t.lonely[child] = struct{}{}
			}
		}
	}
}

// abandon fails all calls to a node that is gone, and ends its sessions.
func (t *Table) abandon(n *node, now time.Time) {
	for _, k := range sorted(n.calls) {
		if k.stage == running {
			t.abort(k, goneError(n), now)
		}
	}
	t.endSessions(n.address)
	t.forgetEnlisted(n)
}

// abort gives a call up: an exception is its outcome, and what its execution did
// is rolled back once its node is fenced. Its one-ways never leave.
func (t *Table) abort(k *call, why *fault.Error, now time.Time) {
	k.stage, k.record = aborting, nil
	t.settling(k)
	t.outcome(k, exception(&k.header, why), abortedMark, now)
	t.do(Aborted{k.id, why})
	t.dropWithheld(&k.execution)
	if k.incarnation == 0 {
		k.stage = returning // it never ran
		t.do(Return{k.id, true})
		return
	}
	t.cut(&k.execution)
	t.tryRollback(&k.execution)
}

// dropWithheld drops the one-ways of an execution that will never commit.
func (t *Table) dropWithheld(e *execution) {
	for _, child := range sorted(e.children) {
		if child.stage == running && t.held(child) {
			child.stage, child.settled = done, true
			t.do(Drop{child.id})
			t.forget(child)
		}
	}
}

// Fenced says that nothing of a node's failed incarnations can happen any more:
// the switch and all memory servers have cut it off. Rollbacks begin.
func (t *Table) Fenced(a netip.Addr) Output {
	n := t.node(a)
	n.fenced = true
	for _, k := range slices.Backward(sorted(n.calls)) { // the innermost first
		t.tryRollback(&k.execution)
	}
	for _, m := range sortedMains(n.mains) {
		t.tryRollback(&m.execution)
	}
	t.whole(n)
	return t.take()
}

// tryRollback rolls an execution back if it is cut, its node is fenced, what it
// has committed is committed, and no call reads what it wrote any more.
func (t *Table) tryRollback(e *execution) {
	if !e.cut || e.rolling || !t.safe(e) {
		return
	}
	for child := range e.children {
		if child.leases && child.stage != done || child.hands && child.stage == admitting {
			return
		}
	}
	e.rolling = true
	run := Run{Execution: e.id, At: wal.Node{Address: e.at.address, Incarnation: e.at.dead}}
	if m := t.mains[e.id]; m != nil {
		run = m.current()
	}
	t.do(Rollback{run})
}

// safe reports whether nothing can happen to what an execution did: its node is
// fenced, or it is a main that begins again by itself; and no commit is under way.
func (t *Table) safe(e *execution) bool {
	m := t.mains[e.id]
	if m == nil {
		return e.at.fenced
	}
	return !m.committing && (e.at.fenced || m.incarnation > e.at.dead)
}

// RolledBack answers Rollback: the execution can run again.
func (t *Table) RolledBack(id [16]byte) Output {
	e := t.owner(id)
	if e == nil || !e.cut || !e.rolling {
		return t.take()
	}
	e.cut, e.rolling = false, false
	at := e.at // a main may go on at another node
	at.cuts--
	t.touch(at)
	if k := t.calls[id]; k != nil && k.stage == aborting {
		k.stage = returning
		t.do(Return{k.id, true})
	} else if m := t.mains[id]; m != nil {
		t.readmit(m)
	}
	t.releaseAll(at)
	t.whole(at)
	return t.take()
}

// whole tells when nothing of a failed node is left to be rolled back, nor, if
// there will be no other, to be handed over.
func (t *Table) whole(n *node) {
	if n.cuts == 0 && n.fenced && (!n.gone || !n.ending()) {
		t.do(Whole{n.address})
	}
}

// ending reports whether the outcomes of some of its calls are logged, but their
// results have not been handed over yet.
func (n *node) ending() bool {
	for k := range n.calls {
		if k.stage == committing || k.stage == returning {
			return true
		}
	}
	return false
}

// touch notes that a node's record has to be written.
func (t *Table) touch(n *node) {
	if !n.dirty {
		n.dirty = true
		t.dirty = append(t.dirty, n)
	}
}

// A node's record has an entry for each of its executions that was ever cut off:
// id 16, attempts 2, 1 if it has to be rolled back. Attempt 1 marks a node that
// is gone.
const cutSize = 19

// keepNode writes a node's record, or strikes it out if it says nothing.
func (t *Table) keepNode(n *node) {
	n.dirty = false
	var data []byte
	for _, k := range sorted(n.calls) {
		data = k.appendCut(data)
	}
	for _, m := range sortedMains(n.mains) {
		data = m.appendCut(data)
	}
	id := wal.AddrID(n.address)
	if len(data) == 0 && len(n.calls) == 0 {
		if n.logged {
			n.logged = false
			t.strike(wal.KindCut, id)
		}
		return
	}
	n.logged = true
	r := wal.Record{Kind: wal.KindCut, ID: id, Callee: wal.Node{Address: n.address, Incarnation: n.dead}, Data: data}
	if n.gone {
		r.Attempt = 1
	}
	t.put(r)
}

func (e *execution) appendCut(b []byte) []byte {
	if e.attempts == 0 && !e.cut {
		return b
	}
	cut := byte(0)
	if e.cut {
		cut = 1
	}
	b = append(b, e.id[:]...)
	return append(b, byte(e.attempts>>8), byte(e.attempts), cut)
}

func sortedMains(set map[*main]struct{}) []*main {
	s := make([]*main, 0, len(set))
	for m := range set {
		s = append(s, m)
	}
	slices.SortFunc(s, func(a, b *main) int { return cmp.Compare(a.name, b.name) })
	return s
}
