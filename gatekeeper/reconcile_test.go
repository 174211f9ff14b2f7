package gatekeeper

import (
	"context"
	"errors"
	"testing"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/gatekeeper/lease"
	"github.com/bifrost-rack/bifrost/gatekeeper/p4rtclient"
)

// reconciled has the tables read back.
func (r *rack) reconciled() int {
	r.t.Helper()
	n, err := r.gk.Reconcile(context.Background())
	if err != nil {
		r.t.Fatal(err)
	}
	return n
}

// Somebody else has changed the switch's tables: a rule too many, one that is
// missing, and one that leads elsewhere.
func TestReconcile_RepairsTheSwitch(t *testing.T) {
	inSmall(t, func(s *small) {
		p := s.m1.alloc(s.a, 1, 1)
		if n := s.reconciled(); n != 0 {
			t.Errorf("%d entries were repaired where nothing was wrong", n)
		}
		region, err := dsmpacket.RegionOf(p.With(dsmpacket.OpAlloc, 12))
		if err != nil {
			t.Fatal(err)
		}
		stolen := accessEntry(lease.Rule{Node: s.c.address, Op: dsmpacket.OpWrite, Region: region})
		lost := accessEntry(lease.Rule{Node: s.a.address, Op: dsmpacket.OpRead, Region: region})
		astray := l3Entry(host(s.b.address), hopOf(3))
		if err := s.gk.client.Write(context.Background(), []p4rtclient.Update{
			{Op: p4rtclient.Insert, Entry: stolen}, {Op: p4rtclient.Delete, Entry: lost}, {Op: p4rtclient.Modify, Entry: astray},
		}); err != nil {
			t.Fatal(err)
		}
		if a, c := s.a.may(s.m1, p), s.c.may(s.m1, p); a != "write" || c != "write" {
			t.Fatalf("the switch was not changed: a may %s, c %s", a, c)
		}
		if n := s.reconciled(); n != 3 {
			t.Errorf("%d entries were repaired, want 3", n)
		}
		if a, c := s.a.may(s.m1, p), s.c.may(s.m1, p); a != "read+write" || c != "nothing" {
			t.Errorf("after the repair: a may %s, c %s", a, c)
		}
		if n := s.reconciled(); n != 0 {
			t.Errorf("%d entries were repaired again", n)
		}
	})
}

// What is on its way to the switch is no difference: calls go on while the tables
// are read back, and nothing is repaired.
func TestReconcile_UnderLoad(t *testing.T) {
	bothWays(t, func(s *small) {
		settle := s.settle
		for i := range 30 {
			p := s.m1.alloc(s.a, 1, uint64(i)+1)
			m := s.a.message("Arrays", "add", p)
			s.settle = func() {} // it is being handled while the tables are read
			s.a.call("Arrays", m)
			if n := s.reconciled(); n != 0 {
				t.Fatalf("call %d: %d entries were repaired", i, n)
			}
			s.settle = settle
			call := s.b.message1()
			s.giveBack(p, &call)
		}
	})
}

func TestReconcile_WithoutSwitch(t *testing.T) {
	inSmall(t, func(s *small) {
		s.restartSwitch(func() {
			if _, err := s.gk.Reconcile(context.Background()); !errors.Is(err, ErrNoSwitch) {
				t.Errorf("without a switch: %v", err)
			}
		})
		s.stopGatekeeper()
		if _, err := s.gk.Reconcile(context.Background()); !errors.Is(err, ErrStopped) {
			t.Errorf("without a Gatekeeper: %v", err)
		}
	})
}
