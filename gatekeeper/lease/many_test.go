package lease

import (
	"testing"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// A call with as many regions as a message names, each by two pointers, lends
// each region once.
func TestCall_ManyPointers(t *testing.T) {
	m := New()
	a, b := nodeOf("A"), nodeOf("B")
	m.AddNode(a)
	m.AddNode(b)
	var ps []dsmpacket.Pointer
	for i := range rpcpacket.MaxRegions {
		r := dsmpacket.Region{Base: dsmpacket.Make(16, 1, dsmpacket.IDOf(uint32(i+1), 1)), Class: 12}
		drain(m, m.Submit(Alloc{a, r}, nil))
		ps = append(ps, r.Base, r.Base.Add(64))
	}
	steps := m.Submit(Call{ID: CallID{1}, Caller: a, Callee: b, Pointers: ps}, "tag")
	if len(steps) != 1 || steps[0].Tag != "tag" || len(steps[0].Grant) != rpcpacket.MaxRegions || len(steps[0].Revoke) != 2*rpcpacket.MaxRegions {
		t.Fatalf("%d steps, the first grants %d and revokes %d", len(steps), len(steps[0].Grant), len(steps[0].Revoke))
	}
	drain(m, steps)
	if held := m.LeasesOf(b); len(held) != rpcpacket.MaxRegions || len(m.LeasesOf(a)) != 0 {
		t.Errorf("b holds %d leases", len(held))
	}
	if r, ok := m.Find(ps[3]); !ok || len(r.Leases) != 1 || r.Leases[0] != (Lease{CallID{1}, b}) || r.Controller != a {
		t.Errorf("found %+v, %v", r, ok)
	}
	drain(m, m.Submit(Reply{ID: CallID{1}, Caller: a, Callee: b}, nil))
	if m.LeasesOf(b) != nil || m.Pending() != 0 {
		t.Errorf("b holds %v", m.LeasesOf(b))
	}
}
