package gatekeeper

import (
	"context"
	"sync"

	"github.com/bifrost-rack/bifrost/gatekeeper/p4rtclient"
)

// writer writes plans to the switch. It outlives sessions: what a session did
// not get answered, the next one writes again.
type writer struct {
	wake    chan struct{} // there may be something to write
	errands chan errand   // to be done between batches

	mu sync.Mutex
	b  batcher
}

func newWriter() *writer { return &writer{wake: make(chan struct{}, 1), errands: make(chan errand)} }

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

// run writes until ctx ends or the switch cannot be reached, and hands finished
// plans to done.
func (w *writer) run(ctx context.Context, write func(context.Context, []p4rtclient.Update) error, done func([]*plan)) error {
	for {
		select {
		case e := <-w.errands:
			if err := w.carryOut(ctx, e); err != nil {
				return err
			}
		default:
		}
		w.mu.Lock()
		finished := w.b.done()
		idle := w.b.idle()
		var batch []p4rtclient.Update
		if !idle {
			batch = w.b.next()
		}
		w.mu.Unlock()
		if len(finished) > 0 {
			done(finished)
		}
		if idle {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-w.wake:
			case e := <-w.errands:
				if err := w.carryOut(ctx, e); err != nil {
					return err
				}
			}
			continue
		}
		err := write(ctx, batch)
		w.mu.Lock()
		err = w.b.answer(err)
		w.mu.Unlock()
		if err != nil {
			return err
		}
	}
}

// carryOut does an errand. Its failure ends the session, which then begins anew.
func (w *writer) carryOut(ctx context.Context, e errand) error {
	err := e.do(ctx)
	e.done <- err
	return err
}
