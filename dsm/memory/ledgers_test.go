package memory

import (
	"testing"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
)

// testBirth is the birth number of a bench's server.
const testBirth = 1

// ask sends a ledger request of incarnation 1 of node 1, and returns its answer.
func (b *bench) ask(q dsmpacket.LedgerRequest) dsmpacket.LedgerAnswer {
	b.t.Helper()
	q.Ledger = rackaddr.Node(1).As16()
	if q.Incarnation == 0 {
		q.Incarnation = 1
	}
	b.raw(dsmpacket.LedgerAddress(prefix, machine, q.Op), q.Append(nil))
	return b.ledgerAnswer()
}

func (b *bench) ledgerAnswer() dsmpacket.LedgerAnswer {
	b.t.Helper()
	from, h, data := b.receive()
	a, err := dsmpacket.ParseLedgerAnswer(from, &h, data)
	must(b.t, err)
	return a
}

func chunk(number uint64, text string) dsmpacket.Chunk {
	return dsmpacket.Chunk{Number: number, Data: []byte(text)}
}

// TestLedgers: a node opens the ledger that it was granted, appends and reads; a fence
// seals it and tells how it stands; the next incarnation goes on.
func TestLedgers(t *testing.T) {
	b := newBench(t, 1<<20)
	if a := b.ask(dsmpacket.LedgerRequest{Op: dsmpacket.LedgerOpen, Run: 1}); a.Status != fault.NotFound || a.Birth != testBirth {
		t.Errorf("open of a ledger that nobody granted: %+v", a)
	}
	grant := control.LedgerGrant{Birth: testBirth, Name: control.LedgerOf(rackaddr.Node(1)), Node: rackaddr.Node(1), Incarnation: 1}
	for range 2 {
		if a, err := b.server.GrantLedger(grant); err != nil || a.Code != fault.OK || a.Birth != testBirth || a.Ledger.Next != 1 {
			t.Errorf("grant: %+v, %v", a, err)
		}
	}
	if a := b.ask(dsmpacket.LedgerRequest{Op: dsmpacket.LedgerOpen, Run: 1, Birth: testBirth}); a.Status != fault.OK || a.Run != 1 || a.Chunk.Number != 1 || a.Next != 1 {
		t.Errorf("open: %+v", a)
	}
	for i, text := range []string{"one", "two", "three"} {
		n := uint64(i) + 1
		if a := b.ask(dsmpacket.LedgerRequest{Op: dsmpacket.LedgerAppend, Run: 1, Birth: testBirth, Chunk: chunk(n, text)}); a.Status != fault.OK || a.Chunk.Number != n || a.Next != n+1 {
			t.Errorf("append: %+v", a)
		}
	}
	first := b.ask(dsmpacket.LedgerRequest{Op: dsmpacket.LedgerRead, Chunk: dsmpacket.Chunk{Number: 2}, Size: 1000, More: 15})
	if second := b.ledgerAnswer(); string(first.Chunk.Data) != "two" || string(second.Chunk.Data) != "three" || second.Chunk.Number != 3 || second.Next != 4 {
		t.Errorf("read %+v and %+v", first, second)
	}
	list, err := b.server.ListLedgers(control.Ledgers{})
	if err != nil || list.Birth != testBirth || len(list.Ledgers) != 1 || list.Ledgers[0].Next != 4 || list.Next != (control.LedgerName{}) {
		t.Errorf("ledgers %+v, %v", list, err)
	}
	if list, err = b.server.ListLedgers(control.Ledgers{From: control.LedgerName{0xff}}); err != nil || len(list.Ledgers) > 0 {
		t.Errorf("ledgers beyond the last: %+v, %v", list, err)
	}
	fenced, err := b.server.Fence(control.Fence{Node: rackaddr.Node(1), Incarnation: 1})
	if err != nil || len(fenced.Unsettled.Ledgers) != 1 || !fenced.Unsettled.Ledgers[0].Sealed || fenced.Unsettled.Ledgers[0].Next != 4 {
		t.Errorf("fence: %+v, %v", fenced, err)
	}
	if a := b.ask(dsmpacket.LedgerRequest{Op: dsmpacket.LedgerAppend, Run: 1, Chunk: chunk(4, "late")}); a.Status != fault.Stale || !a.Sealed {
		t.Errorf("append after the fence: %+v", a)
	}
	if a := b.ask(dsmpacket.LedgerRequest{Op: dsmpacket.LedgerOpen, Run: 2, Incarnation: 2}); a.Status != fault.OK || a.Next != 4 {
		t.Errorf("open by the next incarnation: %+v", a)
	}
	if a := b.ask(dsmpacket.LedgerRequest{Op: dsmpacket.LedgerAppend, Run: 2, Incarnation: 2, Keep: 3, Chunk: chunk(4, "four")}); a.Status != fault.OK || a.Next != 5 {
		t.Errorf("append by the next incarnation: %+v", a)
	}
	if a := b.ask(dsmpacket.LedgerRequest{Op: dsmpacket.LedgerRead, Chunk: dsmpacket.Chunk{Number: 2}, Size: 1000}); a.Status != fault.NotFound {
		t.Errorf("read of a chunk that is not kept: %+v", a)
	}
}

