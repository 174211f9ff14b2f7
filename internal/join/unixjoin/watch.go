package unixjoin

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/bifrost-rack/bifrost/internal/join"
)

// A program that its daemon has started is asked now and then whether it is alive, and
// counts as hung when it leaves that unanswered for too long, or has calls waiting and takes
// up none for too long. Questions are counted, not time: a daemon that was paused itself
// comes back to one question without an answer, whatever its clock says.

// looks is how many questions fall into a threshold.
const looks = 4

// watch judges a program by its answers until ctx, or its node, ends.
func (s *server) watch(ctx context.Context, wg *sync.WaitGroup, node join.Hosted) {
	limits := node.Thresholds()
	every := shortest(limits)
	if every == 0 {
		return
	}
	select {
	case <-s.health: // it is one that answers
	case <-node.Done():
		return
	case <-ctx.Done():
		return
	}
	h := health{every: every, limits: limits}
	ticks := time.NewTicker(every)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-node.Done():
			return
		case stalled := <-s.health:
			h.answered(stalled)
		case <-ticks.C:
			ask, why := h.tick()
			if why != "" {
				node.Hung(why)
				return
			}
			if ask { // in a goroutine: a program that is stopped does not read
				wg.Go(func() { _ = s.write(reply{Ping: true}) }) // the reader sees the connection's end
			}
		}
	}
}

// shortest is how often to ask: so often that each threshold has its looks.
func shortest(t join.Thresholds) time.Duration {
	every := t.Answer
	if t.Progress > 0 && (every == 0 || t.Progress < every) {
		every = t.Progress
	}
	return every / looks
}

// health is what a program's answers tell. It has no clock: a tick is so much time.
type health struct {
	every  time.Duration
	limits join.Thresholds

	asked   bool // and not answered
	silent  int  // ticks since the question that is not answered
	stalled int  // answers in a row that say so
}

// answered takes an answer.
func (h *health) answered(stalled bool) {
	h.asked, h.silent = false, 0
	if h.stalled++; !stalled {
		h.stalled = 0
	}
}

// tick says whether to ask, or why the program counts as hung.
func (h *health) tick() (ask bool, why string) {
	if h.asked {
		h.silent++
	}
	switch {
	case h.over(h.silent, h.limits.Answer):
		return false, fmt.Sprintf("it has not answered its daemon for %v", h.limits.Answer)
	case h.over(h.stalled, h.limits.Progress):
		return false, fmt.Sprintf("it has calls waiting and has taken up none for %v", h.limits.Progress)
	}
	ask, h.asked = !h.asked, true
	return ask, ""
}

// over reports whether so many ticks are a threshold.
func (h *health) over(ticks int, limit time.Duration) bool {
	return limit > 0 && time.Duration(ticks)*h.every >= limit
}
