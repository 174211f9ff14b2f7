package gatekeeper

import (
	"context"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// asked has somebody ask the Gatekeeper, while the memory blade answers its questions.
func asked[T any](s *small, ask func(context.Context) (T, error)) (v T) {
	s.t.Helper()
	done := make(chan error, 1)
	go func() {
		var err error
		v, err = ask(s.t.Context())
		done <- err
	}()
	for {
		s.m1.converse()
		select {
		case err := <-done:
			if err != nil {
				s.t.Fatal(err)
			}
			return v
		case <-time.After(time.Millisecond):
		}
	}
}

// TestSurvey: people see all regions that memory has, with those who own them and the calls that they are lent to.
func TestSurvey(t *testing.T) {
	inLogged(t, func(s *small) {
		p, q, r := s.allocates(s.a, 0, 1), s.allocates(s.a, 1, 1), s.allocates(s.b, 0, 1)
		s.a.sends(rpcpacket.Call, s.b, 0, 2, p)
		s.b.arrives("a call", 1)
		s.b.sends(rpcpacket.Oneway, s.c, 0, 2, r)
		s.c.arrives("a one-way", 1)
		unknown := dsmpacket.IDOf(q.ID().Slot()+1, 5)
		for _, of := range []struct {
			id    dsmpacket.RegionID
			maker netip.Addr
		}{{p.ID(), s.a.address}, {q.ID(), s.a.address}, {unknown, s.a.address}, {r.ID(), s.b.address}} {
			s.m1.regions = append(s.m1.regions, control.RegionID{ID: of.id, Class: 12, Owner: of.maker})
		}
		snap := asked(s, s.gk.Snapshot)
		want := map[netip.Addr]int{s.a.address: 2, {}: 1, s.c.address: 1}
		got := map[netip.Addr]int{}
		for _, r := range snap.Regions {
			got[r.Controller]++
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("regions by controllers: %v, want %v", got, want)
		}
		of := func(q RegionQuery) int {
			t.Helper()
			q.Limit = 10
			return len(asked(s, func(ctx context.Context) ([]RegionState, error) {
				page, err := s.gk.Regions(ctx, q)
				return page.Regions, err
			}))
		}
		if a, b, c := of(RegionQuery{Node: s.a.address}), of(RegionQuery{Node: s.b.address}), of(RegionQuery{Node: s.c.address}); a != 3 || b != 2 || c != 1 {
			t.Errorf("%d, %d, %d regions have to do with the nodes", a, b, c)
		}
		if n, after := of(RegionQuery{Pointer: p}), of(RegionQuery{After: p}); n != 1 || after != 3 {
			t.Errorf("%d and %d regions", n, after)
		}
		held := asked(s, func(ctx context.Context) (Holders, error) { return s.gk.Holders(ctx, p.Add(8)) })
		if held.Region.Controller != s.a.address || len(held.Region.Leases) != 1 || held.Region.Leases[0].Node != s.b.address {
			t.Errorf("%+v", held)
		}
		o := asked(s, s.gk.Overview)
		if o.RegionCount != 4 || o.CallCount != 2 || len(o.Missing) != 0 {
			t.Errorf("%d regions, %d calls, no answer from %q", o.RegionCount, o.CallCount, o.Missing)
		}
		s.m1.mute = true
		if snap := asked(s, s.gk.Snapshot); len(snap.Regions) != 0 || time.Since(snap.Time) > time.Second {
			t.Errorf("%d regions of a memory blade that does not answer", len(snap.Regions))
		}
		page := asked(s, func(ctx context.Context) (RegionPage, error) { return s.gk.Regions(ctx, RegionQuery{Limit: 10}) })
		o = asked(s, s.gk.Overview)
		if want := []string{"m1"}; !slices.Equal(page.Missing, want) || !slices.Equal(o.Missing, want) {
			t.Errorf("no answer from %q, and %q; want %q", page.Missing, o.Missing, want)
		}
		if err := asked(s, func(ctx context.Context) (error, error) { _, err := s.gk.Holders(ctx, p); return err, nil }); fault.CodeOf(err) != fault.Unavailable || !strings.Contains(err.Error(), "m1") {
			t.Errorf("who has a pointer that is not listed: %v", err)
		}
		if err := asked(s, func(ctx context.Context) (error, error) { _, err := s.gk.FreeRegion(ctx, p); return err, nil }); fault.CodeOf(err) != fault.Unavailable {
			t.Errorf("freeing a region that is not listed: %v", err)
		}
		slots := func(ctx context.Context) (SlotPage, error) { return s.gk.Slots(ctx, SlotQuery{Limit: 10}) }
		domain := func(blade string) []string {
			return asked(s, func(ctx context.Context) (FailureDomain, error) { return s.gk.FailureDomain(ctx, blade) }).Missing
		}
		if page := asked(s, slots); len(page.Missing) != 0 {
			t.Errorf("no answer from %q about slots: the switch has them all", page.Missing)
		}
		if m1, compute := domain("m1"), domain(s.a.name); !slices.Equal(m1, []string{"m1"}) || len(compute) != 0 {
			t.Errorf("what fails with m1 is not known from %q, with a compute blade from %q", m1, compute)
		}
		s.restartSwitch(func() {
			if page := asked(s, slots); !slices.Equal(page.Missing, []string{"switch"}) {
				t.Errorf("without a switch no answer from %q", page.Missing)
			}
			if m1, compute := domain("m1"), domain(s.a.name); !slices.Equal(m1, []string{"switch", "m1"}) || len(compute) != 0 {
				t.Errorf("without a switch, what fails with m1 is not known from %q, with a compute blade from %q", m1, compute)
			}
			none := func(ctx context.Context) (error, error) { _, err := s.gk.CancelSlot(ctx, 777); return err, nil }
			if err := asked(s, none); fault.CodeOf(err) != fault.Unavailable {
				t.Errorf("ending what has a slot of which nothing is known: %v", err)
			}
		})
	})
}

// TestSurvey_Outdated: without a switch nobody is asked for regions. What people see is from before, says so, and does not pass for all that there is.
func TestSurvey_Outdated(t *testing.T) {
	inLogged(t, func(s *small) {
		p, q := s.allocates(s.a, 0, 1), s.allocates(s.a, 1, 1)
		s.m1.regions = []control.RegionID{{ID: p.ID(), Class: 12, Owner: s.a.address}}
		asked(s, s.gk.Snapshot)
		s.m1.regions = append(s.m1.regions, control.RegionID{ID: q.ID(), Class: 12, Owner: s.a.address})
		s.restartSwitch(func() {
			if o := asked(s, s.gk.Overview); o.RegionCount != 1 || !slices.Equal(o.Missing, []string{"switch", "m1"}) {
				t.Errorf("%d regions, no answer from %q", o.RegionCount, o.Missing)
			}
			if err := asked(s, func(ctx context.Context) (error, error) { _, err := s.gk.Holders(ctx, q); return err, nil }); fault.CodeOf(err) != fault.Unavailable {
				t.Errorf("who has a pointer to a region that was made since: %v", err)
			}
			if err := asked(s, func(ctx context.Context) (error, error) { _, err := s.gk.FreeRegion(ctx, q); return err, nil }); fault.CodeOf(err) != fault.Unavailable {
				t.Errorf("freeing a region that was made since: %v", err)
			}
		})
	})
}

// TestSurvey_Slow: a survey that goes on is not given up, however long it takes.
func TestSurvey_Slow(t *testing.T) {
	inLogged(t, func(s *small) {
		p := s.allocates(s.a, 0, 1)
		for slot := range uint32(7) {
			s.m1.regions = append(s.m1.regions, control.RegionID{ID: dsmpacket.IDOf(p.ID().Slot()+slot, 1), Class: 12, Owner: s.a.address})
		}
		s.m1.listing = surveyPatience * 7 / 10
		if snap := asked(s, s.gk.Snapshot); len(snap.Regions) != len(s.m1.regions) {
			t.Errorf("%d regions, want %d", len(snap.Regions), len(s.m1.regions))
		}
	})
}

// seizes takes a region from a node, as the Gatekeeper does at the node's end.
func (s *small) seizes(n *testNode, p dsmpacket.Pointer) {
	s.t.Helper()
	e := &ending{node: &node{row: n.row}, step: endSeizing, strokes: strokesOf([]handOp{{kind: handSeize, regions: []dsmpacket.RegionID{p.ID()}, owner: n.row}})}
	e.asks = true // it goes no further
	if err := s.gk.query(s.t.Context(), func(c *controller) error { c.hand.begin(e); c.reach(); return nil }); err != nil {
		s.t.Fatal(err)
	}
	s.settle()
	if e.open != 0 {
		s.t.Fatal("a region was not seized")
	}
}

// TestAudit: what memory has and nobody owns is freed within a minute: what was seized by a Gatekeeper that was killed before it had it freed, and what
// a node that is gone has allocated and never heard of. What somebody owns, or may yet hear of, stays.
func TestAudit(t *testing.T) {
	inLogged(t, func(s *small) {
		kept, seized := s.allocates(s.a, 0, 1), s.allocates(s.a, 1, 1)
		at := func(slot uint32) dsmpacket.RegionID { return dsmpacket.IDOf(kept.ID().Slot()+slot, 2) }
		s.m1.regions = []control.RegionID{
			{ID: kept.ID(), Class: 12, Owner: s.a.address}, {ID: seized.ID(), Class: 12, Owner: s.a.address},
			{ID: at(5), Class: 12, Owner: s.a.address}, {ID: at(6), Class: 12, Owner: rackaddr.Node(999)},
			{ID: at(7), Class: 12, Owner: rackaddr.Node(999), Execution: control.ExecutionID{1}},
		}
		s.seizes(s.a, seized)
		for range 70 {
			s.lives(time.Second)
			s.m1.converse()
		}
		base := func(id dsmpacket.RegionID) dsmpacket.Pointer { return dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, id) }
		if !s.m1.freed(seized) || !s.m1.freed(base(at(6))) {
			t.Errorf("freed: %+v", s.m1.reclaimed)
		}
		if s.m1.freed(kept) || s.m1.freed(base(at(5))) || s.m1.freed(base(at(7))) {
			t.Errorf("freed what is somebody's: %+v", s.m1.reclaimed)
		}
	})
}

