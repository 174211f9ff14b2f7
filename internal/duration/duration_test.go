package duration

import (
	"math"
	"math/big"
	"testing"
	"time"
)

// clamped is what a number of nanoseconds comes to.
func clamped(n *big.Int) time.Duration {
	switch {
	case n.Cmp(big.NewInt(math.MaxInt64)) > 0:
		return Max
	case n.Cmp(big.NewInt(math.MinInt64)) < 0:
		return math.MinInt64
	}
	return time.Duration(n.Int64())
}

func TestSaturates(t *testing.T) {
	ends := []time.Duration{math.MinInt64, math.MinInt64 + 1, -time.Second, -1, 0, 1, time.Second, Max/2 - 1, Max / 2, Max/2 + 1, Max - 1, Max}
	for _, a := range ends {
		for _, b := range ends {
			if got, want := Add(a, b), clamped(new(big.Int).Add(big.NewInt(int64(a)), big.NewInt(int64(b)))); got != want {
				t.Errorf("%d + %d: %d, want %d", a, b, got, want)
			}
		}
		for _, b := range ends {
			if got, want := Times(int64(a), max(b, 1)), clamped(new(big.Int).Mul(big.NewInt(int64(a)), big.NewInt(max(int64(b), 1)))); got != want {
				t.Errorf("%d × %d: %d, want %d", a, b, got, want)
			}
		}
	}
}

func TestUnixNano(t *testing.T) {
	first, last := time.Unix(0, math.MinInt64), time.Unix(0, math.MaxInt64)
	for at, want := range map[time.Time]int64{
		{}: math.MinInt64, first.Add(-1): math.MinInt64, first: math.MinInt64, first.Add(1): math.MinInt64 + 1, time.Unix(0, 0): 0,
		last: math.MaxInt64, last.Add(1): math.MaxInt64, time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC): math.MaxInt64,
	} {
		if got := UnixNano(at); got != want {
			t.Errorf("%v: %d, want %d", at, got, want)
		}
	}
}

func TestSeconds(t *testing.T) {
	for n, want := range map[float64]time.Duration{
		0: 0, 1.5: 1500 * time.Millisecond, -2: -2 * time.Second, 1e300: Max, -1e300: math.MinInt64, math.Inf(1): Max, math.MaxInt64 / 1e9: Max,
	} {
		if got := Seconds(n); got != want {
			t.Errorf("%v s: %v, want %v", n, got, want)
		}
	}
	if got := Seconds(math.NaN()); got != 0 {
		t.Errorf("no number: %v", got)
	}
}

func TestMilliseconds(t *testing.T) {
	const most = math.MaxUint32 * time.Millisecond
	for left, want := range map[time.Duration]uint32{
		math.MinInt64: 1, -1: 1, 0: 1, 1: 1, time.Millisecond: 1, time.Millisecond + 1: 2, most - 1: math.MaxUint32, most: math.MaxUint32,
		most + 1: 0, Max - 1: 0, Max: 0,
	} {
		if got := Milliseconds(left); got != want {
			t.Errorf("%v: %d, want %d", left, got, want)
		}
	}
}
