package gatekeeper

import (
	"cmp"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/bifrost-rack/bifrost/dsm/packet"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	rpc "github.com/bifrost-rack/bifrost/rpc/packet"
	"pgregory.net/rapid"
)

func TestLowest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := rapid.SliceOf(rapid.IntRange(-50, 50)).Draw(t, "in")
		limit := rapid.IntRange(0, 20).Draw(t, "limit")
		l := lowest[int]{limit: limit, compare: cmp.Compare[int]}
		for _, v := range in {
			l.add(v)
		}
		want := slices.Sorted(slices.Values(in))
		want = want[:min(limit, len(want))]
		if got := l.sorted(); !slices.Equal(got, want) || l.dropped != (len(in) > limit) {
			t.Fatalf("the lowest %d of %v are %v, dropped %v", limit, in, got, l.dropped)
		}
	})
}

// Pages put together are the whole list, and filters choose from it.
func TestRegions_Pages(t *testing.T) {
	inSmall(t, func(s *small) {
		for k := range uint64(7) {
			s.m1.alloc([]*testNode{s.a, s.b}[k%2], 1, k+1)
		}
		lent := packet.Make(rackaddr.DefaultDSMPrefix, 1, 1<<12)
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
			q.After = packet.Make(rackaddr.DefaultDSMPrefix, 1, uint64(len(got))<<12)
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
		var calls []rpc.Message
		for range 5 {
			m := s.a.message("Arrays", "add", p)
			m.Floor = 1 // nothing is settled
			s.a.call("Arrays", m)
			calls = append(calls, s.b.message1())
		}
		s.b.reply(s.a.address, &calls[1])
		synctest.Wait()
		ctx := s.t.Context()
		under, _, err := s.gk.Calls(ctx, CallQuery{Limit: 9})
		if err != nil || len(under) != 4 {
			t.Fatalf("under way: %+v, %v", under, err)
		}
		first, more, _ := s.gk.Calls(ctx, CallQuery{Finished: true, Limit: 3})
		rest, end, _ := s.gk.Calls(ctx, CallQuery{Finished: true, Limit: 3, After: calls[2].Call})
		if !more || end || len(first) != 3 || len(rest) != 2 || first[1].Stage != "finished" {
			t.Errorf("pages %+v and %+v", first, rest)
		}
		one, _, _ := s.gk.Calls(ctx, CallQuery{ID: calls[3].Call, Limit: 1})
		if len(one) != 1 || one[0].Call != calls[3].Call.String() || one[0].Callee != s.b.address {
			t.Errorf("call %s is %+v", calls[3].Call, one)
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
