package unixjoin

import (
	"strings"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/internal/join"
)

// A program counts as hung after its threshold, no earlier; whoever answers in time, or takes
// up calls now and then, does not.
func TestHealth(t *testing.T) {
	limits := join.Thresholds{Answer: 4 * time.Second, Progress: 8 * time.Second}
	for name, tc := range map[string]struct {
		limits  join.Thresholds
		answers string // for each tick: a answers, s answers that it is stalled, - nothing
		after   int    // ticks until it counts as hung; 0 for never
		why     string
	}{
		"well":                  {limits, strings.Repeat("a", 50), 0, ""},
		"silent from the first": {limits, strings.Repeat("-", 50), 5, "not answered"},
		"silent later":          {limits, "aaaaa" + strings.Repeat("-", 50), 10, "not answered"},
		"late, but it answers":  {limits, strings.Repeat("---a", 20), 0, ""},
		"stalled":               {limits, strings.Repeat("s", 50), 9, "taken up none"},
		"slow":                  {limits, strings.Repeat("sssssssa", 10), 0, ""},
		"only progress counts":  {join.Thresholds{Progress: 4 * time.Second}, strings.Repeat("-", 50), 0, ""},
		"only answers count":    {join.Thresholds{Answer: 4 * time.Second}, strings.Repeat("s", 50), 0, ""},
	} {
		h := health{every: shortest(tc.limits), limits: tc.limits}
		after, reason := 0, ""
		for k, answer := range tc.answers {
			if _, why := h.tick(); why != "" {
				after, reason = k+1, why
				break
			}
			if answer != '-' {
				h.answered(answer == 's')
			}
		}
		if after != tc.after || !strings.Contains(reason, tc.why) {
			t.Errorf("%s: hung after %d ticks (%s), want %d (%s)", name, after, reason, tc.after, tc.why)
		}
	}
}

// The daemon asks a program that answers, over the socket, and notices when it does not any
// more. One that has never answered is not asked.
func TestWatch(t *testing.T) {
	h, socket := start(t)
	s, err := Joiner{Socket: socket}.Join(t.Context(), "watched")
	if err != nil {
		t.Fatal(err)
	}
	n := <-h.nodes
	pings := make(chan struct{}, 100)
	s.(join.Pinged).OnPing(func() { pings <- struct{}{} })
	for range 3 {
		<-pings
		s.(join.Pinged).Alive(false)
	}
	<-pings // and this one stays unanswered
	for {
		if got := <-n.events; strings.HasPrefix(got, "hung: it has not answered") {
			break
		} else if !strings.HasPrefix(got, "hung") { // on a machine so slow that it was late before
			t.Fatal(got)
		}
	}
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
	n.want(t, "close")
	other, m := joinNode(t, h, socket)
	if err := other.Close(t.Context()); err != nil {
		t.Error(err)
	}
	m.want(t, "close")
}

// A call that is to be cancelled is named to the program.
func TestCancel(t *testing.T) {
	h, socket := start(t)
	s, n := joinNode(t, h, socket)
	got := make(chan string, 1)
	s.(join.Canceller).OnCancel(func(call, deadlock string) { got <- call + deadlock })
	n.mu.Lock()
	cancel := n.cancel
	n.mu.Unlock()
	cancel("0123", "it waits for itself")
	if call := <-got; call != "0123it waits for itself" {
		t.Errorf("%q is to be cancelled", call)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
