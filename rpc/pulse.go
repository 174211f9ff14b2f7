package rpc

import (
	"sync"
	"sync/atomic"
	"time"
)

// pulse is the node's clock, and its one timer. All that is to happen after a while — sending
// again, taking the lead when nobody wants it, looking after a handler —
// shares it, and it is set only while there is something to wait for: a timer
// that goes off in the middle of a call wakes threads that the call then has to
// do without, which costs far more than the timer.
type pulse struct {
	start time.Time    // when the node's time is 0
	at    atomic.Int64 // when it goes off, in node time; 0 while it does not
	mu    sync.Mutex   // over setting it
	timer *time.Timer
	off   bool // for good
}

// gap is how long the pulse rests at least between two looks at all calls that are out.
const gap = time.Millisecond

// beat is how long what is not urgent waits for the pulse, at least.
const beat = 10 * time.Millisecond

// now is the time that the cores go by: since the node has joined.
func (p *pulse) now() time.Duration { return time.Since(p.start) }

// wakeAt makes the pulse go off at due or before. When it is set already, as on
// the fast path, that is one comparison.
func (p *pulse) wakeAt(due time.Duration) {
	if at := p.at.Load(); at != 0 && at <= int64(due) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if at := p.at.Load(); p.off || at != 0 && at <= int64(due) {
		return
	}
	p.at.Store(int64(max(due, 1)))
	p.timer.Reset(due - p.now())
}

// stop ends the pulse.
func (p *pulse) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.off = true
	p.timer.Stop()
}