// TestBadLedgerRequests: each is refused with a status of its own, and counted.
func TestBadLedgerRequests(t *testing.T) {
	b := newBench(t, 1<<20)
	grant := control.LedgerGrant{Birth: testBirth, Name: control.LedgerOf(rackaddr.Node(1)), Node: rackaddr.Node(1), Incarnation: 1}
	if _, err := b.server.GrantLedger(grant); err != nil {
		t.Fatal(err)
	}
	b.ask(dsmpacket.LedgerRequest{Op: dsmpacket.LedgerOpen, Run: 1})
	grant.Birth++
	if a, err := b.server.GrantLedger(grant); err != nil || a.Code != fault.NotFound || a.Message == "" {
		t.Errorf("grant at another birth number: %+v, %v", a, err)
	}
	refused := []struct {
		q    dsmpacket.LedgerRequest
		want fault.Code
	}{
		{dsmpacket.LedgerRequest{Op: dsmpacket.LedgerAppend, Run: 1, Birth: testBirth + 1, Chunk: chunk(1, "x")}, fault.NotFound},
		{dsmpacket.LedgerRequest{Op: dsmpacket.LedgerAppend, Run: 2, Chunk: chunk(1, "x")}, fault.Stale},
		{dsmpacket.LedgerRequest{Op: dsmpacket.LedgerAppend, Run: 1, Chunk: chunk(0, "x")}, fault.BadRequest},
		{dsmpacket.LedgerRequest{Op: dsmpacket.LedgerOpen, Run: 2, Incarnation: 2}, fault.Unavailable},
		{dsmpacket.LedgerRequest{Op: dsmpacket.LedgerAppend, Run: 1, Chunk: chunk(1, string(make([]byte, 9000)))}, fault.NoSpace},
	}
	for _, r := range refused {
		if a := b.ask(r.q); a.Status != r.want || a.Next > 1 {
			t.Errorf("%s %d: %+v, want %s", r.q.Op, r.q.Chunk.Number, a, r.want)
		}
	}
	// What is cut short, or no ledger operation, gets no answer at all.
	short := dsmpacket.LedgerRequest{Op: dsmpacket.LedgerAppend, Run: 1, Chunk: chunk(1, "cut short"), Ledger: rackaddr.Node(1).As16(), Incarnation: 1}
	wire := short.Append(nil)
	b.raw(dsmpacket.LedgerAddress(prefix, machine, dsmpacket.LedgerAppend), wire[:len(wire)-1])
	b.raw(dsmpacket.LedgerAddress(prefix, machine, 9), wire)
	if a := b.ask(dsmpacket.LedgerRequest{Op: dsmpacket.LedgerRead, Chunk: dsmpacket.Chunk{Number: 1}}); a.Status != fault.OK || a.Next != 1 || len(a.Chunk.Data) > 0 {
		t.Errorf("read of an empty ledger: %+v", a)
	}
	m := b.server.Metrics()
	for reason, want := range map[string]uint64{
		refusedMalformed: 2, refusedBirth: 2, fault.Stale.String(): 1, fault.BadRequest.String(): 1, fault.Unavailable.String(): 1, fault.NoSpace.String(): 1,
	} {
		if got := m.RefusedLedgers[reason]; got != want {
			t.Errorf("%d refused as %s, want %d", got, reason, want)
		}
	}
	for reason, want := range map[string]uint64{
		refusedMalformed: 2, fault.NotFound.String(): 1, fault.Stale.String(): 1, fault.BadRequest.String(): 1, fault.Unavailable.String(): 1, fault.NoSpace.String(): 1,
	} {
		if got := b.blamed(rackaddr.Node(1), reason); got != want {
			t.Errorf("%d refused to the node as %s, want %d", got, reason, want)
		}
	}
	if m.Ledgers.Count != 1 || m.Ledgers.Refused != 8 || m.Ledgers.Space != 4096 || m.Dropped["malformed"] != 2 {
		t.Errorf("metrics %+v", m)
	}
}

// TestForgottenLedgers: a memory that begins anew, or becomes another copy, has no ledgers
// and another birth number.
func TestForgottenLedgers(t *testing.T) {
	b := newBench(t, 1<<20)
	grant := func(birth uint64) {
		a, err := b.server.GrantLedger(control.LedgerGrant{Birth: birth, Name: control.LedgerName{1}, Node: rackaddr.Node(1), Incarnation: 1})
		if err != nil || a.Code != fault.OK {
			t.Fatalf("grant: %+v, %v", a, err)
		}
	}
	grant(testBirth)
	must(t, b.server.Forget(1))
	if n, birth := b.server.Ledgers().Count, b.server.Birth(); n != 0 || birth == testBirth {
		t.Errorf("%d ledgers, birth number %d", n, birth)
	}
	grant(b.server.Birth())
	must(t, b.server.Become(control.Mirror{Epoch: 1, Incarnation: 3, Copy: 1, Members: 2, Birth: 77}))
	if n, birth := b.server.Ledgers().Count, b.server.Birth(); n != 0 || birth != 77 {
		t.Errorf("the second copy has %d ledgers, birth number %d", n, birth)
	}
	grant(77)
	must(t, b.server.Become(control.Mirror{Epoch: 2, Incarnation: 3, Copy: 0, Members: 1, Birth: 77}))
	if n := b.server.Ledgers().Count; n != 1 {
		t.Errorf("the survivor has %d ledgers", n)
	}
}
