// Package spin lets a reader that waits for another process look again and again
// for a moment before it sleeps. Waking a thread takes some 10 µs, and 50 µs if an idle
// CPU must be woken with it (more under a hypervisor). That is more than all the work
// of a short exchange.
package spin

import (
	"runtime"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/shared/rawsys"
)

// most is for how long a reader that finds nothing asks again before it sleeps: as long as an
// exchange takes in which others do something, too. Where one of them is too early asleep all are,
// since each waits for the others.
const most = 600 * time.Microsecond

// maxSkip is how many reads in a row do without spinning at most: where it never
// pays, it costs a microsecond a read.
const maxSkip = 1 << 9

// triesAtOnce is how often a reader that spins asks before it lets others run again,
// which takes about as long as asking.
const triesAtOnce = 4

// shared is how long a yield takes at least if another thread has done something meanwhile. One
// that finds nobody takes a third of a microsecond. To let another reader look, and fall asleep,
// takes five: of two memory servers on one CPU, which wait for the same write, one is to sleep,
// and not both.
const shared = 8 * time.Microsecond

// busy is how long a yield takes at least if the CPU is wanted for something else than an answer.
// Each yield then costs a slice of the scheduler's, milliseconds. A thread that sleeps gets the
// CPU back sooner when it is woken.
const busy = 400 * time.Microsecond

// Tests replace these.
var (
	yield = rawsys.Yield // lets threads run that wait for the CPU
	clock = time.Now
)

// Spinner decides whether a reader spins: as long as it pays, and as long as nobody else wants
// its CPU. Who is waited for may be one of those, and to be woken on a CPU that is awake takes
// two microseconds. Where spinning does not pay it is tried less and less often. The zero Spinner
// is ready; it is one reader's own.
type Spinner struct {
	skip, left int // reads to do without it after a failure, and of them still to come
}

// Spin calls try until it succeeds, its time is over, or others have had the CPU in vain. It
// reports whether try has succeeded.
func (s *Spinner) Spin(try func() bool) bool {
	if s.left > 0 {
		s.left--
		return false
	}
	start := clock()
	for last := false; !last; {
		runtime.Gosched() // what else there is to do in this program goes first
		others := giveWay()
		last = others >= shared || clock().Sub(start) >= most
		for range triesAtOnce {
			if !try() {
				continue
			}
			if others < busy {
				s.skip = 0
			} else {
				s.fail()
			}
			return true
		}
	}
	s.fail()
	return false
}

// giveWay lets others run, and returns how long they have had the CPU.
func giveWay() time.Duration {
	start := clock()
	yield()
	return clock().Sub(start)
}

// fail notes that it did not pay.
func (s *Spinner) fail() {
	s.skip = min(max(1, 2*s.skip), maxSkip)
	s.left = s.skip
}
