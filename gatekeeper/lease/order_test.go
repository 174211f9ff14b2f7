package lease

import (
	"bytes"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
)

// Whatever comes and goes, After yields what is there behind an address, in order.
func TestAfter(t *testing.T) {
	node := netip.MustParseAddr("fd00::1")
	rapid.Check(t, func(t *rapid.T) {
		m := New()
		m.AddNode(node)
		do := func(steps []Step) {
			for _, s := range steps {
				m.Done(s.ID)
			}
		}
		base := func(n int) dsmpacket.Pointer { return dsmpacket.Make(0x10, uint8(1+n%3), dsmpacket.IDOf(uint32(n), 1)) }
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			r := dsmpacket.Region{Base: base(rapid.IntRange(1, 40).Draw(t, "n")), Class: 6}
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0, 1:
				do(m.Submit(Alloc{Node: node, Region: r}, nil))
			case 2:
				do(m.Submit(Lost{r}, nil))
			case 3:
				m.Adopt(Region{Region: r, Owner: node, Controller: node})
			}
		}
		from := base(rapid.IntRange(0, 41).Draw(t, "from"))
		var want []dsmpacket.Region
		for r := range m.Regions() {
			if bytes.Compare(r.Region.Base[:], from[:]) > 0 {
				want = append(want, r.Region)
			}
		}
		slices.SortFunc(want, func(a, b dsmpacket.Region) int { return bytes.Compare(a.Base[:], b.Base[:]) })
		var got []dsmpacket.Region
		for r := range m.After(from) {
			got = append(got, r.Region)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("behind %s are %v, want %v", from, got, want)
		}
	})
}
