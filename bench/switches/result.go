package switches

import (
	"fmt"
	"io"
	"slices"
	"time"
)

// Options say how long to measure.
type Options struct {
	// Rules are how many access rules are loaded beside those in use.
	Rules int
	// Rounds is how often each contender has its turn; in a round it has RoundTrip
	// for round trips and Stream for TCP.
	Rounds            int
	RoundTrip, Stream time.Duration
	// Progress, if not nil, is told what is being done.
	Progress io.Writer
}

// Result is what was measured. Times are in microseconds, rates in gigabits a
// second.
type Result struct {
	Rules     int                 `json:"rules"`
	RoundTrip map[string]Quantile `json:"round_trip_us"`
	TCP       map[string]float64  `json:"tcp_gbit_s"`
	// Updates is how many rules a second are inserted or deleted one by one, each
	// in force when it is answered.
	Updates map[string]float64 `json:"updates_s"`
	// Ratio is of the round trips' medians, TCPRatio of the TCP rates' medians.
	Ratio    map[string]float64 `json:"ratio"`
	TCPRatio map[string]float64 `json:"tcp_ratio"`
}

// Quantile is the median and the 99th percentile.
type Quantile struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
}

// names are the contenders in the order in which they are told of.
var names = []string{"cable", "bridge", "ebpf", "go"}

// compared are the pairs whose ratios are told.
var compared = [][2]string{{"ebpf", "bridge"}, {"ebpf", "cable"}, {"go", "bridge"}, {"go", "ebpf"}, {"bridge", "cable"}}

// samples is what a contender has measured in all rounds.
type samples struct {
	trips   []time.Duration
	rates   []float64
	updates float64
}

// summary computes the result.
func summary(rules int, all map[string]*samples) Result {
	r := Result{
		Rules: rules, RoundTrip: map[string]Quantile{}, TCP: map[string]float64{}, Updates: map[string]float64{},
		Ratio: map[string]float64{}, TCPRatio: map[string]float64{},
	}
	for name, s := range all {
		slices.Sort(s.trips)
		slices.Sort(s.rates)
		if n := len(s.trips); n > 0 {
			r.RoundTrip[name] = Quantile{micros(s.trips[n/2]), micros(s.trips[n*99/100])}
		}
		if n := len(s.rates); n > 0 {
			r.TCP[name] = s.rates[n/2] * 8 / 1e9
		}
		if s.updates > 0 {
			r.Updates[name] = s.updates
		}
	}
	for _, c := range compared {
		key := c[0] + "/" + c[1]
		if of := r.RoundTrip[c[1]].P50; of > 0 {
			r.Ratio[key] = r.RoundTrip[c[0]].P50 / of
		}
		if of := r.TCP[c[1]]; of > 0 {
			r.TCPRatio[key] = r.TCP[c[0]] / of
		}
	}
	return r
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

// Print writes the result as a table.
func (r Result) Print(w io.Writer) error {
	if _, err := fmt.Fprintf(w, "%-8s %10s %10s %12s %12s\n", "", "p50 µs", "p99 µs", "TCP Gbit/s", "updates/s"); err != nil {
		return err
	}
	for _, name := range names {
		updates := "-"
		if u := r.Updates[name]; u > 0 {
			updates = fmt.Sprintf("%.0f", u)
		}
		q := r.RoundTrip[name]
		if _, err := fmt.Fprintf(w, "%-8s %10.1f %10.1f %12.2f %12s\n", name, q.P50, q.P99, r.TCP[name], updates); err != nil {
			return err
		}
	}
	for _, c := range compared {
		key := c[0] + "/" + c[1]
		if _, err := fmt.Fprintf(w, "%-14s round trip %.2f, TCP %.2f\n", key, r.Ratio[key], r.TCPRatio[key]); err != nil {
			return err
		}
	}
	return nil
}
