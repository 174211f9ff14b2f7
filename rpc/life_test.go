package rpc

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
)

func newLife(base context.Context, d time.Time) (*life, *opSequence) {
	s := new(opSequence)
	return &life{opSequence: s, base: base, deadline: d}, s
}

// A handler's context is one of the library's in every way, though it is not made before
// it is asked for.
func TestLife(t *testing.T) {
	type key struct{}
	base, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "value"))
	l, s := newLife(base, time.Time{})
	if _, ok := l.Deadline(); ok || l.Err() != nil || branchOf(l) != s || l.Value(key{}) != "value" || l.inner != nil {
		t.Error("before anybody waits")
	}
	before := runtime.NumGoroutine()
	child, stop := context.WithTimeout(l, time.Hour)
	defer stop()
	if n := runtime.NumGoroutine(); n != before {
		t.Errorf("a context derived from it takes %d goroutines", n-before)
	}
	if branchOf(child) != s || child.Value(key{}) != "value" || l.Err() != nil {
		t.Error("while it goes on")
	}
	l.end()
	<-child.Done()
	if !errors.Is(l.Err(), context.Canceled) || !errors.Is(child.Err(), context.Canceled) || base.Err() != nil {
		t.Errorf("ended: %v, %v, base %v", l.Err(), child.Err(), base.Err())
	}
	cancel()

	l, _ = newLife(base, time.Time{})
	if !errors.Is(l.Err(), context.Canceled) {
		t.Errorf("the node has ended: %v", l.Err())
	}
	<-l.Done()
	l, _ = newLife(t.Context(), time.Time{})
	l.end() // given up before the handler began
	if <-l.Done(); !errors.Is(l.Err(), context.Canceled) {
		t.Errorf("given up: %v", l.Err())
	}
	l, _ = newLife(t.Context(), time.Time{})
	l.end()
	if !errors.Is(l.Err(), context.Canceled) {
		t.Errorf("given up, and nobody waits: %v", l.Err())
	}
}

func TestLifeHasADeadline(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		at := time.Now().Add(time.Second)
		l, _ := newLife(t.Context(), at)
		if d, ok := l.Deadline(); !ok || d != at || l.Err() != nil {
			t.Errorf("deadline %v, %v; %v", d, ok, l.Err())
		}
		<-l.Done()
		if time.Now() != at || !errors.Is(l.Err(), context.DeadlineExceeded) {
			t.Errorf("%v after the deadline: %v", time.Since(at), l.Err())
		}
	})
}
