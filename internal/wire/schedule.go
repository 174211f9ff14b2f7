package wire

import (
	"cmp"
	"container/heap"
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/bifrost-rack/bifrost/internal/duration"
)

// Schedule makes a wire scheduled.
type Schedule struct {
	// Seed decides everything that is drawn at random.
	Seed uint64
	// Quiesce returns when everything in the rack waits: synctest.Wait in a
	// testing/synctest bubble. Without it (nil) the wire runs in real time: it
	// impairs, but a seed does not replay.
	Quiesce func()
}

// orderKey orders frames that were sent at one instant, where the order in which
// goroutines came to run must not matter.
type orderKey struct{ from netip.AddrPort }

// scheduler gives every arrival an instant of its own.
//
//	send ─▶ outbox ─ plan (sorted, dice thrown) ─▶ events ─ one at a time ─▶ arrive
//	any goroutine      \______________ Run's goroutine only ______________/
type scheduler struct {
	net    *Net
	cfg    Schedule
	kick   chan struct{} // something is in the outbox
	events events
	taken  map[time.Duration]bool // instants of events
	start  time.Time              // instants count from here

	mu      sync.Mutex
	outbox  []sent
	stopped bool
}

// sent is a frame that waits to be planned.
type sent struct {
	dir   *direction
	key   orderKey
	life  uint64 // of the link when it was sent
	frame []byte
}

func newScheduler(n *Net, cfg Schedule) *scheduler {
	if cfg.Quiesce == nil {
		cfg.Quiesce = func() {}
	}
	return &scheduler{net: n, cfg: cfg, kick: make(chan struct{}, 1), taken: map[time.Duration]bool{}}
}

// send puts a frame into the outbox. Nobody changes it any more.
func (s *scheduler) send(d *direction, key orderKey, b []byte) {
	s.mu.Lock()
	if !s.stopped {
		s.outbox = append(s.outbox, sent{d, key, d.link.life.Load(), b})
	}
	s.mu.Unlock()
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// run is the event loop.
func (s *scheduler) run(ctx context.Context) {
	defer s.stop()
	s.start = time.Now()
	alarm := time.NewTimer(0)
	defer alarm.Stop()
	for ctx.Err() == nil {
		s.cfg.Quiesce()
		s.plan()
		wait := time.Duration(1<<63 - 1)
		if len(s.events) > 0 {
			wait = s.events[0].at - s.now()
		}
		if wait <= 0 {
			s.next()
			continue
		}
		alarm.Reset(wait)
		select {
		case <-ctx.Done():
		case <-s.kick:
		case <-alarm.C:
		}
	}
}

// now is the present instant.
func (s *scheduler) now() time.Duration { return time.Since(s.start) }

// next lets the first event happen.
func (s *scheduler) next() {
	e := heap.Pop(&s.events).(event)
	delete(s.taken, e.at)
	e.dir.flying--
	seq := s.net.seq.Add(1)
	if e.life != e.dir.link.life.Load() {
		e.dir.stats.Down.Add(1)
		s.net.tell(e.dir, Lost, seq, e.frame)
		return
	}
	if s.net.tell(e.dir, Arriving, seq, e.frame) {
		s.cfg.Quiesce()
	}
	s.net.handOver(e.dir, e.frame)
	if s.net.cfg.OnFrame != nil {
		s.cfg.Quiesce()
	}
	s.net.tell(e.dir, Arrived, seq, e.frame)
}

// plan turns what has been sent at this instant into events.
func (s *scheduler) plan() {
	s.mu.Lock()
	out := s.outbox
	s.outbox = nil
	s.mu.Unlock()
	slices.SortStableFunc(out, func(a, b sent) int {
		return cmp.Or(
			cmp.Compare(a.dir.link.host.index, b.dir.link.host.index),
			compareBool(a.dir.toSwitch, b.dir.toSwitch),
			a.key.from.Compare(b.key.from))
	})
	now := s.now()
	for _, f := range out {
		s.planOne(f, now)
	}
}

// planOne throws the dice for one frame.
func (s *scheduler) planOne(f sent, now time.Duration) {
	fate := f.dir.dice.throw(f.dir.impairment.Load())
	d, stats := f.dir, &f.dir.stats
	if fate.lost {
		stats.Lost.Add(1)
		s.net.tell(d, Lost, s.net.seq.Add(1), f.frame)
		return
	}
	at := duration.Add(now, fate.delay)
	switch {
	case fate.late:
		stats.Late.Add(1)
		s.schedule(f, now, duration.Add(at, fate.lateBy))
	case fate.reordered:
		stats.Reordered.Add(1)
		s.schedule(f, now, duration.Add(at, fate.reorderBy))
	default:
		d.last = s.schedule(f, now, max(at, d.last))
	}
	if fate.duplicated {
		stats.Duplicated.Add(1)
		s.schedule(f, now, duration.Add(at, fate.copyBy))
	}
}

// schedule makes an event at the first free instant from at on, but later than
// now, and returns the instant.
func (s *scheduler) schedule(f sent, now, at time.Duration) time.Duration {
	if f.dir.flying >= inFlight {
		f.dir.stats.Full.Add(1)
		return at
	}
	at = min(max(at, now+1), never)
	for s.taken[at] {
		at++
	}
	s.taken[at] = true
	f.dir.flying++
	heap.Push(&s.events, event{at, f})
	return at
}

func (s *scheduler) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped, s.outbox = true, nil
}

// event is a frame that arrives at an instant.
type event struct {
	at time.Duration
	sent
}

// events is a heap, the earliest on top; no two are at the same instant.
type events []event

func (e events) Len() int           { return len(e) }
func (e events) Less(i, j int) bool { return e[i].at < e[j].at }
func (e events) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)        { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	old := *e
	last := old[len(old)-1]
	old[len(old)-1] = event{}
	*e = old[:len(old)-1]
	return last
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}