// TestAudit_Unowned: what an audit frees, by the region's word and by the node that has allocated it.
func TestAudit_Unowned(t *testing.T) {
	s := newSolo(t)
	id, gone, rests := dsmpacket.IDOf(64, 2), rackaddr.Node(99), rackaddr.Node(98)
	s.resting = []resting{{node: &node{address: rests}}}
	for what, c := range map[string]struct {
		word  word
		maker netip.Addr
		free  bool
	}{
		"seized":                                 {word{region: id}, gone, true},
		"seized, and lent":                       {word{region: id, lent: 1}, gone, false},
		"owned":                                  {word{region: id, owner: 1}, gone, false},
		"frozen":                                 {word{region: id, owner: frozen}, gone, false},
		"never heard of":                         {word{region: id - 1, owner: 1}, gone, true},
		"it may be heard of":                     {word{region: id - 1, owner: 1}, rackaddr.Node(1), false},
		"what a node that rests never heard of":  {word{region: id - 1, owner: 1}, rests, false},
		"the slot has its next region meanwhile": {word{region: id + 1}, gone, false},
	} {
		v := &survey{reading: reading{words: []word{c.word}}, made: []control.RegionID{{ID: id, Class: 12, Owner: c.maker}}, at: []uint8{1}}
		if free := s.unowned(v); len(free) > 0 != c.free {
			t.Errorf("%s: %v are freed", what, free)
		}
	}
}

