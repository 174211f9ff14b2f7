// Package spin lets a reader that waits for another process look again and again
// for a moment before it sleeps. To be woken costs a thread some 10 µs, and 50
// where an idle CPU has to be woken with it (more under a hypervisor), which is
// more than all the work of a short exchange.
package spin

import (
	"runtime"
	"time"
)

// Time is for how long a reader that finds nothing asks again before it sleeps. A
// round trip takes 10 to 20 µs where both sides spin, and 100 where neither does. It
// must pay for one side alone, or the two would never find together.
const Time = 120 * time.Microsecond

// maxSkip is how many reads in a row do without spinning at most: where it never
// pays, it costs a quarter of a microsecond a read.
const maxSkip = 1 << 9

// triesAtOnce is how often a reader that spins asks before it lets others run again,
// which takes about as long as asking, and may wake another thread.
const triesAtOnce = 4

// Spinner decides whether a reader spins: as long as it pays. Where it does not,
// because nothing comes so soon or whoever would send waits for this CPU, it is
// tried less and less often. The zero Spinner is ready; it is one reader's own.
type Spinner struct {
	skip, left int // reads to do without it after a failure, and of them still to come
}

// Spin calls try until it succeeds, for Time at most, and reports whether it has.
func (s *Spinner) Spin(try func() bool) bool {
	if s.left > 0 {
		s.left--
		return false
	}
	for start, n := time.Now(), 0; ; n++ {
		if n%triesAtOnce == 0 {
			runtime.Gosched() // what else there is to do in this program goes first
		}
		if try() {
			s.skip = 0
			return true
		}
		if n%triesAtOnce == 0 && time.Since(start) >= Time {
			break
		}
	}
	s.skip = min(max(1, 2*s.skip), maxSkip)
	s.left = s.skip
	return false
}
