package crash

import (
	"math/rand/v2"
	"sync"
	"time"
)

// slow is the network on which packets travel as on a good one, but the switch and the
// log take their time now and then: so what usually comes first comes last.
const slow = "slow"

// pauses draws how long things take that usually take no time. It may be used
// concurrently.
type pauses struct {
	mu   sync.Mutex
	dice *rand.Rand
}

func newPauses(seed, of uint64) *pauses { return &pauses{dice: rand.New(rand.NewPCG(seed, of))} }

// next is none for half of them, and some for a packet's time, a recovery's, or longer.
func (p *pauses) next() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch d := p.dice.IntN(100); {
	case d < 50:
		return 0
	case d < 80:
		return time.Duration(p.dice.Int64N(int64(300 * time.Microsecond)))
	case d < 95:
		return time.Duration(p.dice.Int64N(int64(5 * time.Millisecond)))
	}
	return time.Duration(p.dice.Int64N(int64(60 * time.Millisecond)))
}
