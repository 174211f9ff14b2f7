package rpc

import (
	"sync"
	"sync/atomic"
	"time"
)

// pulse is the node's one timer. All that is to happen after a while — sending
// again, sitting down in a chair that nobody wants, looking after a handler —
// shares it, and it is set only while there is something to wait for: a timer
// that goes off in the middle of a call wakes threads that the call then has to
// do without, which costs far more than the timer.
type pulse struct {
	at    atomic.Int64 // when it goes off, in node time; 0 while it does not
	mu    sync.Mutex   // over setting it
	timer *time.Timer
	off   bool // for good
}

// gap is how long the pulse rests at least between two looks at all calls that are out.
const gap = time.Millisecond

// beat is how long what is not urgent waits for the pulse, at least.
const beat = 10 * time.Millisecond

// wakeAt makes the pulse go off at due or before. When it is set already, as on
// the fast path, that is one comparison.
func (n *Node) wakeAt(due time.Duration) {
	p := &n.pulse
	if at := p.at.Load(); at != 0 && at <= int64(due) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if at := p.at.Load(); p.off || at != 0 && at <= int64(due) {
		return
	}
	p.at.Store(int64(max(due, 1)))
	p.timer.Reset(due - n.now())
}

// stop ends the pulse.
func (p *pulse) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.off = true
	p.timer.Stop()
}

// goOff does what has come due, and sets the pulse for what comes next.
func (n *Node) goOff() {
	n.pulse.at.Store(0)
	now := n.now()
	n.answerPing()
	if due, ok := n.tick(now); ok {
		n.wakeAt(max(due, now+gap))
	}
	if due, ok := n.tickAnswers(now); ok {
		n.wakeAt(due)
	}
	if due, ok := n.tickForgets(now); ok {
		n.wakeAt(due)
	}
	if due, ok := n.tickLarge(now); ok {
		n.wakeAt(due)
	}
	if n.lookAfter(now) {
		n.wakeAt(now + beat)
	}
	if n.chair.left.Swap(false) {
		n.wakeAt(now + beat) // somebody has just sat there
		return
	}
	n.sit()
}

// lookAfter promotes handlers that have held a reader for too long, and reports
// whether some hold one still.
func (n *Node) lookAfter(now time.Duration) (more bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, x := range n.exports {
		if e := x.running.Load(); e != nil && !e.promoteAfter(now, patience) {
			more = true
		}
	}
	return more
}
