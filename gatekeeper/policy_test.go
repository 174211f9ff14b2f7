package gatekeeper

import (
	"slices"
	"testing"
	"testing/synctest"

	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// TestPolicies_OfExports: what a node says of its methods holds unless somebody else says something,
// also for the next Gatekeeper.
func TestPolicies_OfExports(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRack(t)
		r.settle, r.disk = synctest.Wait, new(wal.Disk)
		r.start(Config{})
		s := newSmall(r)
		e := control.Export{Node: s.c.address, Incarnation: s.c.incarnation, Service: "Third", Methods: []control.Method{
			{Name: "do", Policy: "tainted"}, {Name: "do.ref"}, {Name: "more", MaxFailures: new(0)},
		}}
		if err := s.c.ask(control.KindExport, e, nil); err != nil {
			t.Fatal(err)
		}
		want := []resources.MethodPolicy{
			{Service: "Arrays", Method: "add", Policy: rpcpacket.PolicyRecover, Origin: resources.Default},
			{Service: "Arrays", Method: "make", Policy: rpcpacket.PolicyRecover, Origin: resources.Default},
			{Service: "Third", Method: "do", Policy: rpcpacket.PolicyTainted, Origin: resources.Exported},
			{Service: "Third", Method: "more", Policy: rpcpacket.PolicyRecover, Origin: resources.Default, FailuresOrigin: resources.Exported},
		}
		for i := range want[:3] {
			want[i].MaxFailures, want[i].FailuresOrigin = rpcpacket.DefaultFailures, resources.Default
		}
		check := func(when string) {
			t.Helper()
			all, err := r.gk.Policies(t.Context())
			if err != nil || !slices.Equal(all, want) {
				t.Errorf("%s: %+v, %v; want %+v", when, all, err, want)
			}
			if p, err := r.gk.Policy(t.Context(), "Third", "do.ref"); err != nil || p != want[2] {
				t.Errorf("%s: by reference %+v, %v", when, p, err)
			}
		}
		check("exported")
		r.crash()
		r.start(Config{})
		check("after a restart")
	})
}
