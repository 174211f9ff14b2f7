package rpc

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
)

// The first report of a node says that it is the first until one has been heard: else the calls that it counts would count as told.
func TestReportsFirst(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var told []bool
		r := reports{
			life: newLifetime("node"), pulse: &pulse{start: time.Now(), timer: time.AfterFunc(time.Hour, func() {})}, log: slog.New(slog.DiscardHandler),
			room: func(*control.NodeCalls) {},
			tells: func(_ context.Context, c control.NodeCalls) error {
				if told = append(told, c.First); len(told) == 1 {
					return errors.New("there is no room for questions")
				}
				return nil
			},
		}
		for range 3 {
			r.newRoom()
			<-time.After(time.Second) // virtual
			r.tick(r.pulse.now())
			synctest.Wait()
		}
		if len(told) != 3 || !told[0] || !told[1] || told[2] {
			t.Errorf("the first one, or not: %v", told)
		}
		r.pulse.stop()
	})
}

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
	if w.over(context.DeadlineExceeded); !w.told {
		t.Error("that nothing waits has not been heard, and is not told again")
	}
	w.pace(w.due, false)
	if w.over(nil); w.told {
		t.Error("that nothing waits has been heard, and is told again")
	}
	_, early := w.early(w.due)
	if due := w.pace(w.due, true); early || due != w.due || w.interval != waitsAfter {
		t.Errorf("then again: %t, interval %v", !early, w.interval)
	}
}
