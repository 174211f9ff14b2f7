package history

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/gatekeeper/trace"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// source is a Gatekeeper whose calls end at once.
type source struct {
	*trace.Recorder
	mu *sync.Mutex
}

func (s source) TakeEnded(context.Context) ([]trace.Call, uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	calls, missed := s.Recorder.TakeEnded()
	return calls, missed, nil
}

func (s source) Totals(context.Context) (trace.Totals, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Recorder.Totals(), nil
}

// ends has a call end, which took a millisecond.
func (s source) ends(n int, code fault.Code) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := callID(n)
	at := trace.Node{Address: netip.MustParseAddr("fd00::2"), Incarnation: 3}
	now := time.Now()
	s.Note(&trace.Event{Call: id, Step: trace.Step{Time: now, Kind: trace.Sent, Blade: "s1"}, About: trace.About{
		Parent: rpcpacket.ID{1}, Service: "S", Method: "m", Policy: rpcpacket.PolicyTainted, Callee: at,
	}})
	s.Note(&trace.Event{Call: id, Step: trace.Step{Time: now, Kind: trace.Delivered, Node: at, Blade: "s2"}})
	s.Note(&trace.Event{Call: id, Step: trace.Step{Time: now, Kind: trace.Replayed, Node: at, Why: "killed"}})
	s.Note(&trace.Event{Call: id, Step: trace.Step{Time: now, Kind: trace.Replied, Node: at}, Details: trace.Details{
		Arguments: 7, Answer: 9, Exception: "Missing", Text: "no such key", Headers: []control.Header{{Name: "traceparent", Value: "00-1"}, {Name: "password", Value: "secret"}},
	}})
	s.Note(&trace.Event{Call: id, Step: trace.Step{Time: now.Add(time.Millisecond), Kind: trace.Answered}, Code: code})
}

// run has a Gatekeeper work in the directory while f does something, and stops it.
func run(t *testing.T, directory string, f func(h *History, s source)) (h *History, log string) {
	t.Helper()
	var text bytes.Buffer
	h, s := New(directory, slog.New(slog.NewTextHandler(&text, nil))), source{trace.New(trace.DefaultCalls, nil), new(sync.Mutex)}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		h.Run(ctx, s)
		close(done)
	}()
	f(h, s)
	synctest.Wait()
	stop()
	<-done
	return h, text.String()
}

// latest are the calls of former runs, the last one first.
func latest(h *History, q trace.Query) []trace.Call {
	q.Limit = 1 << 20
	page, _ := h.Timelines(q)
	return page
}

