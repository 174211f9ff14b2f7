package interp

import (
	"fmt"
	"sync"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
)

// sweepEvery is how often entries are looked at for their idle timeout, and so
// how late a notification may come.
const sweepEvery = 100 * time.Millisecond

// sweeper tells the sink of entries that were not hit for their timeout. It
// runs while there are such entries to watch.
type sweeper struct {
	mu      sync.Mutex
	watched map[*entry]struct{}
	stop    chan struct{} // closed to stop the goroutine; nil if none runs
	done    sync.WaitGroup
	closed  bool
}

// watch starts watching an entry that has an idle timeout.
func (x *Executor) watch(e *entry) {
	if e.timeout <= 0 {
		return
	}
	w := &x.sweeper
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return
	}
	if w.watched == nil {
		w.watched = map[*entry]struct{}{}
	}
	w.watched[e] = struct{}{}
	if w.stop == nil {
		stop := make(chan struct{})
		w.stop = stop
		w.done.Go(func() { x.sweepUntil(stop) })
	}
}

// unwatch stops watching an entry.
func (x *Executor) unwatch(e *entry) {
	w := &x.sweeper
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.watched, e)
	if len(w.watched) == 0 && w.stop != nil {
		close(w.stop)
		w.stop = nil
	}
}

// close stops the goroutine and waits for it.
func (w *sweeper) close() {
	w.mu.Lock()
	w.closed = true
	if w.stop != nil {
		close(w.stop)
		w.stop = nil
	}
	w.mu.Unlock()
	w.done.Wait()
}

func (x *Executor) sweepUntil(stop chan struct{}) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
			for _, e := range x.idleEntries() {
				x.sink.Idle(e)
			}
		}
	}
}

// idleEntries are the entries whose timeout has passed since they were hit, or
// since they were last named here: an entry that stays idle is told of once for
// each timeout that passes, as P4Runtime wants it.
func (x *Executor) idleEntries() []datapath.Entry {
	now := x.c.now().UnixNano()
	w := &x.sweeper
	w.mu.Lock()
	defer w.mu.Unlock()
	var idle []datapath.Entry
	for e := range w.watched {
		if now-max(e.hit.Load(), e.told) >= int64(e.timeout) {
			idle = append(idle, clone(&e.source))
			e.told = now
		}
	}
	return idle
}

// SinceHit is how long ago an entry of a table with idle timeouts was hit, or,
// if it never was, made.
func (x *Executor) SinceHit(e datapath.Entry) (time.Duration, error) {
	x.lock.lock()
	defer x.lock.unlock()
	t, found, err := x.find(&e)
	if err != nil {
		return 0, err
	}
	if !t.def.Timeout {
		return 0, fmt.Errorf("table %q: %w: it has no idle timeouts", e.Table, datapath.ErrUnsupported)
	}
	return x.c.now().Sub(time.Unix(0, max(found.hit.Load(), x.start.UnixNano()))), nil
}
