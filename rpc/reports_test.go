package rpc

import (
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
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

// reporting is a node's reports, in virtual time, as the Gatekeeper hears them.
type reporting struct {
	reports
	export export
	method rpcpacket.Method
	calls  atomic.Uint64
	busy   atomic.Bool // another call comes while the Gatekeeper is told
	hears  sync.Mutex
	heard  []heard // guarded by hears
}

type heard struct {
	at time.Duration
	control.NodeCalls
}

func newReporting(t *testing.T) *reporting {
	r := &reporting{export: export{name: "S"}}
	var err error
	if r.method, err = rpcpacket.MethodOf("m"); err != nil {
		t.Fatal(err)
	}
	r.export.offer.Store(&offer{methods: map[rpcpacket.Method]*served{r.method: {name: "m"}}})
	r.life, r.log, r.room = newLifetime("node"), slog.New(slog.DiscardHandler), func(*control.NodeCalls) {}
	r.tells = func(_ context.Context, c control.NodeCalls) error {
		if r.busy.Load() {
			_, end := r.begin()
			end(fault.OK)
		}
		r.hears.Lock()
		defer r.hears.Unlock()
		r.heard = append(r.heard, heard{r.pulse.now(), c})
		return nil
	}
	r.pulse = &pulse{start: time.Now()}
	r.pulse.timer = time.AfterFunc(time.Hour, func() {
		r.pulse.at.Store(0)
		if due, ok := r.tick(r.pulse.now()); ok {
			r.pulse.wakeAt(due)
		}
	})
	t.Cleanup(r.pulse.stop)
	return r
}

// begin has a call begin, and returns what ends it.
func (r *reporting) begin() (id control.ExecutionID, end func(code fault.Code)) {
	e := &execution{export: &r.export}
	binary.BigEndian.PutUint64(e.call.Call[:], r.calls.Add(1))
	e.call.Method = r.method
	r.takeUp(e)
	return control.ExecutionID(e.call.Call), func(code fault.Code) { r.end(e, code) }
}

// pass lets time pass, and returns what was heard meanwhile.
func (r *reporting) pass(d time.Duration) (all []heard) {
	<-time.After(d) // virtual
	synctest.Wait()
	r.hears.Lock()
	defer r.hears.Unlock()
	all, r.heard = r.heard, nil
	return all
}

// A node that has ended tells nothing any more, and nobody waits for that.
func TestReportsFlush_Ended(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newReporting(t)
		_, end := r.begin()
		end(fault.OK)
		r.pulse.stop()
		r.life.cancel()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		before := r.pulse.now()
		if r.flush(ctx); r.pulse.now() != before {
			t.Errorf("the flush takes %v", r.pulse.now()-before)
		}
	})
}

// People see within 100 ms that a call is under way, unless it is over soon, and within 100 ms that it is not any more. The node does not
// tell each tenth of a second of calls that are all short.
func TestReportsPace(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newReporting(t)
		_, end := r.begin()
		end(fault.OK)
		if all := r.pass(100 * time.Millisecond); len(all) != 1 || len(all[0].Ended) != 1 || len(all[0].Running) != 0 {
			t.Errorf("after one call: %+v", all)
		}
		if all := r.pass(time.Minute); len(all) != 0 {
			t.Errorf("while there are no calls: %+v", all)
		}

		short := func(n int, failing int) (all []heard) {
			for i := range n {
				_, end := r.begin()
				all = append(all, r.pass(time.Millisecond)...)
				code := fault.OK
				if i < failing {
					code = fault.Overloaded
				}
				end(code)
			}
			return all
		}
		all := short(10_000, 0)
		if n := len(all); n < 18 || n > 30 {
			t.Errorf("%d reports in ten seconds", n)
		}
		if n := all[len(all)-1].Counts[0].Calls; n < 9_000 {
			t.Errorf("%d calls were counted after ten seconds", n)
		}
		long, endLong := r.begin()
		shown := func(all []heard) bool {
			return len(all) > 0 && slices.ContainsFunc(all[len(all)-1].Running, func(c control.DirectCall) bool { return c.ID == long })
		}
		if all := short(100, 0); !shown(all) {
			t.Errorf("a long call is not told: %+v", all)
		}
		short(1000, 0)
		endLong(fault.OK)
		if all := short(100, 0); len(all) == 0 || shown(all) {
			t.Errorf("the end of a long call is not told: %+v", all)
		}
		all = short(1000, 10)
		all = append(all, r.pass(time.Second)...)
		failed := 0
		for _, h := range all {
			for _, c := range h.Ended {
				if c.Code != fault.OK {
					failed++
				}
			}
		}
		if failed != 10 || len(all) > 4 {
			t.Errorf("%d calls that have failed are told in %d reports, want 10", failed, len(all))
		}
		all = short(250, 0)
		r.flush(t.Context())
		if all = append(all, r.pass(0)...); len(all) == 0 {
			t.Fatal("nothing is told before the node takes its services back")
		}
		r.flush(t.Context()) // there is nothing to be told
		_, endLast := r.begin()
		endLast(fault.OK)
		r.busy.Store(true)
		before := r.pulse.now()
		if r.flush(t.Context()); r.pulse.now() != before {
			t.Errorf("while calls go on, a flush takes %v", r.pulse.now()-before)
		}
		r.busy.Store(false)
		all = append(all, r.pass(time.Second)...)
		last := all[len(all)-1].Counts
		var calls uint64
		for i := range last {
			calls += last[i].Calls
		}
		if calls != r.calls.Load() {
			t.Errorf("%d calls are counted of %d", calls, r.calls.Load())
		}
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
