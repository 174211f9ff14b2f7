package gatekeeper

import (
	"context"
	"sync"

	"github.com/bifrost-rack/bifrost/gatekeeper/p4rtclient"
)

// writer writes plans to the switch. It outlives sessions: what a session did
// not get answered, the next one writes again.
//
//	tell ──▶ the session's stream     in order with packets: nobody waits for an answer
//	submit ─▶ batcher ─▶ Write        where the switch takes no writes there, or might
//	                                  refuse them: one request at a time, each answered
//
// The two never overtake each other: nothing is told while something is to be asked,
// and before anything is asked, a barrier ends what was told.
type writer struct {
	wake    chan struct{} // there may be something to write
	errands chan errand   // to be done between batches

	mu   sync.Mutex
	b    batcher
	busy bool // a batch or an errand is out
	told bool // on this stream, since the last barrier
}

// stream is what the writer needs of a session with the switch.
type stream interface {
	Tell(updates []p4rtclient.Update) error
	Barrier(ctx context.Context) error
	Context() context.Context
}

func newWriter() *writer { return &writer{wake: make(chan struct{}, 1), errands: make(chan errand)} }

// tell has all phases of plans written on the session's stream: in force before
// whatever is sent there next. It reports false if they must be submitted.
func (w *writer) tell(s stream, plans []*plan) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.busy || !w.b.idle() {
		return false
	}
	var updates []p4rtclient.Update
	for i := range 2 { // of all plans, deletions first
		for _, p := range plans {
			updates = append(updates, p.phases[i]...)
		}
	}
	if len(updates) > 0 && s.Tell(updates) != nil {
		return false
	}
	w.told = w.told || len(updates) > 0
	return true
}

// submit takes plans; it does not block. Their number is bounded by the
// controller, which begins a new transition only if few are under way.
func (w *writer) submit(plans []*plan) {
	w.mu.Lock()
	for _, p := range plans {
		w.b.submit(p)
	}
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// run writes until the session ends or the switch cannot be reached, and hands
// finished plans to done.
func (w *writer) run(s stream, write func(context.Context, []p4rtclient.Update) error, done func([]*plan)) error {
	ctx := s.Context()
	w.begin()
	for {
		select {
		case e := <-w.errands:
			if err := w.carryOut(s, e); err != nil {
				return err
			}
		default:
		}
		finished, batch := w.next()
		if len(finished) > 0 {
			done(finished)
		}
		if len(batch) == 0 {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-w.wake:
			case e := <-w.errands:
				if err := w.carryOut(s, e); err != nil {
					return err
				}
			}
			continue
		}
		err := w.barrier(s)
		if err == nil {
			err = write(ctx, batch)
		}
		w.mu.Lock()
		err = w.b.answer(err)
		w.mu.Unlock()
		if err != nil {
			return err
		}
	}
}

// begin forgets what was told to another session: it is over, and its tables have
// been read back.
func (w *writer) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.busy, w.told = false, false
}

// next returns the plans that have ended, and the next batch, if there is one.
func (w *writer) next() (finished []*plan, batch []p4rtclient.Update) {
	w.mu.Lock()
	defer w.mu.Unlock()
	finished = w.b.done()
	if w.busy = !w.b.idle(); w.busy {
		batch = w.b.next()
	}
	return finished, batch
}

// barrier returns when the switch has done what it was told.
func (w *writer) barrier(s stream) error {
	w.mu.Lock()
	told := w.told
	w.told = false
	w.mu.Unlock()
	if !told {
		return nil
	}
	return s.Barrier(s.Context())
}

// carryOut does an errand. Its failure ends the session, which then begins anew.
func (w *writer) carryOut(s stream, e errand) error {
	w.mu.Lock()
	w.busy = true
	w.mu.Unlock()
	err := w.barrier(s)
	if err == nil {
		err = e.do(s.Context())
	}
	e.done <- err
	return err
}
