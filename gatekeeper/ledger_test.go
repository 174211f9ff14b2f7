package gatekeeper

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/share"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
)

// withLedgers has a Gatekeeper whose nodes have ledgers, a compute blade, and a memory
// blade that has not said hello.
func withLedgers(t *testing.T, f func(r *rack, c1, m1 *testBlade)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		r := newRack(t)
		r.settle, r.disk = synctest.Wait, new(wal.Disk)
		r.start(Config{})
		c1, m1 := r.plug(1), r.plug(4)
		c1.hello("c1", control.Compute)
		m1.birth = 7
		f(r, c1, m1)
	})
}

// joined makes a node, and returns where its ledger is.
func (b *testBlade) joined(blade string) (j control.Joined) {
	b.r.t.Helper()
	b.tokens++
	if err := b.ask(control.KindJoin, control.Join{Blade: blade, Name: "program", Token: b.tokens}, &j); err != nil {
		b.r.t.Fatal(err)
	}
	return j
}

// TestLedger_Granted: a node that joins is told where its ledger is, and the memory blade
// whose it is. A memory blade that comes back is told again; a node's place stays.
func TestLedger_Granted(t *testing.T) {
	withLedgers(t, func(r *rack, c1, m1 *testBlade) {
		if j := c1.joined("c1"); j.Ledger != nil {
			t.Errorf("without a memory blade its ledger is at %+v", j.Ledger)
		}
		machine := m1.hello("m1", control.Memory).Machine
		j := c1.joined("c1")
		if j.Ledger == nil || *j.Ledger != (control.LedgerPlace{Machine: machine, Birth: 7, ByHand: true, Since: j.Incarnation}) {
			t.Fatalf("the ledger is at %+v", j.Ledger)
		}
		m1.converse()
		want := control.LedgerGrant{Birth: 7, Name: control.LedgerOf(j.Address), Node: j.Address, Incarnation: j.Incarnation, Owner: share.Owner{Port: 1}}
		if !slices.Equal(m1.granted, []control.LedgerGrant{want}) {
			t.Errorf("granted %+v", m1.granted)
		}
		m1.kept = []control.Ledger{{Name: want.Name, Run: 1, First: 1, Next: 1}}
		m1.granted = nil
		m1.boot++ // it has its ledgers on disk
		m1.hello("m1", control.Memory)
		m1.converse()
		if !slices.Equal(m1.granted, []control.LedgerGrant{want}) || len(m1.deleted) > 0 || len(m1.fences()) > 0 {
			t.Errorf("back with its ledgers: granted %+v, deleted %+v, fenced %+v", m1.granted, m1.deleted, m1.fences())
		}
		m1.granted, m1.kept = nil, nil
		m1.boot, m1.birth = m1.boot+1, 8 // and now without
		m1.hello("m1", control.Memory)
		m1.converse()
		if len(m1.granted) > 0 {
			t.Errorf("a memory that has lost the ledger is granted %+v", m1.granted)
		}
	})
}

// TestLedger_NotAtDrainingBlade: nodes that join while a memory blade drains have their ledgers elsewhere.
func TestLedger_NotAtDrainingBlade(t *testing.T) {
	withLedgers(t, func(r *rack, c1, m1 *testBlade) {
		m2 := r.plug(5)
		draining, stays := m1.hello("m1", control.Memory).Machine, m2.hello("m2", control.Memory).Machine
		at := func() map[uint8]bool { // of two nodes with addresses in a row
			machines := map[uint8]bool{}
			for range 2 {
				j := c1.joined("c1")
				if j.Ledger == nil {
					t.Fatal("a node has no ledger")
				}
				machines[j.Ledger.Machine] = true
			}
			return machines
		}
		if got := at(); !got[draining] || !got[stays] {
			t.Errorf("before, ledgers are at machines %v", got)
		}
		if err := r.gk.Drain(context.Background(), "m1", "test"); err != nil {
			t.Fatal(err)
		}
		if got := at(); got[draining] {
			t.Errorf("while m1 drains, ledgers are at machines %v", got)
		}
		if err := r.gk.Drain(context.Background(), "m2", "test"); err != nil {
			t.Fatal(err)
		}
		if got := at(); !got[draining] || !got[stays] {
			t.Errorf("while both drain, ledgers are at machines %v", got)
		}
	})
}

