package gatekeeper

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/wal"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
)

// allocates has a node allocate a region in one of its batches of machine 1, and returns its base.
func (s *small) allocates(n *testNode, i, generation uint32) dsmpacket.Pointer {
	s.t.Helper()
	all, err := n.wantsBatches(1, 1)
	if err != nil {
		s.t.Fatal(err)
	}
	p := dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, dsmpacket.IDOf(all[0]*dsmpacket.BatchSlots+i, generation))
	n.memory(dsmpacket.OpAlloc, p)
	if ops := s.m1.serve(); len(ops) != 1 || ops[0] != dsmpacket.OpAlloc {
		s.t.Fatalf("the memory blade got %v", ops)
	}
	if got := n.memoryAnswers(); len(got) != 1 || got[0].Status != fault.OK {
		s.t.Fatalf("the allocation was answered with %+v", got)
	}
	return p
}

// mayWrite reports whether the switch lets a node write.
func (s *small) mayWrite(n *testNode, p dsmpacket.Pointer) bool {
	s.t.Helper()
	refused := len(n.memory(dsmpacket.OpWrite, p)) > 0
	passed := len(s.m1.take()) == 1
	if passed && refused {
		s.t.Fatal("it has passed, and was turned around")
	}
	return passed
}

// TestRows: a node has a row of its own, and owns what it allocates in its batches, over a restart of the Gatekeeper, too. The switch hands nothing up
// for that.
func TestRows(t *testing.T) {
	inLogged(t, func(s *small) {
		rows := map[uint16]bool{0: true}
		for _, n := range []*testNode{s.a, s.b, s.c} {
			if rows[n.row] || n.row > lastRow {
				t.Errorf("node %s has row %d", n.address, n.row)
			}
			rows[n.row] = true
		}
		check := func(p dsmpacket.Pointer) {
			t.Helper()
			if a, b := s.mayWrite(s.a, p), s.mayWrite(s.b, p); !a || b {
				t.Errorf("the owner may write: %v, another node: %v", a, b)
			}
		}
		p := s.allocates(s.a, 0, 1)
		check(p)
		foreign := dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, dsmpacket.IDOf(p.ID().Slot()+1, 1))
		if got := s.b.memory(dsmpacket.OpAlloc, foreign); len(got) != 1 || got[0].Status != fault.PermissionDenied {
			t.Errorf("an allocation in another node's batch: %+v", got)
		}
		s.restart()
		check(p)
		check(s.allocates(s.a, 1, 1))
		if got := s.snapshot().Counters; got.Failures+got.Malformed > 0 {
			t.Errorf("%+v", got)
		}
		last := s.a.join("c1", "later")
		if rows[last.row] {
			t.Errorf("two nodes have row %d", last.row)
		}
	})
}

