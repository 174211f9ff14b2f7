package rpc

import (
	"net/netip"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
)

// servingAt is what is known of a service of so many nodes, in their first incarnations.
func servingAt(nodes uint64) *serving {
	var list control.ServingList
	for n := range nodes {
		list.Nodes, list.Incarnations = append(list.Nodes, rackaddr.Node(1+n)), append(list.Incarnations, 1)
	}
	k := new(serving)
	k.takes(list, 0, 0)
	return k
}

// spread makes so many calls, each answered at once after the time that its node takes, and returns how many each node got.
func (k *serving) spread(t *testing.T, calls int, now time.Duration, takes map[netip.Addr]time.Duration) map[netip.Addr]int {
	t.Helper()
	got := map[netip.Addr]int{}
	for range calls {
		to, ok := k.choose(now, true)
		if !ok || to.incarnation != 1 {
			t.Fatalf("chosen: %v, incarnation %d", ok, to.incarnation)
		}
		got[to.node]++
		to.answered(now, takes[to.node], OK)
		to.over()
	}
	return got
}

// TestServers: calls alternate between the nodes of a service. A node that is slow, busy or overloaded gets fewer, and is tried again
// after a while. One that has refused a call since it closes gets none.
func TestServers(t *testing.T) {
	a, b, c := rackaddr.Node(1), rackaddr.Node(2), rackaddr.Node(3)
	at := func(now time.Duration) time.Duration { return time.Hour + now }
	if got := servingAt(3).spread(t, 30, at(0), nil); got[a] != 10 || got[b] != 10 || got[c] != 10 {
		t.Errorf("of 30 calls: %v", got)
	}
	k := servingAt(3)
	slow := map[netip.Addr]time.Duration{a: 100 * time.Millisecond}
	if got := k.spread(t, 90, at(0), slow); got[a] > 5 || got[b]+got[c] < 85 {
		t.Errorf("one is slow: %v", got)
	}
	if got := k.spread(t, 3, at(avoidFor), slow); got[a] != 1 {
		t.Errorf("it is tried again: %v", got)
	}
	k = servingAt(2)
	for range 4 {
		k.standings[a].out.Add(1)
	}
	if got := k.spread(t, 10, at(0), nil); got[a] != 0 {
		t.Errorf("one is busy: %v", got)
	}
	k = servingAt(2)
	k.standings[a].answered(at(0), 0, Overloaded)
	if got := k.spread(t, 10, at(avoidFor-1), nil); got[a] != 0 {
		t.Errorf("one is overloaded: %v", got)
	}
	if got := k.spread(t, 10, at(avoidFor), nil); got[a] != 5 {
		t.Errorf("it was overloaded: %v", got)
	}
	k = servingAt(2)
	k.standings[a].refused = at(0)
	if got := k.spread(t, 10, at(servingLifetime-1), nil); got[a] != 0 {
		t.Errorf("one closes: %v", got)
	}
	k.standings[b].refused = at(0)
	if to, ok := k.choose(at(1), true); ok {
		t.Errorf("all close: %v", to.node)
	}
	k.takes(k.list, at(1), at(servingPauses.First+1)) // the rack says that they serve
	if got := k.spread(t, 10, at(servingPauses.First+2), nil); got[a] != 5 || got[b] != 5 {
		t.Errorf("they are back: %v", got)
	}
	k.list.Awaited = true
	if to, ok := k.choose(at(time.Second), true); ok {
		t.Errorf("a call of policy none waits at %v, which is to come back", to.node)
	}
	if _, ok := k.choose(at(time.Second), false); !ok {
		t.Error("an exactly-once call does not wait there")
	}
}
