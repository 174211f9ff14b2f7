package rpc

import (
	"testing"
	"time"
)

// What waits is told at most every waitsAfter, from the first time on, later and later, and no
// more while the last report is on its way.
func TestWaitsPace(t *testing.T) {
	var w waits
	now := time.Hour
	var last time.Duration
	for i := range 10 {
		tell, due := w.pace(now, true)
		if !tell || due < now+waitsAfter || due > now+maxWaitsInterval || due-now < last {
			t.Fatalf("report %d: %t, due in %v after %v", i, tell, due-now, last)
		}
		if tell, due := w.pace(due, true); tell || due <= now {
			t.Fatalf("report %d: another one, %t, due %v", i, tell, due-now)
		}
		w.telling = false
		if tell, again := w.pace(due-1, true); tell || again != due {
			t.Fatalf("report %d: too early, %t", i, tell)
		}
		last, now = due-now, due
	}
	if last != maxWaitsInterval {
		t.Errorf("the last interval is %v", last)
	}
	if tell, _ := w.pace(now, false); !tell || w.told {
		t.Error("that nothing waits is not told")
	}
	w.telling = false
	if tell, due := w.pace(w.due, true); !tell || due != w.due || w.interval != waitsAfter {
		t.Errorf("then again: %t, interval %v", tell, w.interval)
	}
}
