package gatekeeper

import (
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// rebuilds is a rebuilding that has come to a step. All nodes were up.
func (s *solo) rebuilds(step rebuildStep) *rebuild {
	r := &rebuild{
		id: 7, step: step, up: map[*node]bool{}, asked: map[netip.Addr]uint32{}, accounts: map[netip.Addr]*nodeAccount{}, silent: map[netip.Addr]bool{},
		live: map[dsmpacket.RegionID]uint8{},
	}
	for _, n := range s.withRights() {
		r.up[n], r.asked[n.address] = true, n.incarnation
	}
	s.rebuild = r
	return r
}

// TestRebuild_Account: a node has given its account when all pages of the one that was asked for have come, each once.
func TestRebuild_Account(t *testing.T) {
	s := newSolo(t)
	r, n := s.rebuilds(rebuildAsks), s.nodes[rackaddr.Node(1)]
	page := func(rebuild uint64, number int, last bool, regions ...uint32) {
		a := control.AccountPage{Node: n.address, Incarnation: n.incarnation, Rebuild: rebuild, Page: number, Last: last}
		for _, slot := range regions {
			a.Regions = append(a.Regions, rpcpacket.RegionOf(dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, dsmpacket.IDOf(slot, 1))))
		}
		s.ask(t, 1, control.KindAccount, a)
	}
	page(r.id-1, 0, true, 99)
	page(r.id, 0, false, 64)
	page(r.id, 0, false, 64)
	page(r.id, 2, true, 66)
	if r.accountOf(n) != nil {
		t.Fatal("half an account counts")
	}
	page(r.id, 1, true, 65)
	a := r.accountOf(n)
	if a == nil {
		t.Fatal("the node has given no account")
	}
	if got, want := idsOf(a.Regions), []dsmpacket.RegionID{dsmpacket.IDOf(64, 1), dsmpacket.IDOf(65, 1)}; !slices.Equal(got, want) {
		t.Errorf("it has regions %v, want %v", got, want)
	}
}

// TestRebuild_Silent: nobody knows the rights of a node that was up and gives no account, or was down, and has none on the log.
func TestRebuild_Silent(t *testing.T) {
	for what, c := range map[string]struct {
		was    func(r *rebuild, n *node)
		silent bool
	}{
		"it gives no account": {func(*rebuild, *node) {}, true},
		"it gives an account": {func(r *rebuild, n *node) {
			r.accounts[n.address] = &nodeAccount{incarnation: n.incarnation, whole: true}
		}, false},
		"a former one has given an account": {func(r *rebuild, n *node) {
			r.accounts[n.address] = &nodeAccount{incarnation: n.incarnation - 1, whole: true}
		}, true},
		"it was down":                           {func(r *rebuild, n *node) { r.up[n], n.gone = false, true }, true},
		"it was down, and its rights are known": {func(r *rebuild, n *node) { r.up[n], n.gone, n.image = false, true, new(image) }, false},
		"it has joined since":                   {func(r *rebuild, n *node) { r.up[n] = false }, false},
		"it has joined again since":             {func(r *rebuild, n *node) { r.up[n], n.before = false, 1 }, true},
		"it has joined again, and all is known": {func(r *rebuild, n *node) { r.up[n], n.before, n.image = false, 1, new(image) }, false},
	} {
		s := newSolo(t)
		r, n := s.rebuilds(rebuildAsks), s.nodes[rackaddr.Node(1)]
		c.was(r, n)
		s.accountsOver(r)
		if r.silent[n.address] != c.silent {
			t.Errorf("%s: silent are %v", what, slices.Collect(maps.Keys(r.silent)))
		}
	}
}

// TestRebuild_Passes: packets may pass when all registers are written, and that was answered.
func TestRebuild_Passes(t *testing.T) {
	s := newSolo(t)
	r := s.rebuilds(rebuildWrites)
	r.strokes = strokesOf([]handOp{{kind: handSetWord}, {kind: handSetSlot}})
	for range 2 {
		if s.goOnRebuild(r); r.step != rebuildWrites {
			t.Errorf("step %d, and %d registers are to be written", r.step, r.open)
		}
		r.took(handOp{}, nil)
	}
	if s.goOnRebuild(r); r.step != rebuildOver || len(r.ops) != 1 || r.ops[0].kind != handRebuilt {
		t.Errorf("all is written, and it is at step %d with %+v", r.step, r.ops)
	}
	if s.goOnRebuild(r); s.rebuild != r {
		t.Error("it is over before the switch has said so")
	}
	r.took(handOp{}, nil)
	if s.goOnRebuild(r); s.rebuild != nil {
		t.Error("it is not over")
	}
}

// TestRebuild_LostAgain: the switch loses its registers again. What nodes have said counts still while packets cannot have passed since; once the switch
// was told to let them pass, all is asked anew.
func TestRebuild_LostAgain(t *testing.T) {
	for step, anew := range map[rebuildStep]bool{rebuildWaits: false, rebuildAsks: false, rebuildLists: false, rebuildWrites: false, rebuildOver: true} {
		s := newSolo(t)
		r := s.rebuilds(step)
		r.strokes = strokesOf([]handOp{{kind: handRebuilt}})
		s.hand.begin(r)
		s.registersLost()
		switch got := s.rebuild; {
		case (got != r) != anew:
			t.Errorf("at step %d: it begins anew: %v, want %v", step, got != r, anew)
		case anew && (got.id == r.id || got.step != rebuildWaits || !got.up[s.nodes[rackaddr.Node(1)]] || slices.Contains(s.hand.jobs, handJob(r))):
			t.Errorf("at step %d: it goes on with %+v", step, got)
		}
	}
}

// TestRebuild_AsksAll: every node is asked, also on a blade that has more than there may be requests under way.
func TestRebuild_AsksAll(t *testing.T) {
	s := newSolo(t)
	for token := range uint64(control.Window + 10) {
		s.ask(t, 1, control.KindJoin, control.Join{Blade: "c1", Name: "program", Token: token + 2})
	}
	r := s.rebuilds(rebuildWaits)
	s.askAccounts(r)
	asked := 0
	for _, b := range s.blades {
		for _, m := range b.commands {
			if m.kind == control.KindGiveAccount {
				asked++
			}
		}
	}
	if want := control.Window + 12; asked != want || len(r.asked) != want {
		t.Errorf("%d nodes are asked or to be asked, and %d awaited, want %d", asked, len(r.asked), want)
	}
}

// TestRebuild_HeldBack: a question to nodes that has waited for the log begins to count when it leaves; one that had left before has its time.
func TestRebuild_HeldBack(t *testing.T) {
	for before, more := range map[time.Duration]bool{0: true, time.Second: false} {
		s := newSolo(t)
		r := s.rebuilds(rebuildAsks)
		since := s.now
		r.asking, r.due = since.Add(-before), since.Add(rebuildPatience-before)
		s.now = since.Add(10 * time.Second)
		s.heldBack(since)
		if got := r.due.After(s.now); got != more {
			t.Errorf("asked %v before what waited for the log: it has its time once more: %v", before, got)
		}
	}
}
