package endpoint

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

func TestOrder(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 2))
		o := NewOrder[uint64](1, 100)
		var run []uint64
		for _, n := range rng.Perm(100) {
			var ok bool
			if run, ok = o.Add(uint64(n)+1, uint64(n)+1, run); !ok {
				t.Fatalf("seed %d: number %d refused", seed, n+1)
			}
		}
		if len(run) != 100 || !slices.IsSorted(run) {
			t.Fatalf("seed %d: ran %v", seed, run)
		}
	}
}

func TestOrderRefuses(t *testing.T) {
	o := NewOrder[string](5, 2)
	for _, c := range []struct {
		number uint64
		ok     bool
		run    []string
	}{
		{0, true, []string{"x"}},        // without a number: at once
		{4, false, nil},                 // has had its turn
		{7, true, nil}, {7, false, nil}, // taken
		{9, true, nil}, {10, false, nil}, // too many are early
		{5, true, []string{"x"}}, {6, true, []string{"x", "x"}}, {5, false, nil},
	} {
		run, ok := o.Add(c.number, "x", nil)
		if ok != c.ok || !slices.Equal(run, c.run) {
			t.Errorf("Add(%d) = %v, %v; want %v, %v", c.number, run, ok, c.run, c.ok)
		}
	}
}

func TestChildID(t *testing.T) {
	secret := Secret{1}
	seen := map[[16]byte]bool{}
	for _, key := range []Key{nil, secret.Service(1), secret.Service(2), secret.Main(rpcpacket.ID{7: 1}), Secret{2}.Service(1)} {
		for _, parent := range []byte{0, 1} {
			for branch := range uint32(3) {
				for index := range uint32(100) {
					id := ChildID(key, [16]byte{parent}, branch, index)
					if seen[id] || id != ChildID(slices.Clone(key), [16]byte{parent}, branch, index) {
						t.Fatalf("id of %d, %d, %d under %x is not its own", parent, branch, index, key)
					}
					seen[id] = true
				}
			}
		}
	}
	if (Secret{}).Service(1) != nil || (Secret{}).Main(rpcpacket.ID{1}) != nil {
		t.Error("a rack without a secret has keys")
	}
}
