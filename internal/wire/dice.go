package wire

import (
	"hash/fnv"
	"math/rand/v2"
	"time"

	"github.com/bifrost-rack/bifrost/internal/duration"
)

// dice is one direction's source of chance: links do not disturb each other's
// draws, and every frame takes the same number of draws, so that changing one
// probability does not shift all else.
type dice struct{ r *rand.Rand }

// newDice derives a direction's dice from the seed.
func newDice(seed uint64, host string, toSwitch bool) dice {
	h := fnv.New64a()
	_, _ = h.Write([]byte(host)) // never fails
	stream := h.Sum64()
	if toSwitch {
		stream = ^stream
	}
	return dice{rand.New(rand.NewPCG(seed, stream))}
}

// fate is what becomes of one frame.
type fate struct {
	lost, duplicated, reordered, late bool
	delay, reorderBy, copyBy, lateBy  time.Duration
}

func (d dice) throw(i *Impairment) (f fate) {
	f.lost = d.r.Float64() < i.Loss
	f.duplicated = d.r.Float64() < i.Duplicate
	f.reordered = d.r.Float64() < i.Reorder
	f.late = d.r.Float64() < i.Late
	f.delay = duration.Add(i.Delay, d.upTo(i.Jitter))
	f.reorderBy = d.upTo(or(i.ReorderBy, time.Millisecond))
	f.copyBy = d.upTo(or(i.ReorderBy, time.Millisecond))
	f.lateBy = d.upTo(or(i.LateBy, 5*time.Second))
	return f
}

// upTo draws a duration below limit.
func (d dice) upTo(limit time.Duration) time.Duration {
	return time.Duration(d.r.Float64() * float64(limit))
}

func or(d, fallback time.Duration) time.Duration {
	if d == 0 {
		return fallback
	}
	return d
}
