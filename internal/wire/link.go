package wire

import (
	"sync/atomic"
	"time"
)

// Impairment is what one direction of a link does to frames. Probabilities are
// between 0 and 1 and drawn per frame. The zero value delivers everything, in
// order and at once. Only scheduled wires impair.
type Impairment struct {
	// Delay is how long a frame takes, and Jitter what is added at random; both
	// keep the order.
	Delay, Jitter time.Duration
	// Loss, Duplicate, Reorder and Late are probabilities. A reordered frame and
	// the copy of a duplicated one arrive up to ReorderBy later than they should, a
	// late one up to LateBy, and others overtake them.
	Loss, Duplicate, Reorder, Late float64
	ReorderBy                      time.Duration // 0 stands for 1 ms
	LateBy                         time.Duration // 0 stands for 5 s
}

// LinkStats counts what one direction of a link did with frames.
type LinkStats struct {
	Frames     atomic.Uint64 // handed over
	Lost       atomic.Uint64 // by Loss
	Duplicated atomic.Uint64
	Reordered  atomic.Uint64
	Late       atomic.Uint64
	Down       atomic.Uint64 // lost because the link was down
	Full       atomic.Uint64 // lost because too many were on their way
}

// link joins a host to its port.
type link struct {
	host *Host
	// life is odd while the link is up. It counts changes, so that a frame sent
	// before the link went down does not arrive when it is up again.
	life     atomic.Uint64
	up, down *direction
}

// direction is one of a link's two. All but stats and the impairment belongs to
// the scheduler's goroutine.
type direction struct {
	link       *link
	toSwitch   bool
	impairment atomic.Pointer[Impairment]
	stats      LinkStats
	dice       dice
	last       time.Duration // arrival of the last frame in order
	flying     int           // frames on their way
}

func newLink(h *Host) *link {
	l := &link{host: h}
	l.life.Store(1)
	l.up = &direction{link: l, toSwitch: true}
	l.down = &direction{link: l}
	for _, d := range []*direction{l.up, l.down} {
		d.impairment.Store(&Impairment{})
	}
	return l
}

func (l *link) isUp() bool { return l.life.Load()%2 == 1 }

// set brings the link up or down.
func (l *link) set(up bool) {
	for {
		old := l.life.Load()
		if (old%2 == 1) == up || l.life.CompareAndSwap(old, old+1) {
			return
		}
	}
}
