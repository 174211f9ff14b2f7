package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/bifrost-rack/bifrost/bench/report"
	"github.com/bifrost-rack/bifrost/internal/duration"
)

// result is what a run has found.
type result struct {
	Seconds    float64        `json:"seconds"` // how long calls were to be made
	Callers    int            `json:"callers"`
	Least      float64        `json:"least"` // calls per second that are wanted
	Machine    report.Machine `json:"machine"`
	LoadBefore float64        `json:"load_before"`
	Calls      int64          `json:"calls"`
	Rate       float64        `json:"rate"` // calls per second
	// Processes and Log compare the beginning with the end.
	Processes []comparison `json:"processes"`
	Wrong     string       `json:"wrong,omitempty"`
	Samples   []sample     `json:"samples"`
}

// comparison is one quantity of one process, the largest value of each window.
type comparison struct {
	Process  string `json:"process"`
	Quantity string `json:"quantity"`
	Early    int64  `json:"early"` // in the window after the beginning
	Late     int64  `json:"late"`  // in the last window
	Slack    int64  `json:"slack"` // how much more Late may be without being growth
}

func (c comparison) grown() bool { return c.Late > c.Early+c.Slack }

// The run is compared in two windows of a fifth of it each: one begins when the rack
// is warm, after a minute or a tenth of the run, the other is the end. A fifth of ten
// minutes is as long as Go lets an idle process go without a garbage collection.
const (
	warmUp       = time.Minute
	warmFraction = 10
	windows      = 5
)

// Slack of each quantity: what comes and goes with the calls that are under way, and
// what the allocator keeps. A leak of 32 bytes a call exceeds that of a heap in ten
// minutes at 834 calls a second; one of a goroutine or descriptor in a thousand calls
// shows within a minute.
const (
	heapSlack       = 8 << 20
	residentSlack   = 24 << 20
	descriptorSlack = 8
	goroutineSlack  = 64
	recordSlack     = 1 << 10
	logSlack        = 4 << 20
	filesSlack      = 64 << 20 // the write-ahead log is cut when a file of it is full
)

// logRow is the name under which the log is compared.
const logRow = "log"

func (r *result) add(s sample) {
	r.Samples = append(r.Samples, s)
	r.Calls = s.Calls
	if first := r.Samples[0]; s.Seconds > first.Seconds {
		r.Rate = float64(s.Calls-first.Calls) / (s.Seconds - first.Seconds)
	}
}

// line says how far the run is.
func (r *result) line() string {
	s := r.Samples[len(r.Samples)-1]
	rate := r.Rate
	if n := len(r.Samples); n > 1 {
		before := r.Samples[n-2]
		rate = float64(s.Calls-before.Calls) / (s.Seconds - before.Seconds)
	}
	var sum footprint
	for _, p := range s.Processes {
		sum.Resident += p.Resident
		sum.Heap += p.Heap
		sum.Descriptors += p.Descriptors
		sum.Goroutines += p.Goroutines
	}
	return fmt.Sprintf("%5.0f s of %.0f  %8d calls, %5.0f/s  memory %s, heaps %s, %d descriptors, %d goroutines, log %d records, %s",
		s.Seconds, r.Seconds, s.Calls, rate, mebibytes(sum.Resident), mebibytes(sum.Heap), sum.Descriptors, sum.Goroutines, s.LogRecords, mebibytes(s.LogBytes))
}

func mebibytes(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }

// judge compares the end with the beginning, and is an error if there were too few
// calls or anything has grown.
func (r *result) judge() error {
	r.compare()
	var wrong []string
	if len(r.Processes) == 0 {
		wrong = append(wrong, "there are too few samples to compare")
	}
	for _, c := range r.Processes {
		if c.grown() {
			wrong = append(wrong, fmt.Sprintf("%s of %s grew from %d to %d (%d more are tolerated)", c.Quantity, c.Process, c.Early, c.Late, c.Slack))
		}
	}
	if r.Rate < r.Least {
		wrong = append(wrong, fmt.Sprintf("%.0f calls per second, want %.0f", r.Rate, r.Least))
	}
	if len(wrong) == 0 {
		return nil
	}
	r.Wrong = strings.Join(wrong, "; ")
	return fmt.Errorf("%s", r.Wrong)
}

// compare fills in Processes.
func (r *result) compare() {
	whole := duration.Seconds(r.Seconds)
	warm := min(warmUp, whole/warmFraction)
	early := r.between(warm, warm+whole/windows)
	late := r.between(whole-whole/windows, whole+time.Hour)
	if len(early) == 0 || len(late) == 0 {
		return
	}
	row := func(process, quantity string, slack int64, of func(sample) int64) {
		r.Processes = append(r.Processes, comparison{process, quantity, most(early, of), most(late, of), slack})
	}
	for _, name := range slices.Sorted(maps.Keys(early[0].Processes)) {
		row(name, "memory", residentSlack, func(s sample) int64 { return s.Processes[name].Resident })
		row(name, "heap", heapSlack, func(s sample) int64 { return s.Processes[name].Heap })
		row(name, "descriptors", descriptorSlack, func(s sample) int64 { return s.Processes[name].Descriptors })
		row(name, "goroutines", goroutineSlack, func(s sample) int64 { return s.Processes[name].Goroutines })
	}
	row(logRow, "records", recordSlack, func(s sample) int64 { return s.LogRecords })
	row(logRow, "bytes", logSlack, func(s sample) int64 { return s.LogBytes })
	row(logRow, "files", filesSlack, func(s sample) int64 { return s.LogFiles })
}

// between returns the samples of a time.
func (r *result) between(from, to time.Duration) []sample {
	return slices.DeleteFunc(slices.Clone(r.Samples), func(s sample) bool { return s.Seconds < from.Seconds() || s.Seconds > to.Seconds() })
}

func most(samples []sample, of func(sample) int64) (n int64) {
	for _, s := range samples {
		n = max(n, of(s))
	}
	return n
}

// print writes the result for people, as a table of Markdown.
func (r *result) print(w io.Writer) {
	fmt.Fprintf(w, "\n%d callers, %.0f s: %d calls (%.0f per second); load before %.2f\n\n", r.Callers, r.Seconds, r.Calls, r.Rate, r.LoadBefore)
	t := tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)
	fmt.Fprintln(t, "| process\t| memory, MiB\t| live heap, MiB\t| descriptors\t| goroutines\t|")
	fmt.Fprintln(t, "| ---\t| ---\t| ---\t| ---\t| ---\t|")
	var line string
	for i, c := range r.Processes {
		if c.Process == logRow {
			break
		}
		scale := int64(1)
		if i%4 < 2 {
			scale = 1 << 20
		}
		line += fmt.Sprintf("\t| %d → %d", c.Early/scale, c.Late/scale)
		if i%4 == 3 {
			fmt.Fprintf(t, "| %s%s\t|\n", c.Process, line)
			line = ""
		}
	}
	_ = t.Flush() // to a terminal or a buffer
	for _, c := range r.Processes {
		if c.Process == logRow {
			fmt.Fprintf(w, "log, %s: %d → %d\n", c.Quantity, c.Early, c.Late)
		}
	}
}