// pass has time pass, in which the History works.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// A Gatekeeper that stops and one that is killed leave their calls, failures and figures to the next.
func TestRestart(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "history")
		var was []trace.Call
		run(t, dir, func(h *History, s source) {
			for n := range 10 {
				s.ends(n+1, fault.OK)
			}
			s.ends(11, fault.Unavailable)
			s.ends(12, fault.Declared) // has not failed
			h.Note(&gatekeeper.Event{Time: time.Now(), Kind: gatekeeper.NodeFailed, Blade: "s1", Message: "killed"})
			h.Note(&gatekeeper.Event{Time: time.Now(), Kind: gatekeeper.ServiceExported})
			for n := range 12 {
				c, _ := s.Call(callID(n + 1))
				was = append(was, c)
			}
		}) // at once: it has had no turn before
		pass(time.Millisecond)
		next, log := run(t, dir, func(h *History, s source) {
			pass(90 * time.Second)
			s.ends(1, fault.OK)
			pass(2 * time.Second)
		})
		if log != "" {
			t.Error(log)
		}
		got := latest(next, trace.Query{})
		if len(got) != 12 || len(latest(next, trace.Query{Failed: true})) != 1 {
			t.Fatalf("%d calls, %d failed", len(got), len(latest(next, trace.Query{Failed: true})))
		}
		seen := map[rpcpacket.ID]trace.Call{}
		for _, c := range got {
			seen[c.ID] = c
		}
		for _, c := range was {
			g := seen[c.ID]
			g.Sequence = c.Sequence
			for _, at := range []*time.Time{&c.A1, &c.B1, &c.B2, &c.A2} { // without the monotonic clock
				*at = at.Round(0)
			}
			for i := range c.Steps {
				c.Steps[i].Time = c.Steps[i].Time.Round(0)
			}
			c.Details.Headers = []control.Header{{Name: "traceparent", Value: "00-1"}, {Name: "password", Value: notKept}} // it may be a secret
			if a, b := fmt.Sprintf("%+v", g), fmt.Sprintf("%+v", c); a != b {
				t.Errorf("the call is\n%s, was\n%s", a, b)
			}
		}
		events := next.Events(t.Context())
		if len(events) != 1 || events[0].Kind != gatekeeper.NodeFailed || events[0].Message != "killed" {
			t.Errorf("events %+v", events)
		}
		minutes := next.Minutes()
		if len(minutes) != 3 || minutes[0].Calls != 12 || minutes[0].Failed != 1 || minutes[0].Declared != 1 || minutes[0].P50 <= 0 || minutes[2].Calls != 1 || minutes[1].Calls != 0 {
			t.Errorf("minutes %+v", minutes)
		}
		if s := next.State(); !s.Since.Equal(minutes[0].Time) || s.Calls != 12 || !s.Kept || s.Missed != 0 || s.Trouble != nil {
			t.Errorf("%+v", s)
		}
	})
}

// A history that is damaged, in whatever way, keeps nobody from starting, and what is whole of it is there.
func TestDamaged(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		run(t, dir, func(_ *History, s source) {
			s.ends(1, fault.OK)
			s.ends(2, fault.Unavailable)
			pass(2 * time.Second)
			s.ends(3, fault.OK)
		})
		calls := filepath.Join(dir, "calls")
		text, err := os.ReadFile(calls)
		must(t, err)
		for what, tc := range map[string]struct {
			text []byte
			want int
		}{
			"cut off":         {text[:len(text)-20], 2},
			"zeros at end":    {append(bytes.Clone(text), make([]byte, 1<<17)...), 3},
			"a wrong line":    {append([]byte("{\"call\":{\"id\":\"zz\"}}\nhello\n"), text...), 3},
			"a line too long": {append([]byte(strings.Repeat("x", 3*maxLine)+"\n"), text...), 3},
		} {
			must(t, os.WriteFile(calls, tc.text, 0o600))
			next, log := run(t, dir, func(*History, source) {})
			if got := len(latest(next, trace.Query{})); got != tc.want || !strings.Contains(log, "damaged") {
				t.Errorf("%s: %d calls, log %q", what, got, log)
			}
		}
		must(t, os.WriteFile(calls, text[:len(text)-20], 0o600)) // goes on behind a line that was cut off
		run(t, dir, func(_ *History, s source) { s.ends(4, fault.OK) })
		if next, _ := run(t, dir, func(*History, source) {}); len(latest(next, trace.Query{})) != 3 {
			t.Errorf("behind a line that was cut off: %d calls", len(latest(next, trace.Query{})))
		}
		must(t, os.Remove(calls))
		must(t, os.Mkdir(calls, 0o700)) // it can neither be read nor written
		next, log := run(t, dir, func(_ *History, s source) {
			pass(2 * time.Second)
			s.ends(5, fault.OK)
			pass(3 * time.Second)
		})
		if s := next.State(); !errors.Is(s.Trouble, syscall.EISDIR) || s.Missed != 1 || strings.Count(log, "cannot be written") != 1 || s.Calls != 1 {
			t.Errorf("%+v, log %q", s, log)
		}
	})
}

