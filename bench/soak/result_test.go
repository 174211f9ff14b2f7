package main

import (
	"strings"
	"testing"
)

// steady is a run of 600 s with a sample each 5 s, in which nothing grows.
func steady() *result {
	r := &result{Seconds: 600, Least: 834}
	for at := 5.0; at <= 600; at += 5 {
		r.add(sample{
			Seconds: at, Calls: int64(at * 1000), LogRecords: 200, LogBytes: 50_000, LogFiles: 5 << 20,
			Processes: map[string]footprint{"switch": {Resident: 90 << 20, Heap: 45 << 20, Descriptors: 59, Goroutines: 26}},
		})
	}
	return r
}

// TestJudge: what grows after the beginning is named, what only comes and goes is not.
func TestJudge(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(s *sample, p *footprint)
		want   string // "" if nothing is wrong
	}{
		"steady":               {func(*sample, *footprint) {}, ""},
		"32 bytes a call":      {func(s *sample, p *footprint) { p.Heap += 32 * s.Calls }, "heap of switch grew"},
		"a descriptor in 10":   {func(s *sample, p *footprint) { p.Descriptors += int64(s.Seconds) / 10 }, "descriptors of switch grew"},
		"a goroutine a second": {func(s *sample, p *footprint) { p.Goroutines += int64(s.Seconds) }, "goroutines of switch grew"},
		"resident":             {func(s *sample, p *footprint) { p.Resident += 100 * s.Calls }, "memory of switch grew"},
		"the log":              {func(s *sample, _ *footprint) { s.LogRecords += int64(s.Seconds) * 10 }, "records of log grew"},
		"before it is warm":    {func(s *sample, p *footprint) { p.Goroutines += int64(min(s.Seconds, 55)) * 100 }, ""},
		"too slow":             {func(s *sample, _ *footprint) { s.Calls /= 2 }, "500 calls per second, want 834"},
	} {
		t.Run(name, func(t *testing.T) {
			r := &result{Seconds: 600, Least: 834}
			for _, s := range steady().Samples {
				p := s.Processes["switch"]
				tc.change(&s, &p)
				s.Processes = map[string]footprint{"switch": p}
				r.add(s)
			}
			err := r.judge()
			if tc.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want one that says %q", err, tc.want)
			}
		})
	}
}

// TestJudge_Empty: a run without samples is not one in which nothing grew.
func TestJudge_Empty(t *testing.T) {
	if err := (&result{Seconds: 600}).judge(); err == nil {
		t.Error("no error")
	}
}
