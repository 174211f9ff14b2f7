package rpc

import (
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// What is under way is told when it has been for reportAfter, and that it has ended soon after. Short calls are told together.
func TestReportsNext(t *testing.T) {
	const at = time.Hour
	begun := func(reported bool) map[rpcpacket.ID]*execution {
		return map[rpcpacket.ID]*execution{{1}: {takenUp: at, reported: reported}, {2}: {takenUp: at + 1, reported: reported}}
	}
	for _, tt := range []struct {
		name string
		r    reports
		due  time.Duration // 0: none is
	}{
		{"nothing", reports{last: at}, 0},
		{"a call begins", reports{running: begun(false)}, at + reportAfter},
		{"it is told", reports{running: begun(true), last: at + reportAfter}, at + reportAfter + reportAgain},
		{"one that is told ends", reports{news: at, known: []ended{{end: at + 5}}}, at + 5 + reportAfter},
		{"one that is not ends", reports{news: at, ended: []ended{{end: at}}}, at + historyAfter},
		{"one ends while another is under way", reports{news: at - historyAfter, ended: []ended{{end: at}}, running: begun(false)}, at},
	} {
		if due, ok := tt.r.next(); due != tt.due || ok != (tt.due > 0) {
			t.Errorf("%s: due at %v, %t, want %v", tt.name, due, ok, tt.due)
		}
	}
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
	w.telling = false
	_, early := w.early(w.due)
	if due := w.pace(w.due, true); early || due != w.due || w.interval != waitsAfter {
		t.Errorf("then again: %t, interval %v", !early, w.interval)
	}
}