// TestRows_Rest: the row, the blocks and the batches of a node that has left rest for a second, and are another node's then.
func TestRows_Rest(t *testing.T) {
	inLogged(t, func(s *small) {
		had := s.a.row
		s.a.leave()
		const often = 100 * time.Millisecond
		rested := time.Duration(0)
		for range 5 * time.Second / often {
			s.lives(often)
			if err := s.gk.query(t.Context(), func(c *controller) error {
				if len(c.resting) > 0 && c.rows.of[had] == s.a.address {
					rested += often
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		}
		if rested < rest-2*often {
			t.Errorf("row %d has rested for %v, want %v", had, rested, rest)
		}
		if err := s.gk.query(t.Context(), func(c *controller) error {
			if n := c.rowOf(had); n != nil {
				t.Errorf("row %d is still that of %s", had, n.address)
			}
			for key, e := range c.base {
				if e.Table == "block_rule" && e.Match[0] == blockEntry(had, 1).Match[0] {
					t.Errorf("a rule is left: %s", key)
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	})
}

// TestRows_Free: rows are given out again only when all others were used.
func TestRows_Free(t *testing.T) {
	r := rows{of: map[uint16]netip.Addr{}}
	for i := range uint16(lastRow) {
		n := &node{address: rackaddr.Node(uint64(i) + 1)}
		if r.give(n); n.row != i+1 {
			t.Fatalf("row %d is free, want %d", n.row, i+1)
		}
	}
	if got := r.free(); got != 0 {
		t.Errorf("all are taken, and %d is free", got)
	}
	delete(r.of, 77)
	if got := r.free(); got != 77 {
		t.Errorf("row %d is free, want 77", got)
	}
}

// TestHalfUsed: a node that has used half of its last batch, or three quarters if that was not heard, has the next one when it asks.
func TestHalfUsed(t *testing.T) {
	for _, slot := range []uint32{dsmpacket.BatchSlots / 2, dsmpacket.BatchSlots * 3 / 4} {
		t.Run(fmt.Sprint(slot), func(t *testing.T) { halfUsed(t, slot) })
	}
}

// halfUsed has a node allocate in a slot that tells that the batch is half used, and in some that tell nothing.
func halfUsed(t *testing.T, told uint32) {
	inLogged(t, func(s *small) {
		had := func() (n int) {
			if err := s.gk.query(t.Context(), func(c *controller) error { n = c.nodes[s.a.address].batchCount(); return nil }); err != nil {
				t.Fatal(err)
			}
			return n
		}
		for _, use := range []struct {
			slot uint32
			want int
		}{{0, 1}, {dsmpacket.BatchSlots/2 - 1, 1}, {dsmpacket.BatchSlots/2 + 1, 1}, {dsmpacket.BatchSlots - 1, 1}, {told, 2}, {dsmpacket.BatchSlots - 2, 2}} {
			p := s.allocates(s.a, use.slot, 1)
			if n := had(); n != use.want {
				t.Errorf("after an allocation in slot %d it has %d batches, want %d", p.ID().Slot(), n, use.want)
			}
		}
		all, err := s.a.wantsBatches(1, 2)
		if s.allocates(s.a, told, 2); had() != 2 {
			t.Errorf("its first batch is half used again, and it has %d batches", had())
		}
		if err := s.gk.do(t.Context(), func() { s.gk.ctl.halfUsed(s.gk.ctl.nodes[s.a.address], all[0]) }); err != nil || had() != 2 { // a digest that comes late
			t.Errorf("a late digest tells of its first batch, and it has %d batches, %v", had(), err)
		}
		if err != nil || len(all) != 2 || s.m1.owns()[all[1]] != s.a.address {
			t.Errorf("batches %v, %v", all, err)
		}
		p := dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, dsmpacket.IDOf(all[1]*dsmpacket.BatchSlots, 1))
		if got := s.a.memory(dsmpacket.OpAlloc, p); len(got) != 0 || len(s.m1.take()) != 1 {
			t.Errorf("an allocation in the next batch: %+v", got)
		}
		rules, err := s.gk.Rules(s.t.Context(), "control_rule")
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []entry{controlEntry(s.a.row, 1, all[0], false), controlEntry(s.a.row, 1, all[1], true)} {
			if !slices.ContainsFunc(rules, func(e entry) bool { return e.Key() == want.Key() && e.Equal(&want) }) {
				t.Errorf("of the last batch alone the switch tells: %v", rules)
			}
		}
	})
}

// TestRows_Begin: a rack that begins at a switch that another rack has left has nothing of that rack in registers; a Gatekeeper that
// comes back has all.
func TestRows_Begin(t *testing.T) {
	inLogged(t, func(s *small) {
		p := s.allocates(s.a, 0, 1)
		word := func() string {
			b, err := s.sw.Register("BifrostIngress.rights.words", int(p.ID()>>dsmpacket.GenerationBits))
			if err != nil {
				t.Fatal(err)
			}
			return fmt.Sprintf("%x", b)
		}
		was := word()
		s.stopGatekeeper()
		s.start(Config{})
		s.settle()
		if got := word(); got != was {
			t.Errorf("the word is %s after a restart of the Gatekeeper, want %s", got, was)
		}
		s.stopGatekeeper()
		s.disk = new(wal.Disk)
		pass(time.Second)
		s.start(Config{})
		s.settle()
		if got := strings.Trim(word(), "0"); got != "" {
			t.Errorf("the word is %s when another rack begins", got)
		}
	})
}
