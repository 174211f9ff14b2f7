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

// For how long a reader that finds nothing asks again before it sleeps.
const (
	// Long is for those between whom held calls go round: caller, callee, switch and
	// Gatekeeper. Such a call takes 200 µs where all of them spin for as long as it
	// takes, and twice that where one of them is too early asleep; then all are, since
	// each waits for the others.
	Long = 600 * time.Microsecond
	// Brief is for servers of many, which share CPUs with others. A round trip without
	// the Gatekeeper takes 10 to 20 µs where both sides spin, and 100 where neither does.
	// It must pay for one side alone, or the two would never find together. Threads that
	// wait for the same CPU run in between: the servers of a machine's two copies may share
	// one, and a write is done when both have answered.
	Brief = 120 * time.Microsecond
)

// maxSkip is how many reads in a row do without spinning at most: where it never
// pays, it costs a microsecond a read.
const maxSkip = 1 << 9

// triesAtOnce is how often a reader that spins asks before it lets others run again,
// which takes about as long as asking, and may wake another thread.
const triesAtOnce = 4

// longYield is how long another thread that shares work with us has a CPU at most. Who has
// it for longer is busy with something else.
const longYield = 400 * time.Microsecond

// How long a reader that gives way rests, which means that it does not spin, after other threads
// have taken its CPU from it while it spun: twice as long each time that this happens soon after
// a rest. A flood of packets makes spinning always pay, though others who have work wait for a
// CPU meanwhile.
const (
	minRest = time.Millisecond
	maxRest = 2 * time.Second
)

// soonAfter is how many times as long as its last rest a reader has to be left alone for the
// next rest to be short again.
const soonAfter = 4

// preemptions says how often other threads have taken the CPU from this one. Tests replace it.
var preemptions = rawsys.Preempted

// Spinner decides whether a reader spins: as long as it pays. Where it does not,
// because nothing comes so soon or whoever would send waits for this CPU, it is
// tried less and less often. The zero Spinner is ready; it is one reader's own.
type Spinner struct {
	Time time.Duration // at most; Long if it is zero
	// GivesWay is for readers in whose way all calls of a rack are: switch and Gatekeeper. They
	// do not spin where others need the CPU. A program that waits for its own calls does.
	GivesWay bool

	skip, left int // reads to do without it after a failure, and of them still to come
	// Likewise, how often to spin without a yield after one that took long.
	keep, keeping int
	// How long the last rest was, and its end.
	rest time.Duration
	till time.Time
}

// Spin calls try until it succeeds, or its time is over, and reports whether it has.
func (s *Spinner) Spin(try func() bool) bool {
	if s.left > 0 {
		s.left--
		return false
	}
	most := s.Time
	if most == 0 {
		most = Long
	}
	start := time.Now()
	if !s.GivesWay {
		return s.spin(try, start, most, most <= Brief && s.mayYield())
	}
	if start.Before(s.till) {
		return false
	}
	thread, before := preemptions()
	ok := s.spin(try, start, most, false)
	if t, after := preemptions(); t == thread && after > before {
		s.preempted(time.Now())
	}
	return ok
}

// spin is Spin, which it began at start.
func (s *Spinner) spin(try func() bool, start time.Time, most time.Duration, yields bool) bool {
	for n := 0; ; n++ {
		if n%triesAtOnce == 0 {
			runtime.Gosched() // what else there is to do in this program goes first
			yields = yields && s.yield()
		}
		if try() {
			s.skip = 0
			return true
		}
		if n%triesAtOnce == 0 && time.Since(start) >= most {
			break
		}
	}
	s.skip = min(max(1, 2*s.skip), maxSkip)
	s.left = s.skip
	return false
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

// mayYield reports whether to yield while spinning this time.
func (s *Spinner) mayYield() bool {
	if s.keeping > 0 {
		s.keeping--
		return false
	}
	return true
}

// yield lets other threads run that wait for this CPU, and reports whether to do so again.
func (s *Spinner) yield() bool {
	start := time.Now()
	rawsys.Yield()
	return s.yielded(time.Since(start))
}

// yielded notes how long others have had the CPU. Where something else keeps the CPUs busy,
// each yield would cost a slice of the scheduler's, milliseconds, so it is tried less and
// less often then.
func (s *Spinner) yielded(took time.Duration) (again bool) {
	if took < longYield {
		s.keep = max(0, s.keep-1)
		return true
	}
	s.keep = min(max(1, 2*s.keep), maxSkip)
	s.keeping = s.keep
	return false
}
