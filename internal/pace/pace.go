// Package pace says how long to wait: for an answer, and after a failure. It reads no clock, and a value of it has one owner.
package pace

import "time"

// Estimator learns how long answers take, as TCP learns its round trips (RFC 6298): a smoothed mean, and a smoothed mean
// deviation from it. The zero Estimator knows nothing yet.
type Estimator struct {
	known           bool
	mean, deviation time.Duration
}

// Learn takes in how long an answer has taken. It must be known which request it answers: one that was sent once (Karn's problem).
func (e *Estimator) Learn(d time.Duration) {
	if !e.known {
		*e = Estimator{true, d, d / 2}
		return
	}
	e.deviation += ((e.mean - d).Abs() - e.deviation) / 4
	e.mean += (d - e.mean) / 8
}

// Mean is how long answers take, 0 while that is not known.
func (e *Estimator) Mean() time.Duration { return e.mean }

// Timeout is after how long an answer is overdue: the mean and four deviations, but so long at least; or, while nothing is
// known, the time that is given for that.
func (e *Estimator) Timeout(unknown, least time.Duration) time.Duration {
	if !e.known {
		return unknown
	}
	return max(e.mean+4*e.deviation, least)
}

// Pauses are those between attempts that fail: the first one is First, and each is twice as long as the one before, up to Most.
// Neither is negative.
type Pauses struct{ First, Most time.Duration }

// Next is the pause that follows one of so long; First follows 0.
func (p Pauses) Next(last time.Duration) time.Duration {
	if last >= p.Most-last { // doubling might overflow
		return p.Most
	}
	return min(max(2*last, p.First), p.Most)
}

// After is the pause that follows n others.
func (p Pauses) After(n int) time.Duration {
	d := min(p.First, p.Most)
	for ; n > 0 && 0 < d && d < p.Most; n-- {
		d = p.Next(d)
	}
	return d
}

// Timeout is how long to wait for an answer before the question is repeated. It doubles with each time in vain.
type Timeout struct {
	// First is the wait while no round trip is known, and Least the shortest one then: a scheduler's hiccup should not double the
	// traffic. Most caps the wait however often it has been doubled. None is negative.
	First, Least, Most time.Duration
	// Doublings is how often nobody has answered in time since a round trip was measured.
	Doublings int
	Trips     Estimator
}

// Learn is Estimator.Learn, and ends the doubling.
func (t *Timeout) Learn(d time.Duration) {
	t.Trips.Learn(d)
	t.Doublings = 0
}

// After is the wait after so many doublings.
func (t *Timeout) After(doublings int) time.Duration {
	return Pauses{First: t.Trips.Timeout(t.First, t.Least), Most: t.Most}.After(doublings)
}
