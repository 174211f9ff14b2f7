package dsmclient

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/bifrost-rack/bifrost/internal/control"
)

// Each machine comes once, first as often as its share of the free space.
func TestCandidates(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	blades := []control.MemoryBlade{{Machine: 1, Free: 1 << 30}, {Machine: 2, Free: 3 << 30}, {Machine: 3}}
	first := map[uint8]int{}
	for range 4000 {
		order := candidates(r, blades)
		first[order[0]]++
		slices.Sort(order)
		if !slices.Equal(order, []uint8{1, 2, 3}) {
			t.Fatalf("order %v", order)
		}
	}
	if first[2] < 2800 || first[2] > 3200 || first[3] > 1 {
		t.Errorf("first: %v", first)
	}
	huge := []control.MemoryBlade{{Machine: 1, Free: math.MaxUint64}, {Machine: 2, Free: math.MaxUint64}}
	if len(candidates(r, huge)) != 2 || len(candidates(r, nil)) != 0 {
		t.Error("not every machine comes")
	}
}
