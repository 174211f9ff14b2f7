package gatekeeper

import (
	"net/netip"
	"testing"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
)

// A Gatekeeper that began after a join takes a late copy of it for a new one. The
// blade's next heartbeat tells that nobody is there; not so what is about to begin or to
// leave, and what the heartbeat is too old to know.
func TestHeartbeat_Ghosts(t *testing.T) {
	for name, c := range map[string]struct {
		beat  control.Heartbeat
		ghost bool
	}{
		"nobody is there":        {control.Heartbeat{Token: 1}, true},
		"there is":               {control.Heartbeat{Token: 1, Nodes: []netip.Addr{rackaddr.Node(1)}, Incarnations: []uint32{1}}, false},
		"in another incarnation": {control.Heartbeat{Token: 1, Nodes: []netip.Addr{rackaddr.Node(1)}, Incarnations: []uint32{2}}, true},
		"it is about to":         {control.Heartbeat{Token: 1, Unsettled: []uint64{1}}, false},
		"an old heartbeat":       {control.Heartbeat{}, false},
		"another daemon's":       {control.Heartbeat{Token: 1, Boot: 1000}, false},
	} {
		inSmall(t, func(s *small) {
			if s.a.address != rackaddr.Node(1) {
				t.Fatalf("the node is %s", s.a.address)
			}
			c.beat.Blade, c.beat.Boot = "c1", c.beat.Boot+s.a.boot
			if err := s.a.ask(control.KindHeartbeat, c.beat, nil); err != nil {
				t.Fatal(err)
			}
			s.m1.converse() // the fence
			if left := len(s.snapshot().Nodes) == 2; left != c.ghost {
				t.Errorf("%s: nodes %+v", name, s.snapshot().Nodes)
			}
		})
	}
}