// TestAudit_GoesMeanwhile: a survey reads a word, and then a node allocates its region, which another one gets, and is gone before the survey ends. The
// region is not freed. If nobody got it, the next audit frees it.
func TestAudit_GoesMeanwhile(t *testing.T) {
	inLogged(t, func(s *small) {
		p := s.allocates(s.a, 0, 1)
		for slot := range uint32(10) {
			s.m1.regions = append(s.m1.regions, control.RegionID{ID: dsmpacket.IDOf(p.ID().Slot()+slot, 1), Class: 12, Owner: s.b.address})
		}
		made := dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, s.m1.regions[9].ID)
		s.lives(100 * time.Millisecond)
		s.m1.listing = surveyPatience * 55 / 100
		snap := asked(s, func(ctx context.Context) (Snapshot, error) {
			go func() {
				<-time.After(surveyPatience / 10)
				s.b.leave()
			}()
			return s.gk.Snapshot(ctx)
		})
		if n, rests := len(snap.Nodes), restingNodes(s); n != 2 || rests != 0 || len(snap.Regions) != len(s.m1.regions) {
			t.Fatalf("%d nodes, %d that rest, %d regions: the node has not gone during the survey", n, rests, len(snap.Regions))
		}
		s.m1.listing = 0
		if s.m1.freed(made) {
			t.Error("freed what somebody may own")
		}
		for range 70 {
			s.lives(time.Second)
			s.m1.converse()
		}
		if !s.m1.freed(made) {
			t.Error("what nobody owns is not freed")
		}
	})
}

// restingNodes is how many nodes rest.
func restingNodes(s *small) (n int) {
	s.t.Helper()
	if err := s.gk.query(s.t.Context(), func(c *controller) error { n = len(c.resting); return nil }); err != nil {
		s.t.Fatal(err)
	}
	return n
}
