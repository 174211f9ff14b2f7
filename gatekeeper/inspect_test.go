package gatekeeper

import (
	"slices"
	"testing"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
)

// Pages put together are the whole list, and filters choose from it.
func TestRegions_Pages(t *testing.T) {
	inSmall(t, func(s *small) {
		for k := range uint64(7) {
			s.m1.alloc([]*testNode{s.a, s.b}[k%2], 1, k+1)
		}
		lent := dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, dsmpacket.IDOf(1, 1))
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
			q.After = dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, dsmpacket.IDOf(uint32(len(got)), 1))
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
