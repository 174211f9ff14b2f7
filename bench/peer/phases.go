package peer

import (
	"sync"
	"time"
)

// Phase is a part of an operation.
type Phase string

// The parts of an operation.
const (
	Pre       Phase = "pre"       // arguments put into memory, by the client
	Post      Phase = "post"      // the result read from memory, and all freed, by the client
	Alloc     Phase = "alloc"     // of that: allocations
	Free      Phase = "free"      // and frees
	Call      Phase = "call"      // the call, as the client sees it
	Marshal   Phase = "marshal"   // Thrift's work in the client
	Handler   Phase = "handler"   // the handler, memory included
	Unmarshal Phase = "unmarshal" // Thrift's work in the server
	Memory    Phase = "memory"    // the handler's memory accesses
	HAlloc    Phase = "halloc"    // of these, allocations
	Compute   Phase = "compute"   // the rest of the handler
)

// Phases adds up how long the parts of operations have taken. A nil Phases does
// nothing. Its methods may be called concurrently.
type Phases struct {
	mu  sync.Mutex
	sum map[Phase]Total
}

// Total is the sum of a part's times.
type Total struct {
	Nanos int64 `json:"ns"`
	Count int64 `json:"n"`
}

// Mean is the mean in microseconds, over a number of operations.
func (t Total) Mean(operations int64) float64 {
	if operations == 0 {
		return 0
	}
	return float64(t.Nanos) / 1e3 / float64(operations)
}

// Add adds d to a part.
func (p *Phases) Add(name Phase, d time.Duration) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sum == nil {
		p.sum = map[Phase]Total{}
	}
	t := p.sum[name]
	p.sum[name] = Total{t.Nanos + d.Nanoseconds(), t.Count + 1}
}

// Time starts a part; the function it returns ends it.
func (p *Phases) Time(name Phase) func() {
	if p == nil {
		return func() {}
	}
	start := time.Now()
	return func() { p.Add(name, time.Since(start)) }
}

// Take returns all sums and begins anew.
func (p *Phases) Take() map[Phase]Total {
	p.mu.Lock()
	defer p.mu.Unlock()
	sum := p.sum
	p.sum = nil
	return sum
}

// Served is what the servers of this process tell of their handlers, once
// somebody has asked for it.
var Served servedPhases

// servedPhases are phases that cost nothing until they are wanted.
type servedPhases struct {
	mu sync.RWMutex
	on *Phases
}

// Enable makes handlers tell how long their parts take.
func (s *servedPhases) Enable() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.on == nil {
		s.on = &Phases{}
	}
}

// Phases returns where to tell; nil if nobody wants it.
func (s *servedPhases) Phases() *Phases {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.on
}
