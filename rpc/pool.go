package rpc

import "sync"

// pool runs an export's calls on a bounded number of workers, and keeps a bounded
// number waiting, first come, first served. A worker that comes back from a
// nested call goes before calls that have not begun: they finish something.
type pool struct {
	run func(*execution) // runs one call to its end

	mu        sync.Mutex
	free      int // slots nobody has
	started   int // calls begun and not ended
	queue     fifo[*execution]
	limit     int  // of queue
	closed    bool // nothing more is admitted
	returning fifo[chan struct{}]
	workers   sync.WaitGroup
}

// admit runs the call now, or later, or refuses it for want of room.
func (p *pool) admit(e *execution) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	if p.free > 0 && p.started < maxStarted {
		p.free--
		p.start(e)
		return true
	}
	if p.queue.len() >= p.limit {
		return false
	}
	p.queue.push(e)
	return true
}

// start runs a call on a slot taken for it. The caller holds the lock.
func (p *pool) start(e *execution) {
	p.started++
	p.workers.Add(1)
	go p.work(e)
}

// work runs a call and then, as long as it keeps a slot, those that wait.
func (p *pool) work(e *execution) {
	defer p.workers.Done()
	for e != nil {
		p.run(e)
		if e.end() {
			e = p.next()
		} else {
			p.ended()
			e = nil
		}
	}
}

// next ends a call and returns the one to run on its slot.
func (p *pool) next() *execution {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.started--
	if p.returning.len() == 0 && p.queue.len() > 0 {
		p.started++
		return p.queue.pop()
	}
	p.give()
	return nil
}

// ended ends a call that has no slot.
func (p *pool) ended() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.started--
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
	case p.queue.len() > 0 && p.started < maxStarted:
		p.start(p.queue.pop())
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

// close admits no more calls and returns those that have not begun.
func (p *pool) close() []*execution {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	var calls []*execution
	for p.queue.len() > 0 {
		calls = append(calls, p.queue.pop())
	}
	return calls
}

// fifo is a queue; the zero fifo is empty.
type fifo[T any] struct {
	items []T
	first int
}

func (q *fifo[T]) len() int { return len(q.items) - q.first }

func (q *fifo[T]) push(v T) {
	if q.first > 0 && len(q.items) == cap(q.items) {
		n := copy(q.items, q.items[q.first:])
		clear(q.items[n:])
		q.items, q.first = q.items[:n], 0
	}
	q.items = append(q.items, v)
}

func (q *fifo[T]) pop() T {
	v := q.items[q.first]
	clear(q.items[q.first : q.first+1])
	q.first++
	if q.first == len(q.items) {
		q.items, q.first = q.items[:0], 0
	}
	return v
}
