package rpc

import "sync"

// pool runs an export's calls on a bounded number of workers, and keeps a bounded
// number waiting, first come, first served. A worker is whatever goroutine holds
// one of the slots. One that comes back from a nested call goes before calls that
// have not begun: it finishes something.
type pool struct {
	run func(*execution) // runs one call to its end

	mu        sync.Mutex
	free      int    // slots nobody has
	started   int    // calls begun and not ended
	begun     uint64 // calls begun
	judged    uint64 // of them, as of the last stalled
	most      int    // of started
	queue     fifo[*execution]
	limit     int  // of queue
	closed    bool // nothing more is admitted
	returning fifo[chan struct{}]
	calls     sync.WaitGroup // started
}

// admission is what a pool does with a call.
type admission uint8

const (
	begun   admission = iota // it has a slot: whoever asked must work on it
	waiting                  // it will be run by a worker
	refused                  // there is no room
)

// admit finds a slot for a call or lets it wait.
func (p *pool) admit(e *execution) admission {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return refused
	case p.free > 0 && p.started < p.most:
		p.free--
		p.begin()
		return begun
	case p.queue.len() >= p.limit:
		return refused
	}
	e.keep()
	p.queue.push(e)
	return waiting
}

// begin counts a call that has a slot. The caller holds the lock.
func (p *pool) begin() {
	p.started++
	p.begun++
	p.calls.Add(1)
}

// work runs a call that has a slot and then, on the same slot, those that wait.
func (p *pool) work(e *execution) {
	for e != nil {
		p.run(e)
		e = p.end(e)
	}
}

// end ends a call and returns the one to run next on its slot, if it has one: a
// handler may have left a goroutine behind that gave it away.
func (p *pool) end(e *execution) *execution {
	slot := e.end()
	defer p.calls.Done()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.started--
	if !slot {
		return nil
	}
	if p.returning.len() == 0 && p.queue.len() > 0 {
		p.begin()
		return p.queue.pop()
	}
	p.give()
	return nil
}

// release gives a slot back while its worker waits.
func (p *pool) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.give()
}

// give hands a slot on. The caller holds the lock.
func (p *pool) give() {
	switch {
	case p.returning.len() > 0:
		close(p.returning.pop())
	case p.queue.len() > 0 && p.started < p.most:
		p.begin()
		go p.work(p.queue.pop())
	default:
		p.free++
	}
}

// acquire takes a slot again, waiting for one if need be.
func (p *pool) acquire() {
	p.mu.Lock()
	if p.free > 0 {
		p.free--
		p.mu.Unlock()
		return
	}
	turn := make(chan struct{})
	p.returning.push(turn)
	p.mu.Unlock()
	<-turn
}

// isClosed reports whether no more calls are admitted.
func (p *pool) isClosed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed
}

// shut admits no more calls; those that wait are run.
func (p *pool) shut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
}

// close admits no more calls and returns those that have not begun, except
// one-ways: their callers have been told that they are accepted.
func (p *pool) close() (calls []*execution) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for range p.queue.len() {
		if e := p.queue.pop(); e.receipted() {
			p.queue.push(e)
		} else {
			calls = append(calls, e)
		}
	}
	return calls
}
