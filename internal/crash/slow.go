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

// diskPause is how long the next commit of the log takes.
func (r *Run) diskPause(p *pauses) (d time.Duration) {
	if r.opt.Network == slow {
		d = p.next()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return max(d, time.Until(r.halted))
}

// stopDisk lets no commit end for a time.
func (r *Run) stopDisk(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if until := time.Now().Add(d); until.After(r.halted) {
		r.halted = until
	}
}

// clock is the time that a machine finds when it boots.
func (r *Run) clock() time.Time {
	now := time.Now()
	if !r.opt.Setting.Jumps {
		return now
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return now.Add(time.Duration(r.wall.Int64N(int64(48*time.Hour))) - 24*time.Hour)
}