// TestLedger_Unwanted: a program that keeps no ledger gets none. Nor is it the
// next incarnation of a node that has a ledger: the calls in there wait for a program that goes on with them.
func TestLedger_Unwanted(t *testing.T) {
	withLedgers(t, func(r *rack, c1, m1 *testBlade) {
		m1.hello("m1", control.Memory)
		without := func(name string) (j control.Joined, err error) {
			c1.tokens++
			err = c1.ask(control.KindJoin, control.Join{Blade: "c1", Name: name, Token: c1.tokens, NoLedger: true}, &j)
			return j, err
		}
		j, err := without("other")
		if err != nil || j.Ledger != nil || len(m1.granted) > 0 {
			t.Errorf("its ledger is at %+v, granted %+v: %v", j.Ledger, m1.granted, err)
		}
		has := c1.joined("c1")
		e := control.Export{Node: has.Address, Incarnation: has.Incarnation, Service: "Counter", Stateful: true, Methods: []control.Method{{Name: "add"}}}
		if err := c1.ask(control.KindExport, e, nil); err != nil {
			t.Fatal(err)
		}
		if err := c1.ask(control.KindLeave, control.Leave{Node: has.Address, Incarnation: has.Incarnation, Crashed: true}, nil); err != nil {
			t.Fatal(err)
		}
		m1.converse()
		if j, err := without("program"); fault.CodeOf(err) != fault.Unsupported {
			t.Errorf("it has joined as %+v: %v", j, err)
		}
		m1.converse()
		if again := c1.joined("c1"); again.Address != has.Address || again.Incarnation <= has.Incarnation || again.Ledger == nil || *again.Ledger != *has.Ledger {
			t.Errorf("the one that goes on is %+v, it was %+v", again, has)
		}
	})
}

// TestLedger_Deleted: the ledger of a node that is gone goes, and so do those that no node
// has, which a memory blade tells of. One of a node that has gone while the blade was away is sealed first.
func TestLedger_Deleted(t *testing.T) {
	withLedgers(t, func(r *rack, c1, m1 *testBlade) {
		unknown := control.LedgerOf(rackaddr.Node(99))
		open := control.LedgerOf(rackaddr.Node(98))
		m1.kept = []control.Ledger{{Name: unknown, Run: 3, Sealed: true, First: 1, Next: 5}, {Name: open, Run: 2, First: 1, Next: 5}}
		m1.hello("m1", control.Memory)
		m1.converse()
		if !slices.Equal(m1.deleted, []control.LedgerDelete{{Birth: 7, Name: unknown}, {Birth: 7, Name: open}}) {
			t.Errorf("deleted %+v", m1.deleted)
		}
		if got := m1.fences(); !slices.Equal(got, []control.Fence{{Node: rackaddr.Node(98), Incarnation: 2}}) {
			t.Errorf("fenced %+v", got)
		}
		j := c1.joined("c1")
		m1.converse()
		m1.deleted, m1.fenced = nil, nil
		n := &testNode{testBlade: c1, address: j.Address, incarnation: 1}
		n.leave()
		pass(time.Second)
		m1.converse()
		if got := m1.fences(); len(got) != 2 || got[0].Node != j.Address || got[1].Node != j.Address {
			t.Errorf("fenced %+v", got)
		}
		if !slices.Equal(m1.deleted, []control.LedgerDelete{{Birth: 7, Name: control.LedgerOf(j.Address)}}) {
			t.Errorf("deleted %+v", m1.deleted)
		}
	})
}

// TestLedger_Refused: a memory blade that has no room for a ledger is counted, and holds up
// nobody.
func TestLedger_Refused(t *testing.T) {
	withLedgers(t, func(r *rack, c1, m1 *testBlade) {
		m1.hello("m1", control.Memory)
		m1.code = fault.NoSpace
		before := r.snapshot().Counters.Failures
		c1.joined("c1")
		m1.converse()
		if len(m1.granted) != 1 || r.snapshot().Counters.Failures != before+1 {
			t.Errorf("granted %+v, %d failures", m1.granted, r.snapshot().Counters.Failures-before)
		}
	})
}
