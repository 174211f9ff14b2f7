package bubble

import (
	"strings"
	"testing"
	"time"
)

// TestOverdue: a test waits for what never comes, beside a goroutine that always has something to do. It is overdue when its
// time is over, and the report shows where it waits.
func TestOverdue(t *testing.T) {
	const limit = time.Minute
	why := ""
	var never chan struct{}
	run(t, limit, func(t *testing.T) {
		never = make(chan struct{})
		go beat(t)
		from := time.Now()
		waitFor(never)
		if took := time.Since(from); took != limit {
			t.Errorf("overdue after %v", took)
		}
	}, func(w string) {
		why = w
		close(never)
	})
	for _, want := range []string{"TestOverdue has not ended after 1m0s", "p4switch/shared/bubble.waitFor("} {
		if !strings.Contains(why, want) {
			t.Errorf("%q is not in: %s", want, why)
		}
	}
	if n := strings.Count(why, "synctest bubble "); n != 1 {
		t.Errorf("%d goroutines in: %s", n, why)
	}
}

// beat does something every second until the test has ended.
func beat(t *testing.T) {
	for beats := time.NewTicker(time.Second); ; {
		select {
		case <-beats.C:
		case <-t.Context().Done():
			return
		}
	}
}

//go:noinline
func waitFor(never <-chan struct{}) { <-never }
