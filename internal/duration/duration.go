// Package duration calculates with lengths of time that others choose: a deadline in the year 9999, a limit of a thousand years. What
// exceeds the range of a time.Duration, some 292 years, stays at its end.
package duration

import (
	"math"
	"time"
)

// Max is the longest time there is.
const Max = time.Duration(math.MaxInt64)

// Add returns a + b.
func Add(a, b time.Duration) time.Duration {
	switch sum := a + b; {
	case a > 0 && b > 0 && sum < 0:
		return Max
	case a < 0 && b < 0 && sum >= 0:
		return math.MinInt64
	default:
		return sum
	}
}

// Times returns n times a unit, which is positive.
func Times(n int64, unit time.Duration) time.Duration {
	switch d := time.Duration(n) * unit; {
	case d/unit == time.Duration(n):
		return d
	case n > 0:
		return Max
	default:
		return math.MinInt64
	}
}

// UnixNano is t.UnixNano, which knows the years 1678 to 2261 only: earlier and later times are at the ends of its range.
func UnixNano(t time.Time) int64 {
	switch {
	case t.Before(time.Unix(0, math.MinInt64)):
		return math.MinInt64
	case t.After(time.Unix(0, math.MaxInt64)):
		return math.MaxInt64
	default:
		return t.UnixNano()
	}
}

// Seconds is a number of seconds. What is not a number is 0.
func Seconds(n float64) time.Duration {
	switch ns := n * float64(time.Second); {
	case math.IsNaN(n):
		return 0
	case ns >= float64(math.MaxInt64):
		return Max
	case ns <= float64(math.MinInt64):
		return math.MinInt64
	default:
		return time.Duration(ns)
	}
}

// Milliseconds is the time that is left until a deadline, as a packet carries it: rounded up, and 1 at least, since 0 stands for no
// deadline. It is 0 for more than 2³²-1 ms, some 49 days: whoever waits for so long gives up by itself.
func Milliseconds(left time.Duration) uint32 {
	if left > math.MaxUint32*time.Millisecond {
		return 0
	}
	return uint32(max((left+time.Millisecond-1)/time.Millisecond, 1)) //nolint:gosec // bounded
}
