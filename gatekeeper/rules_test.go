package gatekeeper

import (
	"fmt"
	"testing"

	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/p4"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"

	"pgregory.net/rapid"

	"github.com/bifrost-rack/bifrost/gatekeeper/p4rtclient"
)

// Every value goes to exactly one of n nodes, and the shares differ by one at most.
func TestSpreads(t *testing.T) {
	for n := 1; n <= 300; n++ {
		var owner [256]int
		share := map[int]int{}
		for i, prefixes := range spreads(n) {
			for _, p := range prefixes {
				if p.bits < 0 || p.bits > 8 || int(p.value)%(1<<(8-p.bits)) != 0 {
					t.Fatalf("%d nodes: %+v is no prefix", n, p)
				}
				for v := int(p.value); v < int(p.value)+1<<(8-p.bits); v++ {
					if owner[v] != 0 {
						t.Fatalf("%d nodes: %d goes to two", n, v)
					}
					owner[v] = i + 1
					share[i]++
				}
			}
		}
		for v, o := range owner {
			if o == 0 {
				t.Fatalf("%d nodes: %d goes nowhere", n, v)
			}
		}
		for i := range min(n, 256) {
			if share[i] < 256/n || share[i] > 256/n+1 {
				t.Fatalf("%d nodes: node %d has %d values", n, i, share[i])
			}
		}
	}
}

// Reconciling turns any table into the wanted one, deletions first.
func TestReconcile(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sw, wanted := table{}, base{}
		var found []entry
		keys := rapid.SliceOfDistinct(rapid.IntRange(0, 9), rapid.ID)
		for _, key := range keys.Draw(t, "found") {
			e := testEntry(key, rapid.IntRange(0, 1).Draw(t, "value"))
			found = append(found, e)
			_ = sw.write([]update{{Op: p4rtclient.Insert, Entry: e}})
		}
		for _, key := range keys.Draw(t, "wanted") {
			wanted.want(testEntry(key, rapid.IntRange(0, 1).Draw(t, "value")))
		}
		revoke, grant := reconcile(wanted, found)
		for _, p := range []phase{revoke, grant} {
			if err := sw.write(p); err != nil {
				t.Fatal(err)
			}
		}
		for k, e := range wanted {
			if sw[k] != fmt.Sprint(e.Params) {
				t.Fatalf("the switch has %s = %s", k, sw[k])
			}
		}
		if len(sw) != len(wanted) {
			t.Fatalf("the switch has %v, want %v", sw, wanted)
		}
	})
}

// Every entry that the Gatekeeper can make is one of the program's, and its key
// survives the way to the switch and back, which reconciling rests on.
func TestEntriesFitTheProgram(t *testing.T) {
	program, err := p4rtclient.ParseProgram(p4.Info, p4.JSON)
	if err != nil {
		t.Fatal(err)
	}
	c := newController(Config{DSMPrefix: rackaddr.DefaultDSMPrefix, Open: true})
	mac := frame.MAC{2, 0, 0, 0, 0, 1}
	for _, e := range []entry{
		identityEntry(3, host(rackaddr.Node(1)), p4.Node), identityEntry(3, c.machinePrefix(2), p4.MemoryServer), identityEntry(0, c.machinePrefix(0), p4.MemoryServer),
		l3Entry(host(rackaddr.Blade(1)), 511), homeEntry(c.machinePrefix(255), 1),
		routeEntry(rackaddr.Service("Arrays"), rpcpacket.Method{'a'}, spread{0x80, 1}, 2), routeEntry(rackaddr.Service("Arrays"), rpcpacket.Method{'a'}, spread{0, 0}, 2),
		hopEntry(1, 510, mac, mac),
		blockEntry(7, 3), controlEntry(7, 1, 9, true),
	} {
		back, err := program.Normal(e)
		if err != nil {
			t.Errorf("%s: %v", &e, err)
			continue
		}
		if back.Key() != e.Key() || !back.Equal(&e) {
			t.Errorf("%s came back as %s", &e, &back)
		}
	}
}
