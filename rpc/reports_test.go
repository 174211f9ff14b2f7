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
		_, early := w.early(now)
		due := w.pace(now, true)
		if early || due < now+waitsAfter || due > now+waitsPauses.Most || due-now < last {
			t.Fatalf("report %d: %t, due in %v after %v", i, !early, due-now, last)
		}
		if again, early := w.early(due); !early || again <= now {
			t.Fatalf("report %d: another one, %t, due %v", i, !early, again-now)
		}
		w.telling = false
		if again, early := w.early(due - 1); !early || again != due {
			t.Fatalf("report %d: too early, %t", i, !early)
		}
		last, now = due-now, due
	}
	if last != waitsPauses.Most {
		t.Errorf("the last interval is %v", last)
	}
	if _, early := w.early(now); early {
		t.Error("it is too early to tell that nothing waits")
	}
	if w.pace(now, false); w.told {
		t.Error("that nothing waits is not told")
	}
	w.telling = false
	_, early := w.early(w.due)
	if due := w.pace(w.due, true); early || due != w.due || w.interval != waitsAfter {
		t.Errorf("then again: %t, interval %v", !early, w.interval)
	}
}
