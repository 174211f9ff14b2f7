// Package spin lets a reader that waits for another process look again and again
// for a moment before it sleeps. Waking a thread takes some 10 µs, and 50 µs if an idle
// CPU must be woken with it (more under a hypervisor). That is more than all the work
// of a short exchange.
package spin

import (
	"runtime"
	"time"

	"github.com/bifrost-rack/bifrost/internal/rawsys"
)

// most is for how long a reader that finds nothing asks again before it sleeps. A call that is
// held at the switch takes 200 µs where all spin for as long as it takes: caller, callee, switch
// and Gatekeeper. It takes twice that where one of them is too early asleep; then all are, since
// each waits for the others.
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

// How long a reader that keeps its CPU rests, which means that it does not spin, after other
// threads have taken the CPU from it while it spun: twice as long each time that this happens soon
// after a rest. A flood of packets makes spinning always pay, though others who have work wait for
// a CPU meanwhile.
const (
	minRest = time.Millisecond
	maxRest = 2 * time.Second
)

// soonAfter is how many times as long as its last rest a reader has to be left alone for the
// next rest to be short again.
const soonAfter = 4

// Tests replace these: yield lets threads run that wait for the CPU, and preemptions says how often
// it was taken from this thread.
var (
	yield       = rawsys.Yield
	preemptions = rawsys.Preempted
	clock       = time.Now
)

// Spinner decides whether a reader spins: as long as it pays, and as long as nobody else wants
// its CPU. Who is waited for may be one of those, and to be woken on a CPU that is awake takes
// two microseconds. Where spinning does not pay it is tried less and less often. The zero Spinner
// is ready; it is one reader's own.
type Spinner struct {
	// KeepsCPU is for readers in whose way all calls of a rack are: switch and Gatekeeper. They let
	// nobody run before them, since a thread that yields goes to the end of the queue. They
	// rest when others have taken their CPU from them.
	KeepsCPU bool

	skip, left int // reads to do without it after a failure, and of them still to come
	// How long the last rest of a reader that keeps its CPU was, and its end.
	rest time.Duration
	till time.Time
}

// Spin calls try until it succeeds, its time is over, or others have had the CPU in vain. It
// reports whether try has succeeded.
func (s *Spinner) Spin(try func() bool) bool {
	if s.left > 0 {
		s.left--
		return false
	}
	start := clock()
	if !s.KeepsCPU {
		return s.spin(try, start)
	}
	if start.Before(s.till) {
		return false
	}
	thread, before := preemptions()
	ok := s.spin(try, start)
	if t, after := preemptions(); t == thread && after > before {
		s.preempted(time.Now())
	}
	return ok
}

// spin is Spin, which it began at start.
func (s *Spinner) spin(try func() bool, start time.Time) bool {
	for last := false; !last; {
		runtime.Gosched() // what else there is to do in this program goes first
		others := s.giveWay()
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

// giveWay lets others run, unless the reader keeps its CPU, and returns how long they have had it.
func (s *Spinner) giveWay() time.Duration {
	if s.KeepsCPU {
		return 0
	}
	start := clock()
	yield()
	return clock().Sub(start)
}

// fail notes that it did not pay.
func (s *Spinner) fail() {
	s.skip = min(max(1, 2*s.skip), maxSkip)
	s.left = s.skip
}

// preempted has the reader rest. It had no work itself, and others wanted its CPU.
func (s *Spinner) preempted(now time.Time) {
	if now.Sub(s.till) < soonAfter*s.rest {
		s.rest = min(2*s.rest, maxRest)
	} else {
		s.rest = minRest
	}
	s.till = now.Add(s.rest)
}
