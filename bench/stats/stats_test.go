package stats

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func durations(us ...int) (d []time.Duration) {
	for _, u := range us {
		d = append(d, time.Duration(u)*time.Microsecond)
	}
	return d
}

func TestSummarize(t *testing.T) {
	hundred := make([]int, 100)
	for i := range hundred {
		hundred[i] = 100 - i
	}
	for _, tc := range []struct {
		name    string
		took    []time.Duration
		elapsed time.Duration
		want    Summary
	}{
		{"nothing", nil, time.Second, Summary{}},
		{"one", durations(7), time.Millisecond, Summary{N: 1, P50: 7, P90: 7, P99: 7, Mean: 7, Rate: 1000, Longest: 7}},
		{"a hundred", durations(hundred...), 100 * time.Millisecond, Summary{N: 100, P50: 50, P90: 90, P99: 99, Mean: 50.5, Rate: 1000, Longest: 100}},
		{"no time", durations(1, 3), 0, Summary{N: 2, P50: 1, P90: 3, P99: 3, Mean: 2, Longest: 3}},
	} {
		if got := Summarize(tc.took, tc.elapsed); got != tc.want {
			t.Errorf("%s: %+v, want %+v", tc.name, got, tc.want)
		}
	}
}

// Percentiles are values that were measured, in order, and no more than their
// share lies below.
func TestQuantiles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		us := rapid.SliceOfN(rapid.IntRange(0, 1000), 1, 300).Draw(t, "us")
		s := Summarize(durations(us...), time.Second)
		for _, q := range []struct {
			value   float64
			percent int
		}{{s.P50, 50}, {s.P90, 90}, {s.P99, 99}} {
			below, upto := 0, 0
			for _, u := range us {
				if float64(u) < q.value {
					below++
				}
				if float64(u) <= q.value {
					upto++
				}
			}
			if !slices.Contains(us, int(q.value)) || below*100 >= q.percent*len(us) || upto*100 < q.percent*len(us) {
				t.Fatalf("p%d = %v of %v", q.percent, q.value, us)
			}
		}
	})
}

func TestCombine(t *testing.T) {
	got := Combine([]Summary{{N: 10, P50: 5, P90: 6, P99: 9, Mean: 5, Rate: 100}, {N: 20, P50: 50, Rate: 10}, {N: 30, P50: 7, P90: 8, P99: 8, Mean: 7, Rate: 90}})
	want := Combined{Summary{N: 60, P50: 7, P90: 6, P99: 8, Mean: 5, Rate: 90}, 5, 50, 10, 100, 3}
	if got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := Combine(nil); got != (Combined{}) {
		t.Errorf("of nothing: %+v", got)
	}
}

func TestMeans(t *testing.T) {
	if Median([]float64{4, 1, 3, 2}) != 2.5 || Median([]float64{3, 1, 2}) != 2 || Median(nil) != 0 {
		t.Error("median")
	}
	if Mean([]float64{1, 2, 6}) != 3 || !math.IsNaN(Mean(nil)) {
		t.Error("mean")
	}
}
