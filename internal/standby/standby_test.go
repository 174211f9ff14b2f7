package standby

import (
	"testing"
	"testing/synctest"

	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
)

// One goroutine stands by. It gets the next piece of work, and nobody else does.
func TestPost(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p, end := New[int](), make(chan struct{})
		if p.Give(1) {
			t.Error("work is given to nobody")
		}
		type outcome struct {
			work int
			ok   bool
		}
		waits := func() chan outcome {
			over := make(chan outcome, 1)
			go func() {
				work, ok := p.Wait(end)
				over <- outcome{work, ok}
			}()
			synctest.Wait()
			return over
		}
		first := waits()
		if got := <-waits(); got.ok {
			t.Errorf("a second one stands by: %v", got)
		}
		if !p.Give(2) {
			t.Error("work is not given to who stands by")
		}
		if got := <-first; got != (outcome{2, true}) {
			t.Errorf("it has got %v", got)
		}
		if p.Give(3) {
			t.Error("work is given to who has gone")
		}
		again := waits()
		close(end)
		if got := <-again; got.ok {
			t.Errorf("after the end it has got %v", got)
		}
	})
}
