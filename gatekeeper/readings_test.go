package gatekeeper

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// TestGather: nodes that go at one time are looked after by one reading, and each has its part. A node that goes while a reading is under way gets the next
// one.
func TestGather(t *testing.T) {
	inRights(t, func(s *small) {
		var nodes []*testNode
		for range 8 {
			nodes = append(nodes, s.a.join("c1", "some"))
		}
		for _, n := range nodes {
			s.allocates(n, 0, 1)
			n.sends(rpcpacket.Call, s.b, 0, 2)
		}
		s.b.arrives("calls", len(nodes))
		readings := uint32(0)
		if err := s.gk.query(t.Context(), func(c *controller) error {
			before := c.hand.tag
			for _, n := range nodes {
				c.removeNode(c.nodes[n.address], "it ends")
			}
			readings = before
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		s.settle()
		if err := s.gk.query(t.Context(), func(c *controller) error {
			if len(c.endings) != len(nodes) {
				t.Errorf("%d nodes are ending", len(c.endings))
			}
			one := uint32(len(c.blocks.of) * readsOfBlock)
			if n := c.hand.tag - readings; n > 3*one {
				t.Errorf("%d operations for %d nodes; a reading of all slots has %d", n, len(nodes), one)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		for _, m := range ofType(s.b.messages(), rpcpacket.Ask) {
			for _, n := range nodes {
				if n.slot(0) == m.Slot {
					m.Flags = 0
					s.b.answers(n, &m)
				}
			}
		}
		s.lives(5 * time.Second)
		s.m1.converse()
		if len(s.m1.reclaimed) != len(nodes) {
			t.Errorf("%d regions are freed", len(s.m1.reclaimed))
		}
	})
}

// TestGather_GivenUp: a node that ends while it waits for what it holds is told so.
func TestGather_GivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRack(t)
		r.settle, r.disk, r.rights = synctest.Wait, new(wal.Disk), true
		r.start(Config{})
		s := newSmall(r)
		s.m1.converse()
		s.a.keep()
		s.a.crashes()
		next := s.a.join("c1", "program")
		s.anew()
		if err := s.gk.query(t.Context(), func(c *controller) error {
			n := c.nodes[next.address]
			h := &holding{node: n, stage: holdWords, asks: true}
			n.held = h
			c.gatherWords(h)
			c.gatherSlots(h)
			c.removeNode(n, "it ends")
			if len(c.slotGathers.next)+len(c.wordGathers.next) > 0 || n.held != nil {
				t.Error("it is still waited for")
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		s.lives(time.Second)
		if err := next.ask(control.KindHoldings, control.HoldingsQuery{Node: next.address, Incarnation: next.incarnation}, nil); err == nil {
			t.Error("a node that has ended holds something")
		}
	})
}
