package dsm

import (
	"math/rand/v2"

	"github.com/bifrost-rack/bifrost/internal/control"
)

// place returns machine ids in the order in which an allocation tries them:
// drawn at random, weighted by free space, so that clients spread over the
// blades without talking to each other. Full ones come last: what is known of
// their space may be old.
func place(r *rand.Rand, blades []control.MemoryBlade) []uint8 {
	left := append([]control.MemoryBlade(nil), blades...)
	order := make([]uint8, 0, len(left))
	for len(left) > 0 {
		i := draw(r, left)
		order = append(order, left[i].Machine)
		left = append(left[:i], left[i+1:]...)
	}
	return order
}

// draw returns an index with a probability proportional to the blade's free
// space. Weights are in KiB, so that adding them up cannot overflow.
func draw(r *rand.Rand, blades []control.MemoryBlade) int {
	total := uint64(0)
	for _, b := range blades {
		total += weight(b)
	}
	at := r.Uint64N(total)
	for i, b := range blades {
		if at < weight(b) {
			return i
		}
		at -= weight(b)
	}
	return len(blades) - 1
}

func weight(b control.MemoryBlade) uint64 {
	if b.Free == 0 {
		return 1
	}
	return 1 + b.Free>>10
}
