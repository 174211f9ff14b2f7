package gatekeeper

import (
	"encoding/json"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// shares asks for a standing lease.
func (n *testNode) shares(id uint64, with *testNode, ps ...dsmpacket.Pointer) (r control.ShareReply, err error) {
	n.r.t.Helper()
	q := control.Share{Node: n.address, Incarnation: n.incarnation, ID: id, Lessee: with.address}
	for _, p := range ps {
		q.Regions = append(q.Regions, rpcpacket.RegionOf(p))
	}
	err = n.ask(control.KindShare, q, &r)
	return r, err
}

// takesBack asks for the end of a standing lease.
func (n *testNode) takesBack(id uint64) control.ShareState {
	n.r.t.Helper()
	var r control.ShareReply
	if err := n.ask(control.KindShare, control.Share{Node: n.address, Incarnation: n.incarnation, ID: id, End: true}, &r); err != nil {
		n.r.t.Fatal(err)
	}
	return r.State
}

// granted is a standing lease that holds.
func (s *small) granted(n *testNode, id uint64, with *testNode, ps ...dsmpacket.Pointer) control.ShareReply {
	s.t.Helper()
	r, err := n.shares(id, with, ps...)
	if err == nil && r.State == control.ShareComes {
		s.settle()
		r, err = n.shares(id, with, ps...)
	}
	if err != nil || r.State != control.ShareHolds {
		s.t.Fatalf("%+v, %v", r, err)
	}
	return r
}

// noLeases checks that no standing lease is left.
func (s *small) noLeases() {
	s.t.Helper()
	if err := s.gk.query(s.t.Context(), func(c *controller) error {
		if len(c.leases.at)+len(c.leases.of)+len(c.leases.held)+len(c.leases.waits) > 0 {
			s.t.Errorf("leases are left: %+v", c.leases)
		}
		return nil
	}); err != nil {
		s.t.Fatal(err)
	}
}

// mayReadBy reports whether the switch lets a node read by a standing lease.
func (s *small) mayReadBy(n *testNode, p dsmpacket.Pointer, by control.ShareReply) bool {
	s.t.Helper()
	n.request++
	h := dsmpacket.Header{Kind: dsmpacket.Request, Request: n.request, Floor: 1, Incarnation: n.incarnation, By: dsmpacket.Use{Slot: uint32(by.Slot), Number: uint64(by.Number)}}
	n.send(n.address, p.With(dsmpacket.OpRead).Addr(), rackaddr.PortDSM, h.Append(nil))
	n.memoryAnswers()
	return len(s.m1.take()) == 1
}

// TestLease: a lessee reads, and nobody else, until the owner takes the lease back; the owner may write a second after that, and is told so then. All of it over restarts of the
// Gatekeeper at any step.
func TestLease(t *testing.T) {
	for _, restarts := range []bool{false, true} {
		inLogged(t, func(s *small) {
			again := func() {
				if restarts {
					s.restart()
				}
			}
			p, q := s.allocates(s.a, 0, 1), s.allocates(s.a, 1, 1)
			if r, err := s.a.shares(1, s.b, p, q); err != nil || r.State != control.ShareComes {
				t.Fatalf("%+v, %v", r, err)
			}
			again()
			by := s.granted(s.a, 1, s.b, p, q)
			again()
			if same := s.granted(s.a, 1, s.b, p, q); same != by {
				t.Errorf("asked again it is %+v, was %+v", same, by)
			}
			if by.Slot.Block() < nodeBlocks || by.Number.Count()%2 == 1 {
				t.Errorf("its slot is %d, its number %s", by.Slot, by.Number)
			}
			if !s.mayReadBy(s.b, p, by) || !s.mayReadBy(s.b, q, by) || s.mayReadBy(s.c, p, by) || s.mayReadBy(s.b, p, control.ShareReply{Slot: by.Slot, Number: by.Number + 2}) {
				t.Error("not just the lessee may read, by its lease")
			}
			if s.mayWrite(s.a, p) || s.mayWrite(s.b, p) {
				t.Error("what is lent is written")
			}
			if state := s.a.takesBack(1); state != control.ShareEnds {
				t.Errorf("it is %d", state)
			}
			again()
			s.lives(rest / 2)
			if s.mayReadBy(s.b, p, by) {
				t.Error("the lessee may read after the end")
			}
			if state := s.a.takesBack(1); state != control.ShareEnds {
				t.Errorf("after half a second of rest it is %d", state)
			}
			s.lives(2 * rest)
			if state := s.a.takesBack(1); state != control.ShareEnded {
				t.Errorf("after its rest it is %d", state)
			}
			if !s.mayWrite(s.a, p) {
				t.Error("the owner may not write")
			}
			if state := s.a.takesBack(1); state != control.ShareEnded {
				t.Errorf("what is gone is %d", state)
			}
			again()
			s.noLeases()
			if next := s.granted(s.a, 2, s.b, p); next.Number <= by.Number {
				t.Errorf("number %s follows %s", next.Number, by.Number)
			}
		})
	}
}

// TestLease_Refused: nobody shares what is not its own, or with itself, or with nobody.
func TestLease_Refused(t *testing.T) {
	inLogged(t, func(s *small) {
		p, theirs := s.allocates(s.a, 0, 1), s.allocates(s.b, 0, 1)
		nobody := &testNode{testBlade: s.c.testBlade, address: rackaddr.Node(999)}
		stale := *s.a
		stale.incarnation += 9
		for what, try := range map[string]struct {
			n    *testNode
			id   uint64
			with *testNode
			ps   []dsmpacket.Pointer
			want fault.Code
		}{
			"itself":              {s.a, 1, s.a, []dsmpacket.Pointer{p}, fault.BadRequest},
			"nobody":              {s.a, 1, nobody, []dsmpacket.Pointer{p}, fault.NotFound},
			"no region":           {s.a, 1, s.b, nil, fault.BadRequest},
			"five regions":        {s.a, 1, s.b, []dsmpacket.Pointer{p, p, p, p, p}, fault.BadRequest},
			"no lease":            {s.a, 0, s.b, []dsmpacket.Pointer{p}, fault.BadRequest},
			"another incarnation": {&stale, 1, s.b, []dsmpacket.Pointer{p}, fault.Stale},
		} {
			if _, err := try.n.shares(try.id, try.with, try.ps...); fault.CodeOf(err) != try.want {
				t.Errorf("%s: %v, want %v", what, err, try.want)
			}
		}
		for i, ps := range [][]dsmpacket.Pointer{{theirs}, {p, theirs}, {p, p}, {dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, p.ID()+1)}} {
			if r, err := s.a.shares(uint64(i+1), s.c, ps...); err != nil || r.State != control.ShareComes {
				t.Fatalf("%+v, %v", r, err)
			}
			s.settle()
			if _, err := s.a.shares(uint64(i+1), s.c, ps...); fault.CodeOf(err) != fault.PermissionDenied {
				t.Errorf("lease %d is refused with %v", i+1, err)
			}
		}
		if !s.mayWrite(s.a, p) || !s.mayWrite(s.b, theirs) {
			t.Error("a refused lease lends")
		}
		s.noLeases()
	})
}

