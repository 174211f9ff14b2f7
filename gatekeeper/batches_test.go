package gatekeeper

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
)

// wantsBatches asks for region slots of a memory machine.
func (n *testNode) wantsBatches(machine uint8, want int) ([]uint32, error) {
	var r control.BatchReply
	err := n.ask(control.KindBatches, control.BatchQuery{Node: n.address, Incarnation: n.incarnation, Machine: machine, Want: want}, &r)
	return r.Batches, err
}

// owns is what the blade was told of who has which batch.
func (b *testBlade) owns() map[uint32]netip.Addr {
	b.converse()
	of := map[uint32]netip.Addr{}
	for _, g := range b.batches {
		of[g.Batch] = g.Node
	}
	return of
}

// TestBatches: no two nodes have one batch, and the machine knows whose each is. A node keeps its batches when it comes back, and over a restart of
// the Gatekeeper, which tells the machine again. When it is gone for good another one gets them, on the same machine.
func TestBatches(t *testing.T) {
	inLogged(t, func(s *small) {
		seen := map[uint32]netip.Addr{}
		for _, n := range []*testNode{s.a, s.b, s.a} {
			all, err := n.wantsBatches(1, 3)
			if err != nil || len(all) != 3 {
				t.Fatalf("batches %v, %v", all, err)
			}
			for _, number := range all {
				if at, known := seen[number]; known && at != n.address || number == 0 {
					t.Errorf("batch %d is that of %s and %s", number, at, n.address)
				}
				seen[number] = n.address
			}
		}
		check := func(when string) {
			t.Helper()
			for number, node := range seen {
				if got := s.m1.owns()[number]; got != node {
					t.Errorf("%s, the machine takes batch %d for that of %s, not %s", when, number, got, node)
				}
			}
		}
		check("at first")
		if _, err := s.a.wantsBatches(2, 1); fault.CodeOf(err) != fault.Unavailable {
			t.Errorf("of a machine that is not in service: %v", err)
		}
		mine, err := s.a.wantsBatches(1, 0)
		if err != nil || len(mine) != 3 {
			t.Fatalf("it has batches %v, %v", mine, err)
		}
		s.m1.batches = nil
		s.restart()
		check("after a restart")
		if again, err := s.a.wantsBatches(1, 0); err != nil || !slices.Equal(again, mine) {
			t.Errorf("after a restart it has %v, %v", again, err)
		}
		s.m1.batches = nil
		s.m1.batches = s.m1.hello("m1", control.Memory).Batches
		check("when the blade says hello again")
		stale := *s.a
		stale.incarnation += 9
		if _, err := stale.wantsBatches(1, 1); fault.CodeOf(err) != fault.Stale {
			t.Errorf("another incarnation: %v", err)
		}
		s.a.leave()
		pass(time.Second)
		got, err := s.b.wantsBatches(1, 6)
		if err != nil || len(got) != 6 {
			t.Fatalf("batches %v, %v", got, err)
		}
		for _, number := range mine {
			if !slices.Contains(got, number) {
				t.Errorf("batch %d, whose node has left, is nobody's", number)
			}
			seen[number] = s.b.address
		}
		check("when they have been given on")
	})
}

// TestBatches_Owners: an owner's nodes get their share of the rack's batches, and no more. Another owner gets some then. One node has so many at most.
// What nobody has any more is free, even if all batches were somebody's once.
func TestBatches_Owners(t *testing.T) {
	s := newSolo(t)
	s.ask(t, 1, control.KindJoin, control.Join{Blade: "c1", Name: "other", Token: 2, User: 7})
	for i := range 4 {
		s.ask(t, 1, control.KindJoin, control.Join{Blade: "c1", Name: "more", Token: 3 + uint64(i)}) //nolint:gosec // four
	}
	held := 0
	var other *node
	for _, n := range s.nodes {
		switch {
		case n.user == 7:
			other = n
		case n.blade.hello.Blade == "c1":
			s.grantBatches(n, 1, 2*dsmpacket.Batches)
			if n.batchCount() > dsmpacket.MaxBatches {
				t.Errorf("one node has %d batches", n.batchCount())
			}
			held += n.batchCount()
		}
	}
	if held < dsmpacket.Batches/4 || held > dsmpacket.Batches*3/4 {
		t.Errorf("one owner has %d of %d batches", held, dsmpacket.Batches)
	}
	if s.grantBatches(other, 1, 10); other.batchCount() != 10 {
		t.Errorf("another owner has %d batches", other.batchCount())
	}
	for _, n := range s.nodes {
		s.freeBatches(n)
	}
	if s.grantBatches(other, 1, dsmpacket.MaxBatches); other.batchCount() != dsmpacket.MaxBatches {
		t.Errorf("when all others have given theirs back, it has %d of %d", other.batchCount(), dsmpacket.MaxBatches)
	}
	s.freeBatches(other)
	for number := uint32(1); number < dsmpacket.Batches; number++ {
		if _, known := s.batches.of[number]; !known {
			s.batches.set(number, batchOf{machine: 1, node: other.address})
			s.batches.set(number, batchOf{machine: 1})
		}
	}
	if s.grantBatches(other, 1, dsmpacket.MaxBatches); other.batchCount() != dsmpacket.MaxBatches {
		t.Errorf("when all batches were somebody's and nobody has one, a node gets %d of %d", other.batchCount(), dsmpacket.MaxBatches)
	}
}

// TestBatches_Free: a batch that was somebody's is given out again on its machine only.
func TestBatches_Free(t *testing.T) {
	b := batches{of: map[uint32]batchOf{}, idle: map[uint8][]uint32{}, most: dsmpacket.Batches - 1}
	one := rackaddr.Node(1)
	for i := uint32(1); i < dsmpacket.Batches; i++ {
		if got := b.free(1); got != i {
			t.Fatalf("batch %d is free, want %d", got, i)
		}
		b.set(i, batchOf{1, one})
		if i == 100 {
			break
		}
	}
	b.set(7, batchOf{machine: 1})
	if at, elsewhere := b.free(1), b.free(2); at != 7 || elsewhere != 101 {
		t.Errorf("batches %d and %d are free, want 7 on machine 1 and 101 on machine 2", at, elsewhere)
	}
	b.next = dsmpacket.Batches
	if elsewhere := b.free(2); elsewhere != 0 {
		t.Errorf("all were given out, and batch %d is free", elsewhere)
	}
}

// TestBatches_Fast: how long a batch takes to be found does not depend on how many others have. A node may ask for thousands at a time, and all of the rack
// waits for the Gatekeeper meanwhile.
func TestBatches_Fast(t *testing.T) {
	took := func(taken uint32) time.Duration {
		b := batches{of: map[uint32]batchOf{}, idle: map[uint8][]uint32{}, most: dsmpacket.Batches - 1}
		for i := uint32(1); i <= taken+100; i++ {
			b.set(i, batchOf{1, rackaddr.Node(1)})
		}
		for i := taken + 1; i <= taken+100; i++ {
			b.set(i, batchOf{machine: 1})
		}
		least := time.Hour
		for range 100 {
			began := time.Now()
			number := b.free(1)
			b.set(number, batchOf{1, rackaddr.Node(2)})
			least = min(least, time.Since(began))
			if number <= taken {
				t.Fatalf("batch %d is somebody's", number)
			}
		}
		return least
	}
	few, many := took(10), took(dsmpacket.Batches-200)
	if many > 20*few+10*time.Microsecond {
		t.Errorf("beside 10 batches that are taken it takes %s, beside %d %s", few, dsmpacket.Batches-200, many)
	}
}
