package rpc

import (
	"context"
	"sync"

	"github.com/bifrost-rack/bifrost/internal/fault"
)

// lifetime says whether the node goes on, and why it does not. Whoever uses it may do so at any time.
type lifetime struct {
	name    string
	base    context.Context //nolint:containedctx // of handlers, and of all that the node does by itself
	cancel  context.CancelFunc
	done    chan struct{}  // closed when the node has ended
	readers sync.WaitGroup // the goroutines that Close waits for

	mu      sync.Mutex
	err     error // why the node has ended, or is ending
	ended   bool  // done is closed, or about to be
	dying   bool  // it is about to be ended
	closing bool  // Close has been called
}

func newLifetime(name string) *lifetime {
	l := &lifetime{name: name, done: make(chan struct{})}
	l.base, l.cancel = context.WithCancel(context.Background())
	return l
}

// enter counts a goroutine among the readers that Close waits for, unless the
// node has ended.
func (l *lifetime) enter() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return false
	}
	l.readers.Add(1)
	return true
}

// failure is why the node has ended, or is ending.
func (l *lifetime) failure() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// whyEnded is why the node can do nothing any more.
func (l *lifetime) whyEnded() error {
	if err := l.failure(); err != nil {
		return err
	}
	return fault.New(Unavailable, "node "+l.name, "the node has ended")
}

// isOver is why the node has ended, or nothing that it does counts any more; nil while it goes on, also while it closes.
func (l *lifetime) isOver() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended || l.dying {
		return l.err
	}
	return nil
}

// close notes that Close has been called, and reports whether it is the first time.
func (l *lifetime) close() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closing {
		return false
	}
	l.closing = true
	if l.err == nil {
		l.err = &Error{Code: Unavailable, Op: "node " + l.name, Msg: "closed"}
	}
	return true
}

// die notes that nothing that the node does counts any more, until somebody ends it.
func (l *lifetime) die(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dying = true; l.err == nil {
		l.err = err
	}
}

// end notes that the node ends, and reports whether it is the first time. It returns whether nobody has closed the node, too, and why it ends.
func (l *lifetime) end(err error) (unexpected, first bool, why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return false, false, nil
	}
	l.ended = true
	if l.err == nil {
		l.err = err
	}
	return !l.closing, true, l.err
}

// await waits until a channel is closed. The error says that the context, or the node, has ended before.
func (l *lifetime) await(ctx context.Context, over <-chan struct{}) error {
	select {
	case <-over:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-l.base.Done():
		return l.whyEnded()
	}
}
