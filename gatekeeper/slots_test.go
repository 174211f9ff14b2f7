package gatekeeper

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// wants asks for call slots.
func (n *testNode) wants(blocks int) ([]uint32, error) {
	var r control.BlockReply
	err := n.ask(control.KindBlocks, control.BlockQuery{Node: n.address, Incarnation: n.incarnation, Want: blocks}, &r)
	return r.Blocks, err
}

// TestBlocks: no two nodes have one block. A node gets some when it joins, more when it asks, and no more than it may have; it keeps them
// when it comes back, and over a restart of the Gatekeeper. When it is gone for good others get them.
func TestBlocks(t *testing.T) {
	inLogged(t, func(s *small) {
		seen := map[uint32]*testNode{}
		for _, n := range []*testNode{s.a, s.b, s.c} {
			if len(n.blocks) != joinBlocks {
				t.Errorf("node %s has blocks %v after its join", n.address, n.blocks)
			}
			for _, block := range n.blocks {
				if seen[block] != nil || block == 0 {
					t.Errorf("block %d is that of nodes %s and %s", block, seen[block].address, n.address)
				}
				seen[block] = n
			}
		}
		all, err := s.a.wants(1 << 20)
		if err != nil || len(all) != rpcpacket.MaxBlocks || !slices.Equal(all[:joinBlocks], s.a.blocks) {
			t.Fatalf("%d blocks, %v", len(all), err)
		}
		for _, block := range all {
			if at := seen[block]; at != nil && at != s.a {
				t.Errorf("block %d is node %s's, too", block, at.address)
			}
		}
		if less, err := s.a.wants(1); err != nil || !slices.Equal(less, all) {
			t.Errorf("who wants less has %v, %v", less, err)
		}
		s.restart()
		if again, err := s.a.wants(1); err != nil || !slices.Equal(again, all) {
			t.Errorf("after a restart it has %v, %v", again, err)
		}
		if err := s.a.export("Kept", "do"); err != nil { // so that it is awaited
			t.Fatal(err)
		}
		stale := *s.a
		stale.incarnation += 9
		if _, err := stale.wants(1); fault.CodeOf(err) != fault.Stale {
			t.Errorf("another incarnation: %v", err)
		}
		s.a.leave()
		pass(time.Second)
		left := map[uint32]netip.Addr{}
		if err := s.gk.query(t.Context(), func(c *controller) error { left = c.blocks.of; return nil }); err != nil || len(left) != 2*joinBlocks {
			t.Errorf("%d blocks have an owner, %v", len(left), err)
		}
	})
}

// TestBlocks_Fast: when all blocks were somebody's once, how long one takes to be found does not depend on how many others have.
func TestBlocks_Fast(t *testing.T) {
	took := func(taken uint32) time.Duration {
		b := blocks{of: map[uint32]netip.Addr{}}
		for i := uint32(1); i < nodeBlocks; i++ {
			if b.has(netip.AddrFrom16([16]byte{15: 1}), i); i > taken {
				delete(b.of, i)
			}
		}
		least := time.Hour
		for range 100 {
			began := time.Now()
			block := b.free()
			b.has(netip.AddrFrom16([16]byte{15: 2}), block)
			least = min(least, time.Since(began))
			if block <= taken {
				t.Fatalf("block %d is somebody's", block)
			}
		}
		return least
	}
	few, many := took(10), took(nodeBlocks-200)
	if many > 20*few+10*time.Microsecond {
		t.Errorf("beside 10 blocks that are taken it takes %s, beside %d %s", few, nodeBlocks-200, many)
	}
}

// TestBlocks_Free: a block is given out again only when all others were used, and none when all are taken.
func TestBlocks_Free(t *testing.T) {
	b := blocks{of: map[uint32]netip.Addr{}}
	one, two := netip.AddrFrom16([16]byte{15: 1}), netip.AddrFrom16([16]byte{15: 2})
	for i := uint32(1); i < nodeBlocks; i++ {
		if got := b.free(); got != i {
			t.Fatalf("block %d is free, want %d", got, i)
		}
		b.has(one, i)
	}
	if got := b.free(); got != 0 {
		t.Errorf("all are taken, and %d is free", got)
	}
	delete(b.of, 77)
	if got := b.free(); got != 77 {
		t.Errorf("block %d is free, want 77", got)
	}
	b.has(two, 77)
	if got := b.owner(77*rpcpacket.BlockSlots + 3); got != two || b.owner(3).IsValid() {
		t.Errorf("slots are owned by %s and %s", got, b.owner(3))
	}
}

// TestBlocks_Owners: an owner's nodes get their share of the rack's blocks, and no more: a further node cannot join. Another owner gets some then.
func TestBlocks_Owners(t *testing.T) {
	s := newSolo(t)
	s.ask(t, 1, control.KindJoin, control.Join{Blade: "c1", Name: "other", Token: 2, User: 7})
	var first, other *node
	for _, n := range s.nodes {
		switch {
		case n.user == 7:
			other = n
		case n.blade.hello.Blade == "c1":
			first = n
		}
	}
	taken := uint32(1000)
	for len(s.blocks.of) < nodeBlocks-1 && s.room(first, (*node).blockCount, len(s.blocks.of), nodeBlocks-1) > 0 {
		s.blocks.has(first.address, taken)
		first.blocks = append(first.blocks, taken)
		taken++
	}
	if n := len(first.blocks); n < nodeBlocks/4 || n > nodeBlocks*3/4 {
		t.Errorf("one owner has %d of %d blocks", n, nodeBlocks)
	}
	had := len(s.nodes)
	s.ask(t, 1, control.KindJoin, control.Join{Blade: "c1", Name: "late", Token: 3, User: first.user})
	if len(s.nodes) != had {
		t.Error("a node has joined that can have no call slots")
	}
	if had := len(other.blocks); had != joinBlocks {
		t.Fatalf("%d blocks", had)
	}
	if s.grantBlocks(other, 10); len(other.blocks) != 10 {
		t.Errorf("another owner has %d blocks", len(other.blocks))
	}
}

// TestIncarnations: of two incarnations, of whichever nodes, the later one has the higher number, over a restart of the Gatekeeper too.
func TestIncarnations(t *testing.T) {
	inLogged(t, func(s *small) {
		last := max(s.a.incarnation, s.b.incarnation, s.c.incarnation)
		joins := func(what string) {
			t.Helper()
			n := s.b.join("s1", what)
			if n.incarnation <= last {
				t.Errorf("%s: incarnation %d follows %d", what, n.incarnation, last)
			}
			last = n.incarnation
		}
		joins("another-node")
		s.a.leave()
		joins("one-after-another-has-left")
		s.restart()
		joins("one-after-a-restart")
	})
	s := newSolo(t)
	s.lastIncarnation = rpcpacket.MaxIncarnation - 1
	s.ask(t, 1, control.KindJoin, control.Join{Blade: "c1", Name: "last", Token: 9})
	before := len(s.nodes)
	s.ask(t, 1, control.KindJoin, control.Join{Blade: "c1", Name: "too-many", Token: 10})
	if len(s.nodes) != before || s.lastIncarnation != rpcpacket.MaxIncarnation {
		t.Errorf("%d nodes, the last incarnation is %d", len(s.nodes), s.lastIncarnation)
	}
}
