// Package standby keeps a goroutine that has done its work for the next piece of it.
//
// A goroutine begins with a small stack, which is copied to a larger one each time that it
// does not suffice. Where a goroutine is started for each packet and runs a handler, or what an
// answer leads to, that took a tenth of the time of an exactly-once call.
package standby

import "sync/atomic"

// Post is where a goroutine stands by for work that a T says, one at most. It is safe for
// concurrent use. Make it with New.
type Post[T any] struct {
	work  chan T
	taken atomic.Bool // a goroutine stands by, or is about to
}

// New returns a post where nobody stands by.
func New[T any]() *Post[T] { return &Post[T]{work: make(chan T)} }

// Give hands work to the goroutine that stands by, and reports whether there is one. If not, the
// caller starts a goroutine.
func (p *Post[T]) Give(work T) bool {
	select {
	case p.work <- work:
		return true
	default:
		return false
	}
}

// Wait stands by until there is work, which it returns. It returns false at once if another
// goroutine stands by, and when end is closed.
func (p *Post[T]) Wait(end <-chan struct{}) (work T, ok bool) {
	if !p.taken.CompareAndSwap(false, true) {
		return work, false
	}
	defer p.taken.Store(false)
	select {
	case work = <-p.work:
		return work, true
	case <-end:
		return work, false
	}
}
