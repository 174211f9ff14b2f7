package netio

import "context"

// Watch makes the end of a context interrupt a reader. It stays when its caller
// leaves, who mostly comes again with the same one. It belongs to whoever reads; the
// zero Watch watches nothing.
type Watch struct {
	done <-chan struct{}
	stop func() bool
}

// Set watches ctx, and nothing else any more.
func (w *Watch) Set(ctx context.Context, interrupt func()) {
	done := ctx.Done()
	if done == nil || done == w.done {
		return
	}
	w.Clear()
	w.done, w.stop = done, context.AfterFunc(ctx, interrupt)
}

// Clear watches nothing.
func (w *Watch) Clear() {
	if w.stop != nil {
		w.stop()
	}
	*w = Watch{}
}
