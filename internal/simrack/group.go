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
}

// newGroup returns a group that does not end with ctx but by stop.
func newGroup(ctx context.Context) *group {
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	return &group{ctx: ctx, stop: stop}
}

// run starts a part; its error is reported by close.
func (g *group) run(name string, f func(context.Context) error) {
	g.wg.Go(func() {
		if err := f(g.ctx); err != nil {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.errs = append(g.errs, fmt.Errorf("%s: %w", name, err))
		}
	})
}

// close stops the parts, waits for them and returns their errors.
func (g *group) close() error {
	g.stop()
	g.wg.Wait()
	return errors.Join(g.errs...)
}
