package rpc

import (
	"context"
	"sync"
	"time"
)

// life is a handler's context. Most handlers never wait for its end, so what that takes
// (a channel, a place among the children of the node's context) is made when somebody
// first asks for it. It ends when the handler has returned, when the caller gives the
// call up, when its deadline passes, and with the node.
type life struct {
	strand   *strand         // the handler's trunk
	base     context.Context //nolint:containedctx // the node's
	deadline time.Time       // zero: none

	mu     sync.Mutex
	inner  context.Context //nolint:containedctx // nil until asked for
	cancel context.CancelFunc
	over   bool
}

var _ context.Context = (*life)(nil)

// Value finds the strand; the rest is the node's.
func (l *life) Value(key any) any {
	if key == (branchKey{}) {
		return l.strand
	}
	l.mu.Lock()
	inner := l.inner
	l.mu.Unlock()
	if inner == nil {
		inner = l.base
	}
	return inner.Value(key) // of inner, so that contexts derived from l know it as one of the library's
}

// Deadline is the caller's.
func (l *life) Deadline() (time.Time, bool) {
	if !l.deadline.IsZero() {
		return l.deadline, true
	}
	return l.base.Deadline()
}

// Done is closed when the context ends.
func (l *life) Done() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.whole().Done()
}

// Err is why it has ended.
func (l *life) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.inner == nil && !l.over && l.deadline.IsZero() {
		return l.base.Err()
	}
	return l.whole().Err()
}

// whole makes what the context lacks. The caller holds the lock.
func (l *life) whole() context.Context {
	if l.inner != nil {
		return l.inner
	}
	if l.deadline.IsZero() {
		l.inner, l.cancel = context.WithCancel(l.base)
	} else {
		l.inner, l.cancel = context.WithDeadline(l.base, l.deadline)
	}
	if l.over {
		l.cancel()
	}
	return l.inner
}

// end ends the context.
func (l *life) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = true
	if l.cancel != nil {
		l.cancel()
	}
}
