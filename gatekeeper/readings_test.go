package gatekeeper

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// TestGather: those who want a reading at one time share it, and each gets its part; so do those who want one while another one is under way. So it is with nodes that go at one time.
func TestGather(t *testing.T) {
	inLogged(t, func(s *small) {
		var nodes []*testNode
		for range 8 {
			nodes = append(nodes, s.a.join("c1", "some"))
		}
		for _, n := range nodes {
			s.allocates(n, 0, 1)
			n.sends(rpcpacket.Call, s.b, 0, 2)
		}
		s.b.arrives("calls", len(nodes))
		wanted := func(f func(c *controller)) {
			if err := s.gk.query(t.Context(), func(c *controller) error { f(c); return nil }); err != nil {
				t.Fatal(err)
			}
			s.settle()
		}
		var before uint32
		var parts []*holding
		wanted(func(c *controller) {
			before = c.hand.tag
			for i, n := range nodes {
				h := &holding{node: c.nodes[n.address], stage: holdRead, asks: true}
				parts = append(parts, h)
				c.gather(&c.slotGathers, h)
				if i == 1 {
					c.beginGathers()
				}
			}
		})
		wanted(func(c *controller) {
			if n, one := c.hand.tag-before, uint32(len(c.blocks.of)*readsOfBlock); n != 2*one {
				t.Errorf("%d operations for %d nodes; a reading of all slots has %d, and all but the first two nodes share the second one", n, len(nodes), one)
			}
		})
		for i, h := range parts {
			if h.asks || len(h.slots) != 1 || h.slots[0].caller != nodes[i].row {
				t.Errorf("node %d gets %+v", i, h.slots)
			}
		}
		wanted(func(c *controller) {
			for _, n := range nodes {
				c.removeNodes("it ends", c.nodes[n.address])
			}
		})
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
	bubble.Test(t, func(t *testing.T) {
		r := newRack(t)
		r.settle, r.disk = synctest.Wait, new(wal.Disk)
		r.start(Config{})
		s := newSmall(r)
		s.m1.converse()
		s.a.keep()
		s.a.crashes()
		next := s.a.join("c1", "program")
		s.restart()
		if err := s.gk.query(t.Context(), func(c *controller) error {
			n := c.nodes[next.address]
			h := &holding{node: n, stage: holdWords, asks: true}
			n.held = h
			c.gather(&c.wordGathers, h)
			c.gather(&c.slotGathers, h)
			c.removeNodes("it ends", n)
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
