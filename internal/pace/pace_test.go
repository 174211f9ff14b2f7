package pace

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// times draws lengths of time: short ones, and the longest there are.
func times(t *rapid.T, what string) time.Duration {
	d := rapid.OneOf(rapid.Int64Range(0, int64(time.Minute)), rapid.Int64Range(0, math.MaxInt64)).Draw(t, what)
	return time.Duration(d)
}

// TestEstimator: the mean lies between the shortest and the longest answer, and a timeout lets an answer in that takes the mean.
// When all answers take the same time, that is the mean, and the timeout comes close to it.
func TestEstimator(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var e Estimator
		unknown, least := times(t, "unknown"), times(t, "least")
		if e.Mean() != 0 || e.Timeout(unknown, least) != unknown {
			t.Fatalf("knows something without any answer: mean %v, timeout %v", e.Mean(), e.Timeout(unknown, least))
		}
		took := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) time.Duration {
			return time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "took"))
		}), 1, 50).Draw(t, "answers")
		shortest, longest := took[0], took[0]
		for _, d := range took {
			e.Learn(d)
			shortest, longest = min(shortest, d), max(longest, d)
			if e.Mean() < shortest || e.Mean() > longest {
				t.Fatalf("mean %v of answers from %v to %v", e.Mean(), shortest, longest)
			}
			if out := e.Timeout(unknown, least); out < max(e.Mean(), least) {
				t.Fatalf("timeout %v, mean %v, at least %v", out, e.Mean(), least)
			}
		}
		for range 300 {
			e.Learn(longest)
		}
		if out := e.Timeout(0, 0); (longest-e.Mean()).Abs() > 8 || (out-longest).Abs() > 64 {
			t.Fatalf("300 answers after %v each, mean %v, timeout %v", longest, e.Mean(), out)
		}
	})
}

// TestEstimator_RFC6298: the RFC's formulas, and its remark that the deviation counts the mean of before.
func TestEstimator_RFC6298(t *testing.T) {
	var e Estimator
	e.Learn(100 * time.Millisecond)
	if got := e.Timeout(0, 0); got != 300*time.Millisecond {
		t.Errorf("timeout %v after the first answer, want R + 4 R/2 = 300ms", got)
	}
	e.Learn(180 * time.Millisecond)
	if got, want := e.Mean(), 110*time.Millisecond; got != want {
		t.Errorf("mean %v, want 7/8 of 100ms and 1/8 of 180ms: %v", got, want)
	}
	if got, want := e.Timeout(0, 0), 340*time.Millisecond; got != want { // deviation 3/4 of 50ms and 1/4 of 80ms
		t.Errorf("timeout %v, want %v", got, want)
	}
}

// TestPauses: pauses begin with First, double, and end at Most; Next and After agree.
func TestPauses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := Pauses{times(t, "first"), times(t, "most")}
		last := p.Next(0)
		if want := min(p.First, p.Most); last != want || p.After(0) != want {
			t.Fatalf("%+v begins with %v and %v", p, last, p.After(0))
		}
		for n := 1; n < 70; n++ {
			next := p.Next(last)
			switch {
			case next > p.Most || next < last:
				t.Fatalf("%+v: %v follows %v", p, next, last)
			case last > 0 && next != p.After(n):
				t.Fatalf("%+v: pause %d is %v by Next and %v by After", p, n, next, p.After(n))
			case next < p.Most && last > 0 && next != 2*last:
				t.Fatalf("%+v: %v follows %v", p, next, last)
			}
			last = next
		}
		if p.First > 0 && last != p.Most {
			t.Fatalf("%+v: %v after 70 pauses", p, last)
		}
		if got := p.After(math.MaxInt); p.First > 0 && got != p.Most || p.First == 0 && got != 0 {
			t.Fatalf("%+v: %v after all pauses", p, got)
		}
	})
}

// TestTimeout: the wait for an answer begins with First, then follows the round trips down to Least, and doubles up to Most.
func TestTimeout(t *testing.T) {
	w := Timeout{First: 20 * time.Millisecond, Least: 10 * time.Millisecond, Most: 100 * time.Millisecond}
	for i, want := range []time.Duration{20, 40, 80, 100, 100} {
		if got := w.After(i); got != want*time.Millisecond {
			t.Errorf("%v after %d doublings, want %v ms", got, i, want)
		}
	}
	w.Doublings = 3
	if w.Learn(time.Millisecond); w.Doublings != 0 || w.After(1) != 20*time.Millisecond {
		t.Errorf("%v after a doubling, want twice the least; %d doublings when a round trip is known", w.After(1), w.Doublings)
	}
	if w.Learn(time.Minute); w.After(0) != 100*time.Millisecond {
		t.Errorf("%v, want the most", w.After(0))
	}
}
