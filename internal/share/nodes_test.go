package share

import (
	"net/netip"
	"testing"

	"pgregory.net/rapid"
)

// What nodes hold is charged to their owners, whenever these are learned: the sums are those of the nodes, and strangers
// share what one blade may have.
func TestNodes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		total := rapid.Uint64Range(64, 100_000).Draw(t, "total")
		known, held := map[netip.Addr]Owner{}, map[netip.Addr]uint64{}
		nodes := make([]netip.Addr, 12)
		for i := range nodes {
			nodes[i] = netip.AddrFrom16([16]byte{15: byte(i)})
		}
		of := func(node netip.Addr) Owner {
			if o, ok := known[node]; ok {
				return o
			}
			return Stranger(node)
		}
		s := NewNodes(total, of)
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			node := rapid.SampledFrom(nodes).Draw(t, "node")
			switch rapid.IntRange(0, 4).Draw(t, "act") {
			case 0, 1:
				n := rapid.Uint64Range(0, total/4).Draw(t, "taken")
				room := s.Room(node)
				if s.Take(node, n) != (n <= room) {
					t.Fatalf("%d units of %d", n, room)
				} else if n <= room {
					held[node] += n
				}
			case 2:
				n := rapid.Uint64Range(0, held[node]).Draw(t, "released")
				s.Release(node, n)
				held[node] -= n
			case 3:
				known[node] = Owner{Port: rapid.Uint32Range(1, 3).Draw(t, "port"), User: rapid.Uint32Range(0, 2).Draw(t, "user")}
				s.Learn(node)
			case 4:
				s.SetFree(rapid.Uint64Range(0, total).Draw(t, "free"))
			}
			sums, used := map[Owner]uint64{}, uint64(0)
			for node, n := range held {
				if s.Held(node) != n {
					t.Fatalf("%s holds %d, want %d", node, s.Held(node), n)
				}
				sums[s.ownerOf(node)] += n
				used += n
			}
			for o, n := range sums {
				if s.owners.Held(o) != n {
					t.Fatalf("%s holds %d, want %d", o, s.owners.Held(o), n)
				}
			}
			if s.Used() != used {
				t.Fatalf("%d are used, want %d", s.Used(), used)
			}
		}
		for node, o := range known {
			if s.Learn(node); held[node] > 0 && s.nodes[node].owner != o {
				t.Fatalf("%s is charged for %s, which is %s's", s.nodes[node].owner, node, o)
			}
		}
		s.Reset()
		if s.Used() != 0 || len(s.owners.users) != 0 {
			t.Fatal("something is left")
		}
	})
}

// However many strangers there are, and however many nodes an owner has: whoever is known and has nothing gets something.
func TestNodes_Strangers(t *testing.T) {
	const total = 9000
	last := netip.AddrFrom16([16]byte{15: 255})
	s := NewNodes(total, func(node netip.Addr) Owner {
		if node == last {
			return Owner{Port: 7}
		}
		return Stranger(node)
	})
	for i := range byte(200) {
		node := netip.AddrFrom16([16]byte{15: i})
		if first := s.Room(node); i == 0 && first < total/2 || i < 32 && first == 0 {
			t.Fatalf("stranger %d may have %d of %d", i, first, total)
		}
		if s.Take(node, s.Room(node)); s.Crowded() != (s.Used() > total/8) {
			t.Fatalf("crowded with %d of %d: %v", s.Used(), total, s.Crowded())
		}
	}
	if s.Used() > total*7/9+2 || s.Room(last) < total/16 {
		t.Errorf("200 strangers have %d of %d; an owner with nothing may have %d", s.Used(), total, s.Room(last))
	}
}