// TestLease_Gone: nobody shares with a node that is going, or has no row: nothing would end the lease.
func TestLease_Gone(t *testing.T) {
	for what, begins := range map[string]func(*node){"it is going": func(n *node) { n.going = true }, "it has no row": func(n *node) { n.row = 0 }} {
		s := newSolo(t)
		owner, lessee := s.nodes[rackaddr.Node(1)], s.nodes[rackaddr.Node(2)]
		q := control.Share{ID: 1, Lessee: lessee.address, Regions: []rpcpacket.Region{rpcpacket.RegionOf(dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, dsmpacket.IDOf(64, 1)))}}
		begins(lessee)
		if _, err := s.leases.share(owner, &q, &s.population); fault.CodeOf(err) != fault.NotFound {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestLease_Ends: a lease ends with its owner's incarnation, which its next one hears of, and when its lessee is gone for good. While the lessee may come back it stays.
func TestLease_Ends(t *testing.T) {
	for _, restarts := range []bool{false, true} {
		inLogged(t, func(s *small) {
			again := func() {
				if restarts {
					s.restart()
					s.lives(time.Second)
				}
			}
			s.a.keep()
			s.b.keepAs("Other")
			p, q, r := s.allocates(s.a, 0, 1), s.allocates(s.a, 1, 1), s.allocates(s.c, 0, 1)
			ofA, ofC := s.granted(s.a, 1, s.b, p), s.granted(s.c, 1, s.b, r)
			gone := s.granted(s.a, 2, s.c, q)
			s.b.crashes()
			again()
			s.lives(time.Second / 2)
			next := s.b.join("s1", "program")
			if next.row != s.b.row {
				t.Fatalf("row %d", next.row)
			}
			next.holds()
			if !s.mayReadBy(next, p, ofA) || !s.mayReadBy(next, r, ofC) {
				t.Error("the lessee's next incarnation may not read")
			}
			s.c.leave()
			s.lives(5 * time.Second)
			again()
			if state := s.a.takesBack(2); state != control.ShareEnded || s.mayReadBy(next, r, ofC) || !s.mayWrite(s.a, q) {
				t.Errorf("the lessee of lease %d is gone: it is %d", gone.Slot, state)
			}
			s.a.crashes()
			again()
			s.lives(time.Second / 4)
			heir := s.a.join("c1", "program")
			heir.holds()
			if s.mayReadBy(next, p, ofA) {
				t.Error("the owner has ended, and the lessee reads")
			}
			if !restarts && heir.takesBack(0) != control.ShareEnds {
				t.Error("the lease of the former incarnation has no rest")
			}
			s.lives(2 * rest)
			if state := heir.takesBack(0); state != control.ShareEnded || !s.mayWrite(heir, p) {
				t.Errorf("leases of the former incarnation are %d", state)
			}
			s.noLeases()
		})
	}
}

// TestLease_StatesLost: a node whose ledger is lost reads on by the leases that it has, when the calls to it have failed.
func TestLease_StatesLost(t *testing.T) {
	inLogged(t, func(s *small) {
		p := s.allocates(s.a, 0, 1)
		by := s.granted(s.a, 1, s.b, p)
		s.a.sends(rpcpacket.Call, s.b, 0, 2)
		if err := s.gk.query(t.Context(), func(c *controller) error { c.beginLosing(c.nodes[s.b.address]); return nil }); err != nil {
			t.Fatal(err)
		}
		s.lives(2 * time.Second)
		if !s.mayReadBy(s.b, p, by) {
			t.Error("it may not read")
		}
		if err := s.gk.query(t.Context(), func(c *controller) error {
			if len(c.endings) > 0 {
				t.Errorf("its calls have no end: %+v", c.endings[s.b.address])
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	})
}

// TestLease_OnLog: a Gatekeeper that is killed as it tells the switch of a lease, of its beginning or its end, has it on its log.
func TestLease_OnLog(t *testing.T) {
	s := newSolo(t)
	s.on = true
	log, err := wal.OpenMemory(new(wal.Disk), wal.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	logged := func(want leaseStep) {
		t.Helper()
		s.goOnLeases()
		var is leaseRecord
		if err := log.Append(t.Context(), &s.batch); err != nil {
			t.Fatal(err)
		}
		s.batch = wal.Batch{}
		r, found, err := log.Get(wal.KindLease, leaseID(nodeBlocks*rpcpacket.BlockSlots))
		if err == nil && found {
			err = json.Unmarshal(r.Data, &is)
		}
		if err != nil || is.Step != want {
			t.Errorf("the log has it as %d, %v; want %d", is.Step, err, want)
		}
	}
	q := control.Share{ID: 1, Lessee: rackaddr.Node(2), Regions: []rpcpacket.Region{rpcpacket.RegionOf(dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, dsmpacket.IDOf(64, 1)))}}
	if _, err := s.leases.share(s.nodes[rackaddr.Node(1)], &q, &s.population); err != nil {
		t.Fatal(err)
	}
	logged(leaseComing)
	s.leases.end(s.leases.at[nodeBlocks*rpcpacket.BlockSlots])
	logged(leaseEnding)
}

// TestLease_Rebuilt: in registers that are rebuilt those leases are open by which somebody may read.
func TestLease_Rebuilt(t *testing.T) {
	for step, open := range map[leaseStep]bool{leaseComing: false, leaseGranted: true, leaseEnding: true, leaseResting: false, leaseEnded: false} {
		l := newLeases(func() uint32 { return 9 }, func(a netip.Addr) uint16 { return uint16(a.As16()[15]) }, func() time.Time { return time.Unix(0, 0) })
		id := dsmpacket.IDOf(64, 1)
		x, err := l.give(wal.Node{Address: rackaddr.Node(1), Incarnation: 3}, &control.Share{ID: 1, Lessee: rackaddr.Node(2)}, []dsmpacket.RegionID{id})
		if err != nil {
			t.Fatal(err)
		}
		x.step = step
		b, of := newBuilding(), claims{}
		l.build(b, func(dsmpacket.RegionID) *claims { return &of })
		if k := b.slots[x.slot]; k.state == slotOpen != open || open && (k.number != x.number || !k.standing || !slices.Equal(of.owners, []uint16{1})) {
			t.Errorf("%s: its slot is %+v, and of its region there are claims %+v", step, k, of)
		}
	}
}

// TestLease_Restored: a Gatekeeper that reads from its log a lease that nobody has, or nobody has given, ends it: the one before was killed between the
// two records.
func TestLease_Restored(t *testing.T) {
	for what, try := range map[string]struct {
		begins func(owner, lessee *node)
		ends   bool
	}{
		"both are there":              {func(_, _ *node) {}, false},
		"the owner has joined again":  {func(owner, _ *node) { owner.incarnation++ }, true},
		"the lessee has joined again": {func(_, lessee *node) { lessee.incarnation++ }, false},
		"the lessee is going":         {func(_, lessee *node) { lessee.going = true }, true},
	} {
		s := newSolo(t)
		owner, lessee := s.nodes[rackaddr.Node(1)], s.nodes[rackaddr.Node(2)]
		data, err := json.Marshal(leaseRecord{Number: uint64(rpcpacket.NumberOf(9, 2)), ID: 1, Step: leaseGranted, Regions: []uint64{uint64(dsmpacket.IDOf(64, 1))}, Lessee: lessee.address})
		if err != nil {
			t.Fatal(err)
		}
		r := wal.Record{Kind: wal.KindLease, ID: leaseID(nodeBlocks * rpcpacket.BlockSlots), Callee: owner.logged(), Data: data}
		try.begins(owner, lessee)
		if err := s.leases.restore(&r, &s.population); err != nil {
			t.Fatal(err)
		}
		if o, ends := s.leases.next(); ends != try.ends || ends && o.kind != handFail {
			t.Errorf("%s: it ends: %v, by %+v", what, ends, o)
		}
	}
}

// keepAs has a node keep something of a service's own.
func (n *testNode) keepAs(service string) {
	n.r.t.Helper()
	e := control.Export{Node: n.address, Incarnation: n.incarnation, Service: service, Stateful: true, Methods: []control.Method{{Name: "add"}}}
	if err := n.ask(control.KindExport, e, nil); err != nil {
		n.r.t.Fatal(err)
	}
}

// TestLease_OneEnd: the end of a lease does not overtake its beginning, which would open its slot for good.
func TestLease_OneEnd(t *testing.T) {
	now := time.Unix(0, 0)
	l := newLeases(func() uint32 { return 9 }, func(a netip.Addr) uint16 { return uint16(a.As16()[15]) }, func() time.Time { return now })
	owner := wal.Node{Address: rackaddr.Node(1), Incarnation: 3}
	x, err := l.give(owner, &control.Share{ID: 1, Lessee: rackaddr.Node(2)}, []dsmpacket.RegionID{dsmpacket.IDOf(64, 1)})
	if err != nil {
		t.Fatal(err)
	}
	o, more := l.next()
	if !more || o.kind != handLend || o.owner != 1 || o.lessee != 2 {
		t.Fatalf("%+v, %v", o, more)
	}
	l.end(x)
	if o, more := l.next(); more {
		t.Errorf("%+v is done before the answer to what is out", o)
	}
	l.took(o, &handAnswer{outcome: handDone})
	l.tick()
	fail, more := l.next()
	if !more || fail.kind != handFail || fail.number != x.number {
		t.Fatalf("%+v, %v", fail, more)
	}
	l.took(fail, &handAnswer{outcome: handHasChildren})
	l.tick()
	if _, more := l.next(); more || x.step != leaseEnding {
		t.Errorf("it is %s, and asked for again at once", x.step)
	}
	now = now.Add(endPauses.Most)
	l.tick()
	if o, more := l.next(); !more || o.kind != handFail {
		t.Fatalf("%+v, %v", o, more)
	}
	l.took(fail, &handAnswer{outcome: handDone})
	if now = now.Add(rest - 1); x.step != leaseResting {
		t.Errorf("it is %s", x.step)
	}
	if l.tick(); x.step != leaseResting {
		t.Errorf("before its rest is over it is %s", x.step)
	}
	now = now.Add(1)
	if l.tick(); x.step != leaseEnded || len(l.at) != 1 {
		t.Errorf("it is %s", x.step)
	}
	if l.letGo(x); len(l.at)+len(l.of)+len(l.held) > 0 || !slices.Equal(l.gone, []rpcpacket.Slot{x.slot}) {
		t.Errorf("%+v", l)
	}
}

// TestLease_Slots: all slots are given out once, and one that is free again is found.
func TestLease_Slots(t *testing.T) {
	l := newLeases(func() uint32 { return 9 }, func(netip.Addr) uint16 { return 1 }, func() time.Time { return time.Unix(0, 0) })
	seen := map[rpcpacket.Slot]bool{}
	owner := wal.Node{Address: rackaddr.Node(1), Incarnation: 3}
	var last *lease
	for i := range uint64(maxLeases) {
		x, err := l.give(owner, &control.Share{ID: i + 1, Lessee: rackaddr.Node(2)}, []dsmpacket.RegionID{dsmpacket.IDOf(64, 1)})
		if err != nil || seen[x.slot] || !x.slot.Valid() || x.slot.Block() < nodeBlocks || last != nil && x.number <= last.number {
			t.Fatalf("lease %d: slot %d, number %s, %v", i+1, x.slot, x.number, err)
		}
		seen[x.slot], last = true, x
	}
	if _, err := l.give(owner, &control.Share{ID: maxLeases + 1}, nil); fault.CodeOf(err) != fault.NoSpace {
		t.Errorf("one more: %v", err)
	}
	last.step = leaseEnded
	l.letGo(last)
	if x, err := l.give(owner, &control.Share{ID: maxLeases + 2}, nil); err != nil || x.slot != last.slot {
		t.Errorf("slot %d, %v", x.slot, err)
	}
}

// TestClaims: who claims a region twice, by its account and by a standing lease that it gave, owns it.
func TestClaims(t *testing.T) {
	silent := func(row uint16) bool { return row == 99 }
	for what, try := range map[string]struct {
		claims
		want uint16
	}{
		"one":                               {claims{owners: []uint16{7}}, 7},
		"one, twice":                        {claims{owners: []uint16{7, 7}}, 7},
		"two":                               {claims{owners: []uint16{7, 8}}, frozen},
		"two, one has given it away":        {claims{owners: []uint16{7, 8, 8}, given: map[uint16]uint16{8: 7}}, 7},
		"nobody":                            {claims{}, 0},
		"who has given it to somebody":      {claims{given: map[uint16]uint16{7: 8}}, 7},
		"who has given it on last":          {claims{given: map[uint16]uint16{7: 8, 8: 9}}, 8},
		"two have given it, not in a chain": {claims{given: map[uint16]uint16{7: 8, 9: 10}}, frozen},
		"it was given to who is silent":     {claims{given: map[uint16]uint16{7: 99}}, frozen},
	} {
		if got := try.owner(silent); got != try.want {
			t.Errorf("%s: row %d, want %d", what, got, try.want)
		}
	}
}

// TestLease_Owners: an owner's nodes get their share of the rack's standing leases, and no more. Another owner gets some then.
func TestLease_Owners(t *testing.T) {
	s := newSolo(t)
	s.ask(t, 1, control.KindJoin, control.Join{Blade: "c1", Name: "other", Token: 2, User: 7})
	var first, other *node
	for _, n := range s.nodes {
		if n.user == 7 {
			other = n
		} else if n.blade.hello.Blade == "c1" {
			first = n
		}
	}
	region := []rpcpacket.Region{rpcpacket.RegionOf(dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, dsmpacket.IDOf(64, 1)))}
	given := uint64(0)
	for {
		if _, err := s.leases.share(first, &control.Share{ID: given + 1, Lessee: other.address, Regions: region}, &s.population); err != nil {
			if fault.CodeOf(err) != fault.NoSpace {
				t.Fatal(err)
			}
			break
		}
		given++
	}
	if given < maxLeases/2 || given > maxLeases*8/10 {
		t.Errorf("one owner has %d of %d leases", given, maxLeases)
	}
	if _, err := s.leases.share(other, &control.Share{ID: 1, Lessee: first.address, Regions: region}, &s.population); err != nil {
		t.Errorf("another owner: %v", err)
	}
}
