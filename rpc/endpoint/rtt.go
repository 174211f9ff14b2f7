package endpoint

import (
	"time"

	"github.com/bifrost-rack/bifrost/internal/pace"
)

// Bounds of the time until a call is sent again.
const (
	// InitialTimeout is how long the first call of a method waits: a rack's round
	// trip with room for a handler's few milliseconds.
	InitialTimeout = 20 * time.Millisecond
	// MinTimeout is how much longer than the usual answer a call waits at least. It
	// keeps a scheduler's hiccup from doubling the traffic: it is a hundred round
	// trips, and still short against a lost packet. It also keeps the timer from
	// coming together with an answer that always takes the same time.
	MinTimeout = 10 * time.Millisecond
	// MaxTimeout caps the backoff, so that a callee which is back is noticed
	// within a second.
	MaxTimeout = time.Second
	// CrowdTime is how much longer a call waits for each call of the method that is out
	// beside it: a callee that gets a thousand at once answers them after one another,
	// and its node may take them all in before it answers the first.
	CrowdTime = 50 * time.Microsecond
)

// RTT estimates how long the answers to one method take. A handler's time is part of it,
// so slow methods are not asked again in vain. The zero RTT knows nothing yet.
type RTT struct {
	trips   pace.Estimator
	timeout time.Duration
	out     int // calls that are out
}

// crowded is how much longer a call waits, because of the others that are out.
func (r *RTT) crowded() time.Duration {
	return min(time.Duration(r.out-1)*CrowdTime, MaxTimeout)
}

// Timeout is how long a call that is out alone waits before the first re-send.
func (r *RTT) Timeout() time.Duration {
	if r.timeout == 0 {
		return InitialTimeout
	}
	return r.timeout
}

// answered learns from a call that was sent once and answered after d.
func (r *RTT) answered(d time.Duration) {
	r.trips.Learn(d)
	r.timeout = min(r.trips.Timeout(0, r.trips.Mean()+MinTimeout), MaxTimeout)
}

// answeredLate learns from a call that was sent more than once: whose answer
// came, nobody knows (Karn's problem), so the timeout only doubles, and no
// further than what an answer that took as long needs, until a call is answered at
// once again.
func (r *RTT) answeredLate(d time.Duration) {
	r.timeout = max(r.Timeout(), min(2*r.Timeout(), d+MinTimeout, MaxTimeout))
}
