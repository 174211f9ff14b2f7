package transport

import "time"

// estimator turns round trips into a retransmission timeout as RFC 6298 says:
// a smoothed mean plus four deviations, doubled while nothing unambiguous has
// been measured since a timeout.
type estimator struct {
	mean, deviation time.Duration
	backoff         uint // doublings
}

// sample takes in the round trip of a request that was sent once (Karn).
func (e *estimator) sample(d time.Duration) {
	e.backoff = 0
	if e.mean == 0 {
		e.mean, e.deviation = max(d, 1), d/2
		return
	}
	e.deviation += (max(e.mean-d, d-e.mean) - e.deviation) / 4
	e.mean = max(e.mean+(d-e.mean)/8, 1)
}

// timeout returns how long to wait for an answer after so many doublings.
func (e *estimator) timeout(doublings uint) time.Duration {
	t := firstTimeout
	if e.mean > 0 {
		t = max(e.mean+4*e.deviation, minTimeout)
	}
	return min(t<<min(doublings, 10), maxTimeout)
}

// lost returns when an answer that later ones have overtaken is given up.
func (e *estimator) lost() time.Duration { return e.mean + max(e.mean/2, reordering) }
