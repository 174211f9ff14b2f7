// Package stats is the arithmetic of the benchmarks: what a series of latencies
// comes to, and what several repeats of it do.
package stats

import (
	"math"
	"slices"
	"time"
)

// Summary is what one run of an operation comes to. Times are in microseconds.
type Summary struct {
	N    int     `json:"n"`
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
	Mean float64 `json:"mean"`
	// Resent is how many messages were sent again meanwhile, of peers that count them.
	Resent uint64 `json:"resent,omitempty"`
	// Rate is operations a second, of all callers together.
	Rate float64 `json:"rate"`
	// Longest is the one that took longest; not of several repeats.
	Longest float64 `json:"longest,omitempty"`
	// LongestEnd is when that one was over.
	LongestEnd time.Time `json:"longest_end,omitzero"`
}

// Summarize sums up latencies that were measured in elapsed; it sorts them.
func Summarize(took []time.Duration, elapsed time.Duration) Summary {
	if len(took) == 0 {
		return Summary{}
	}
	slices.Sort(took)
	var sum time.Duration
	for _, d := range took {
		sum += d
	}
	s := Summary{
		N: len(took), P50: Micros(quantile(took, 50)), P90: Micros(quantile(took, 90)), P99: Micros(quantile(took, 99)),
		Mean: Micros(sum) / float64(len(took)),
	}
	s.Longest = Micros(took[len(took)-1])
	if elapsed > 0 {
		s.Rate = float64(len(took)) / elapsed.Seconds()
	}
	return s
}

// quantile is the nearest-rank percentile of sorted values.
func quantile(sorted []time.Duration, percent int) time.Duration {
	return sorted[(len(sorted)*percent+99)/100-1]
}

// Micros is a duration in microseconds.
func Micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

// Combined is what several repeats come to: medians over the repeats, so that one
// that something else on the machine has disturbed does not count, and how far
// the repeats lie apart.
type Combined struct {
	Summary
	// Low and High are the least and the largest of the repeats' medians, RateLow
	// and RateHigh of their rates.
	Low      float64 `json:"low"`
	High     float64 `json:"high"`
	RateLow  float64 `json:"rate_low"`
	RateHigh float64 `json:"rate_high"`
	Repeats  int     `json:"repeats"`
}

// Combine combines repeats.
func Combine(repeats []Summary) Combined {
	c := Combined{Repeats: len(repeats)}
	if len(repeats) == 0 {
		return c
	}
	of := func(f func(s Summary) float64) []float64 {
		values := make([]float64, 0, len(repeats))
		for _, r := range repeats {
			values = append(values, f(r))
		}
		return values
	}
	p50, rate := of(func(s Summary) float64 { return s.P50 }), of(func(s Summary) float64 { return s.Rate })
	c.Summary = Summary{
		P50: Median(p50), P90: Median(of(func(s Summary) float64 { return s.P90 })), P99: Median(of(func(s Summary) float64 { return s.P99 })),
		Mean: Median(of(func(s Summary) float64 { return s.Mean })), Rate: Median(rate),
	}
	for _, r := range repeats {
		c.N += r.N
		c.Resent += r.Resent
	}
	c.Low, c.High = slices.Min(p50), slices.Max(p50)
	c.RateLow, c.RateHigh = slices.Min(rate), slices.Max(rate)
	return c
}

// Median returns the median of values; 0 if there are none.
func Median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}

// Mean returns the arithmetic mean of values; NaN if there are none.
func Mean(values []float64) float64 {
	var sum float64
	for _, v := range values {
		sum += v
	}
	if len(values) == 0 {
		return math.NaN()
	}
	return sum / float64(len(values))
}

// Spread returns the median, the least and the largest of values; zeros if there
// are none.
func Spread(values []float64) (median, low, high float64) {
	if len(values) == 0 {
		return 0, 0, 0
	}
	return Median(values), slices.Min(values), slices.Max(values)
}
