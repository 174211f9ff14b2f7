package interp

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
)

// The sink is told of an entry once for each timeout that passes without a hit.
func TestIdleTimeout(t *testing.T) {
	prog := loadFile(t, "tables")
	prog.Table("I.exact_two").Timeout = true
	bubble.Test(t, func(t *testing.T) {
		sink := &memory{}
		x, err := New(prog, Config{Sink: sink})
		if err != nil {
			t.Fatal(err)
		}
		defer x.Close()
		told := func(after time.Duration, want int) {
			t.Helper()
			<-time.After(after)
			synctest.Wait()
			sink.mu.Lock()
			defer sink.mu.Unlock()
			if len(sink.idle) != want {
				t.Errorf("told of %d idle entries, not %d", len(sink.idle), want)
			}
		}
		e := datapath.Entry{
			Table: "I.exact_two", Match: []datapath.Match{{Value: []byte{1}}, {Value: []byte{2, 3}}},
			Action: act("set", 7), IdleTimeoutNs: int64(time.Second),
		}
		if err := x.Apply(datapath.Insert, e); err != nil {
			t.Fatal(err)
		}
		hit := func() { process(x, 1, append([]byte{1, 1, 2, 3}, make([]byte, 16)...)...) }
		told(900*time.Millisecond, 0)
		hit()
		told(900*time.Millisecond, 0)
		told(time.Second, 1)
		told(2*time.Second, 3)
		if since, err := x.SinceHit(e); err != nil || since != 3900*time.Millisecond {
			t.Errorf("hit %v ago, %v", since, err)
		}
		hit()
		told(500*time.Millisecond, 3)
		told(time.Second, 4)
		if got := sink.idle[1]; got.Table != e.Table || got.IdleTimeoutNs != e.IdleTimeoutNs || len(got.Match) != 2 {
			t.Errorf("told of %+v", got)
		}
		e.IdleTimeoutNs = 0
		if err := x.Apply(datapath.Modify, e); err != nil {
			t.Fatal(err)
		}
		told(5*time.Second, 4)
		if since, err := x.SinceHit(e); err != nil || since != 5*time.Second {
			t.Errorf("hit %v ago, %v", since, err)
		}
		e.IdleTimeoutNs = int64(time.Second)
		if err := x.Apply(datapath.Modify, e); err != nil {
			t.Fatal(err)
		}
		if err := x.Apply(datapath.Delete, e); err != nil {
			t.Fatal(err)
		}
		told(5*time.Second, 4)
		if _, err := x.SinceHit(e); err == nil {
			t.Error("an entry that is gone was hit")
		}
	})
}
