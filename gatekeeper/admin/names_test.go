package admin

import (
	"testing"

	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
)

// The names of nodes outlive other events, and those of a former run of the Gatekeeper come behind those of this one.
func TestNames(t *testing.T) {
	h := &hub{boot: "b"}
	join := func(n uint64, blade, name string) gatekeeper.Event {
		return gatekeeper.Event{Seq: n, Kind: gatekeeper.NodeJoined, Node: rackaddr.Node(n), Blade: blade, Name: name}
	}
	h.add(join(1, "s1", "first"))
	for n := range uint64(kept + 10) {
		h.add(gatekeeper.Event{Seq: n + 2, Kind: gatekeeper.CallRefused})
	}
	h.recall([]gatekeeper.Event{join(1, "s9", "former"), join(2, "s2", "second")})
	for n, want := range map[uint64]string{1: "s1/first", 2: "s2/second", 3: "/"} {
		k := h.names[rackaddr.Node(n)]
		if got := k.Blade + "/" + k.Name; got != want {
			t.Errorf("node %d is %s, want %s", n, got, want)
		}
	}
	for n := range uint64(maxNames) {
		h.learn(&gatekeeper.Event{Kind: gatekeeper.NodeJoined, Node: rackaddr.Node(n + 10), Name: "more"}, false)
	}
	if len(h.names) != maxNames || len(h.order) != maxNames || h.names[rackaddr.Node(1)].Name != "" {
		t.Errorf("%d names, %d in order, and still %q", len(h.names), len(h.order), h.names[rackaddr.Node(1)].Name)
	}
}

// Each part of a filter selects by itself.
func TestEventFilter(t *testing.T) {
	e := &gatekeeper.Event{Kind: gatekeeper.ProgramFailed, Blade: "s1", Node: rackaddr.Node(1), Peer: rackaddr.Node(2), Service: "S", Name: "shop/arrays/1"}
	for name, tc := range map[string]struct {
		f    EventFilter
		want bool
	}{
		"all": {EventFilter{}, true}, "kind": {EventFilter{Kinds: []string{"program.failed"}}, true}, "other kind": {EventFilter{Kinds: []string{"x"}}, false},
		"blade": {EventFilter{Blade: "s1"}, true}, "other blade": {EventFilter{Blade: "s"}, false},
		"node": {EventFilter{Node: rackaddr.Node(1)}, true}, "peer": {EventFilter{Node: rackaddr.Node(2)}, true}, "other node": {EventFilter{Node: rackaddr.Node(3)}, false},
		"service": {EventFilter{Service: "S"}, true}, "other service": {EventFilter{Service: "T"}, false},
		"app": {EventFilter{App: "shop"}, true}, "program": {EventFilter{App: "shop/arrays"}, true}, "instance": {EventFilter{App: "shop/arrays/1"}, true},
		"other app": {EventFilter{App: "sho"}, false}, "other instance": {EventFilter{App: "shop/arrays/11"}, false},
	} {
		if got := tc.f.takes(e); got != tc.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
