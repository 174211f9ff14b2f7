package gatekeeper

import (
	"context"
	"net/netip"
	"testing"

	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// TestKin: nodes of one deployment are kin, and those that somebody has started by hand if one user has done so on one blade.
func TestKin(t *testing.T) {
	b1, b2 := &blade{hello: control.Hello{Blade: "b1"}}, &blade{hello: control.Hello{Blade: "b2"}}
	app, sameApp := &node{blade: b1, instance: "app/server/1", user: 7}, &node{blade: b2, instance: "app/client/2", user: 8}
	other, hand := &node{blade: b1, instance: "other/server/1", user: 7}, &node{blade: b1, name: "app", user: 7}
	beside, foreign, remote := &node{blade: b1, name: "y", user: 7}, &node{blade: b1, name: "app", user: 8}, &node{blade: b2, name: "app", user: 7}
	for _, c := range []struct {
		what       string
		a, b       *node
		kin, shown bool // shown is with ShareExports
	}{
		{"one deployment's", app, sameApp, true, true},
		{"two deployments'", app, other, false, false},
		{"a deployment's, and one by hand", app, hand, false, false},
		{"one user's by hand", hand, beside, true, true},
		{"two users' by hand", hand, foreign, false, true},
		{"by hand on two blades", hand, remote, false, true},
	} {
		for _, shares := range []bool{false, true} {
			k := &population{shareExports: shares}
			want := c.kin
			if shares {
				want = c.shown
			}
			if k.kin(c.a, c.b) != want || k.kin(c.b, c.a) != want {
				t.Errorf("%s, sharing exports %v: kin %v, want %v", c.what, shares, !want, want)
			}
		}
	}
}

// TestSharing_Asked: a node asks for itself only. Of a caller that is not there it hears that it is none of its own; what an
// operator has said of the method counts all the same.
func TestSharing_Asked(t *testing.T) {
	withLedgers(t, func(r *rack, c1, m1 *testBlade) {
		m1.hello("m1", control.Memory)
		n := c1.joined("c1")
		if err := (&testNode{testBlade: c1, address: n.Address, incarnation: 1}).export("S", "add"); err != nil {
			t.Fatal(err)
		}
		ask := func(q control.Sharing) (a control.SharingReply) {
			t.Helper()
			q.Service, q.Method = "S", "add"
			if err := c1.ask(control.KindSharing, q, &a); err != nil {
				t.Error(err)
			}
			return a
		}
		nobody := netip.MustParseAddr("fd00:b1f0:0:2::77")
		if err := c1.ask(control.KindSharing, control.Sharing{Node: nobody, Incarnation: 1, Caller: n.Address}, nil); err == nil {
			t.Error("a blade asks for a node that it has not")
		}
		if err := m1.ask(control.KindSharing, control.Sharing{Node: n.Address, Incarnation: 1, Caller: n.Address}, nil); fault.CodeOf(err) == fault.OK {
			t.Error("a blade asks for another's node")
		}
		if a := ask(control.Sharing{Node: n.Address, Incarnation: 1, Caller: n.Address}); !a.Kin || a.Declared {
			t.Errorf("itself: %+v", a)
		}
		if a := ask(control.Sharing{Node: n.Address, Incarnation: 1, Caller: nobody}); a.Kin || a.Declared {
			t.Errorf("nobody: %+v", a)
		}
		for policy, want := range map[string]bool{"tainted": true, "fate-share": true, "recover": false, "none": false} {
			if err := r.gk.SetPolicy(context.Background(), "S", "add", resources.Word{Policy: policy}); err != nil {
				t.Fatal(err)
			}
			if a := ask(control.Sharing{Node: n.Address, Incarnation: 1, Caller: nobody}); a.Kin || a.Declared != want {
				t.Errorf("policy %s: %+v", policy, a)
			}
		}
	})
}
