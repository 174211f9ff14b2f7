package gatekeeper

import (
	"slices"
	"testing"
	"testing/synctest"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Pages put together are the whole list, and filters choose from it.
func TestRegions_Pages(t *testing.T) {
	inSmall(t, func(s *small) {
		for k := range uint64(7) {
			s.m1.alloc([]*testNode{s.a, s.b}[k%2], 1, k+1)
		}
		lent := dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, 1<<12)
		s.a.call("Arrays", s.a.message("Arrays", "add", lent))
		s.b.message1()
		ctx := s.t.Context()
		var got []RegionState
		q := RegionQuery{Limit: 2}
		for more := true; more; {
			page, m, err := s.gk.Regions(ctx, q)
			if err != nil || len(page) == 0 || len(page) > 2 {
				t.Fatalf("page %+v, %v", page, err)
			}
			got, more = append(got, page...), m
			q.After = dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, uint64(len(got))<<12)
		}
		all := s.snapshot().Regions
		if len(got) != 7 || !slices.EqualFunc(got, all, func(a, b RegionState) bool { return a.Region == b.Region }) {
			t.Errorf("pages %+v, all %+v", got, all)
		}
		for what, tc := range map[string]struct {
			q    RegionQuery
			want int
		}{
			"of b: controlled and lent": {RegionQuery{Node: s.b.address, Limit: 9}, 4},
			"of a":                      {RegionQuery{Node: s.a.address, Limit: 9}, 4},
			"of nobody":                 {RegionQuery{Node: rackaddr.Node(99), Limit: 9}, 0},
			"around a pointer":          {RegionQuery{Pointer: lent.Add(100), Limit: 9}, 1},
			"around a pointer, not b's": {RegionQuery{Pointer: lent.Add(1 << 12), Node: s.a.address, Limit: 9}, 0},
			"around no region":          {RegionQuery{Pointer: lent.Add(1 << 20), Limit: 9}, 0},
		} {
			if page, _, err := s.gk.Regions(ctx, tc.q); err != nil || len(page) != tc.want {
				t.Errorf("regions %s: %+v, %v, want %d", what, page, err, tc.want)
			}
		}
	})
}

func TestCalls_Pages(t *testing.T) {
	inSmall(t, func(s *small) {
		p := s.m1.alloc(s.a, 1, 1)
		var calls []rpcpacket.Message
		for range 5 {
			m := s.a.message("Arrays", "add", p)
			m.Floor = 1 // nothing is settled
			s.a.call("Arrays", m)
			calls = append(calls, s.b.message1())
		}
		s.b.reply(s.a.address, &calls[1])
		synctest.Wait()
		ctx := s.t.Context()
		var under []CallState
		q := CallQuery{Limit: 3}
		for range 2 {
			page, next, err := s.gk.Calls(ctx, q)
			if err != nil || len(page) == 0 || len(page) > 3 || (next == CallCursor{}) != (len(under) == 3) {
				t.Fatalf("page %+v, next %s, %v", page, next, err)
			}
			under, q.From = append(under, page...), next
		}
		if len(under) != 4 || under[0].Call != calls[0].Call.String() || under[1].Call != calls[2].Call.String() || under[0].Checkpoint != "b1" {
			t.Errorf("under way: %+v", under)
		}
		for id, stage := range map[rpcpacket.ID]string{calls[3].Call: "running", calls[1].Call: "finished"} {
			if k, ok, err := s.gk.Call(ctx, id); err != nil || !ok || k.Call != id.String() || k.Callee != s.b.address || k.Stage != stage {
				t.Errorf("call %s is %+v, %v, %v", id, k, ok, err)
			}
		}
		if k, ok, err := s.gk.Call(ctx, rpcpacket.ID{9}); ok || err != nil {
			t.Errorf("a call that is not: %+v, %v", k, err)
		}
		if none, _, _ := s.gk.Calls(ctx, CallQuery{Node: s.c.address, Limit: 9}); len(none) != 0 {
			t.Errorf("calls of a node that has none: %+v", none)
		}
		o, err := s.gk.Overview(ctx)
		if err != nil || o.CallCount != 5 || o.RegionCount != 1 || len(o.Blades) == 0 || o.Calls != nil || o.Regions != nil {
			t.Errorf("overview %+v, %v", o, err)
		}
	})
}

// What the switch has is what the Gatekeeper wants it to have.
func TestRules_ReadBack(t *testing.T) {
	inSmall(t, func(s *small) {
		s.m1.alloc(s.a, 1, 1)
		got, err := s.gk.Rules(s.t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var want base
		if err := s.gk.do(s.t.Context(), func() { want = s.gk.ctl.wanted() }); err != nil {
			t.Fatal(err)
		}
		if revoke, grant := reconcile(want, got); len(revoke)+len(grant) != 0 || len(got) != len(want) {
			t.Errorf("%d rules, wanted %d: revoke %v, grant %v", len(got), len(want), revoke, grant)
		}
		access, err := s.gk.Rules(s.t.Context(), "dsm_access")
		if err != nil || len(access) != 3 {
			t.Errorf("access rules %v, %v", access, err)
		}
		if _, err := s.gk.Rules(s.t.Context(), "nonsense"); err == nil {
			t.Error("a table that does not exist has rules")
		}
	})
}
