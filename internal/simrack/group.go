package simrack

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// group is parts of the rack that run and end together.
type group struct {
	ctx  context.Context // the parts' life, not a call's
	stop context.CancelFunc
	wg   sync.WaitGroup
	mu   sync.Mutex
	errs []error
	fail func() // called when a part has failed
}

// newGroup returns a group that does not end with ctx but by stop. It says when a part has failed.
func newGroup(ctx context.Context, fail func()) *group {
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	return &group{ctx: ctx, stop: stop, fail: fail}
}

// run starts a part; its error is reported by close.
func (g *group) run(name string, f func(context.Context) error) {
	g.wg.Go(func() {
		if err := f(g.ctx); err != nil {
			g.fail()
			g.mu.Lock()
			defer g.mu.Unlock()
			g.errs = append(g.errs, fmt.Errorf("%s: %w", name, err))
		}
	})
}

// close stops the parts, waits for them and returns their errors, the first time.
func (g *group) close() error {
	g.stop()
	g.wg.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	errs := g.errs
	g.errs = nil
	return errors.Join(errs...)
}