// The files, and what is read of them, are bounded in bytes and in age; a busy second too.
func TestBounds(t *testing.T) {
	if testing.Short() {
		t.Skip("writes 31,000 calls")
	}
	bubble.TestFor(t, 2*MaxAge, func(t *testing.T) {
		dir := t.TempDir()
		const turns = 60
		h, _ := run(t, dir, func(h *History, s source) {
			for turn := range turns {
				for n := range 2 * trace.MaxEnded {
					s.ends(1+turn*2*trace.MaxEnded+n, fault.OK)
				}
				s.ends(1<<20+turn, fault.Unavailable)
				for range maxPending + 1 {
					h.Note(&gatekeeper.Event{Time: time.Now(), Kind: gatekeeper.AccessDenied})
				}
				pass(every)
			}
		})
		if s := h.State(); s.Missed != turns*(trace.MaxEnded+1) {
			t.Errorf("%d were missed", s.Missed)
		}
		size := int64(0)
		must(t, filepath.Walk(dir, func(_ string, info os.FileInfo, err error) error {
			if err == nil && info.Mode().IsRegular() {
				size += info.Size()
			}
			return err
		}))
		if most := int64(2 * (2*callBytes + minuteBytes)); size < callBytes || size > most+most/2 {
			t.Errorf("the files have %d bytes", size)
		}
		next, _ := run(t, dir, func(*History, source) {})
		if n := len(latest(next, trace.Query{})); n < 1000 || n > maxWell+maxFailed || len(latest(next, trace.Query{Failed: true})) != turns || len(next.Events(t.Context())) != MaxEvents {
			t.Errorf("%d calls, %d failed, %d events", n, len(latest(next, trace.Query{Failed: true})), len(next.Events(t.Context())))
		}
		pass(MaxAge)
		if next, _ = run(t, dir, func(*History, source) {}); next.State().Calls != 0 || len(next.Events(t.Context())) != 0 {
			t.Errorf("a week later: %+v", next.State())
		}
	})
}

// Without a directory there are figures of this run.
func TestInMemory(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h, _ := run(t, "", func(h *History, s source) {
			s.ends(1, fault.OK)
			h.Note(&gatekeeper.Event{Kind: gatekeeper.NodeFailed})
			pass(3 * time.Minute)
		})
		if m := h.Minutes(); len(m) != 4 || m[0].Calls != 1 || h.State().Kept {
			t.Errorf("%+v", m)
		}
	})
}

// FuzzReadLine: what can be read is written as it was.
func FuzzReadLine(f *testing.F) {
	f.Add([]byte(`{"minute":{"time":"2026-11-23T02:00:00Z","run":"2026-11-23T01:00:00Z","calls":3,"failed":1,"p99":0.5}}`))
	f.Add([]byte(`{"event":{"seq":1,"time":"2026-11-23T02:00:00Z","kind":"node.failed","node":"fd00::1"}}`))
	f.Add([]byte(`{"call":{"id":"00f3a6c41b9e7d5200000000000000a7","caller":{},"callee":{},"method":"m","policy":1,"a1":"2026-11-23T02:00:00Z","steps":[{"time":"2026-11-23T02:00:00Z","kind":"sent"}]}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := readLine(b)
		if err != nil {
			return
		}
		l := line{Event: e.event, Minute: e.minute}
		if e.call != nil {
			l.Call = written(e.call)
			trace.New(3, nil).Restore([]trace.Call{*e.call})
		}
		text, err := json.Marshal(l)
		must(t, err)
		again, err := readLine(text)
		if err != nil || !again.at.Equal(e.at) || !reflect.DeepEqual(again, e) {
			t.Errorf("%s\nis read as %+v,\nand then as %+v (%v)", b, e, again, err)
		}
	})
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// callID is the id of one of many calls.
func callID(n int) (id rpcpacket.ID) {
	binary.BigEndian.PutUint64(id[8:], uint64(n)) //nolint:gosec // not negative
	return id
}
