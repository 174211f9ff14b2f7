package admin

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
)

// listener reads a stream of events from a site.
type listener struct {
	t     testing.TB
	lines *bufio.Scanner
	stop  func()
}

// listen opens a stream.
func (s *site) listen(query, last string) *listener {
	s.T.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := s.Request(http.MethodGet, "/v1/events"+query).WithContext(ctx)
	if last != "" {
		r.Header.Set("Last-Event-ID", last)
	}
	resp, err := s.Client.Do(r)
	must(s.T, err)
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "text/event-stream" {
		s.T.Fatalf("stream of events: %s, %s", resp.Status, resp.Header.Get("Content-Type"))
	}
	l := &listener{t: s.T, lines: bufio.NewScanner(resp.Body), stop: func() {
		cancel()
		resp.Body.Close()
	}}
	s.T.Cleanup(l.stop)
	if m := l.next(); m != "retry: 2000" {
		s.T.Errorf("the stream begins with %q", m)
	}
	return l
}

// next returns the next message, "" at the end.
func (l *listener) next() string {
	l.t.Helper()
	var m []string
	for l.lines.Scan() {
		if l.lines.Text() == "" {
			return strings.Join(m, "\n")
		}
		m = append(m, l.lines.Text())
	}
	return ""
}

// event returns the next message, which must be an event of a number.
func (l *listener) event(boot string, seq uint64) {
	l.t.Helper()
	m := l.next()
	id, data, ok := strings.Cut(m, "\n")
	want := fmt.Sprintf("%s-%d", boot, seq)
	var e api.Event
	if err := json.Unmarshal([]byte(strings.TrimPrefix(data, "data: ")), &e); !ok || err != nil || id != "id: "+want || e.ID != want || e.Kind != "call.refused" {
		l.t.Fatalf("message %q, want event %s", m, want)
	}
}

// gap expects the note that events were missed.
func (l *listener) gap(missed uint64) {
	l.t.Helper()
	if m, want := l.next(), fmt.Sprintf("event: gap\ndata: {\"missed\":%d}", missed); m != want {
		l.t.Fatalf("message %q, want %q", m, want)
	}
}

// heard waits until the hub has an event, so that a reader that begins now finds it.
func (s *site) heard(seq uint64) {
	s.T.Helper()
	for {
		events, more := s.server.hub.read(position{seq - 1, true}, 1)
		if len(events) > 0 {
			return
		}
		<-more
	}
}

// recent returns the latest events of some kinds, when there are so many: they come after the answers to what has caused them.
func (s *site) recent(kinds string, n int) []api.Event {
	s.T.Helper()
	for {
		_, more := s.server.hub.read(s.server.hub.latest(0), 1)
		all := getAs[api.List[api.Event]](s, "/v1/events/recent?kind="+kinds).Items
		if len(all) >= n {
			return all
		}
		if more != nil {
			<-more
		}
	}
}

func TestStream_ResumesWhereItEnded(t *testing.T) {
	n := newNarrator()
	s := startSite(t, n)
	defer close(n.events)
	boot := s.server.hub.boot
	first := s.listen("", "")
	n.tell(1, 3)
	for seq := range uint64(3) {
		first.event(boot, seq+1)
	}
	first.stop()
	n.tell(4, 10)
	s.heard(10)
	second := s.listen("", boot+"-3")
	for seq := uint64(4); seq <= 10; seq++ {
		second.event(boot, seq)
	}
	n.tell(11, 11)
	second.event(boot, 11)
	// Somebody who was away for too long, or saw another Gatekeeper.
	n.tell(12, 11+kept+5)
	s.heard(11 + kept + 5)
	oldest := uint64(12 + 5)
	late := s.listen("", boot+"-3")
	late.gap(oldest - 4)
	late.event(boot, oldest)
	other := s.listen("", "0123456789abcdef-3")
	other.gap(0)
	other.event(boot, oldest)
	replayed := s.listen("?replay=2", "")
	replayed.event(boot, 11+kept+4)
	replayed.event(boot, 11+kept+5)
	// What the Gatekeeper's own queue had no room for is a gap, too.
	n.tell(11+kept+9, 11+kept+9)
	replayed.gap(3)
	replayed.event(boot, 11+kept+9)
}

func TestStream_Refuses(t *testing.T) {
	n := newNarrator()
	s := startSite(t, n)
	defer close(n.events)
	s.Refused(s.Request(http.MethodGet, "/v1/events", "Last-Event-ID", "nonsense"), http.StatusBadRequest)
	s.Refused(s.Request(http.MethodGet, "/v1/events", "Last-Event-ID", strings.Repeat("1", 100)), http.StatusUnprocessableEntity)
	s.Refused(s.Request(http.MethodGet, "/v1/events?replay=-1"), http.StatusUnprocessableEntity)
	for range maxStreams {
		s.listen("", "")
	}
	r := s.Request(http.MethodGet, "/v1/events")
	if resp, _ := s.Do(r); resp.Header.Get("Retry-After") == "" {
		t.Error("nobody is told when to try again")
	}
	s.Refused(r, http.StatusServiceUnavailable)
}

// A reader that does not read holds up neither the others nor the Gatekeeper, and
// is dropped when its connection is full for too long. Virtual time; the
// connection is a pipe without room.
func TestStream_SlowReader(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := newNarrator()
		server, err := New(Config{Backend: n})
		must(t, err)
		ctx, cancel := context.WithCancel(context.Background())
		pipes := newPipes()
		ended := make(chan error, 1)
		go func() { ended <- server.Run(ctx, Listener{Listener: pipes, Trusted: true}) }()
		slow, quick := pipes.dial(), pipes.dial()
		for _, c := range []*pipe{slow, quick} {
			_, err := fmt.Fprintf(c, "GET /v1/events HTTP/1.1\r\nHost: gatekeeper\r\n\r\n")
			must(t, err)
		}
		read := make(chan int, 1)
		go func() { read <- strings.Count(quick.readAll(), "call.refused") }()
		synctest.Wait()
		n.tell(1, 2*kept)
		synctest.Wait() // told; nobody has waited for the slow one
		if got := len(server.streams); got != 2 {
			t.Fatalf("%d streams", got)
		}
		<-time.After(2 * requestTimeout)
		synctest.Wait()
		if got := len(server.streams); got != 1 {
			t.Errorf("%d streams are left, want the quick one", got)
		}
		close(n.events)
		if got := <-read; got < kept || got > 2*kept {
			t.Errorf("the quick reader got %d events", got)
		}
		cancel()
		must(t, <-ended)
		slow.Close()
	})
}

func TestStream_Heartbeat(t *testing.T) {
	bubble.TestFor(t, 2*time.Hour, func(t *testing.T) {
		n := newNarrator()
		server, err := New(Config{Backend: n})
		must(t, err)
		ctx, cancel := context.WithCancel(context.Background())
		pipes := newPipes()
		ended := make(chan error, 1)
		go func() { ended <- server.Run(ctx, Listener{Listener: pipes, Trusted: true}) }()
		c := pipes.dial()
		_, err = fmt.Fprintf(c, "GET /v1/events HTTP/1.1\r\nHost: gatekeeper\r\n\r\n")
		must(t, err)
		read := make(chan string, 1)
		go func() { read <- c.readAll() }()
		<-time.After(time.Hour)
		close(n.events)
		got := strings.Count(<-read, ": alive\n")
		if want := int(time.Hour / heartbeat); got < want-1 || got > want {
			t.Errorf("%d signs of life in an hour, want %d", got, want)
		}
		cancel()
		must(t, <-ended)
	})
}

// A reader who asks for few events gets the latest, and learns of the others; a
// filter's events are not missed.
func TestStream_Choose(t *testing.T) {
	var events []gatekeeper.Event
	for seq := uint64(1); seq <= 20; seq++ {
		if seq == 5 || seq == 20 {
			continue // lost on the way to the hub
		}
		kind := gatekeeper.CallRefused
		if seq%2 == 0 {
			kind = gatekeeper.AccessDenied
		}
		events = append(events, gatekeeper.Event{Seq: seq, Kind: kind})
	}
	events = append(events, gatekeeper.Event{Seq: 22, Kind: gatekeeper.AccessDenied})
	for what, tc := range map[string]struct {
		kinds []string
		rate  int
		known bool
		want  string
		left  uint64
	}{
		"all":                    {nil, 0, true, "1 2 3 4 1+6 7 8 9 10 11 12 13 14 15 16 17 18 19 2+22", 0},
		"a kind":                 {[]string{"call.refused"}, 0, true, "1 3 1+7 9 11 13 15 17 19", 2},
		"few":                    {nil, 12, true, "17+18 19 2+22", 0},
		"one":                    {nil, 1, true, "21+22", 0},
		"few of a kind":          {[]string{"call.refused"}, 8, true, "8+17 19", 2},
		"before nothing is lost": {[]string{"access.denied"}, 4, false, "12+22", 0},
	} {
		s := &stream{filter: EventFilter{Kinds: tc.kinds}, rate: tc.rate}
		p := position{known: tc.known}
		all, left := s.choose(events, &p)
		var got []string
		for _, x := range all {
			text := fmt.Sprint(x.event.Seq)
			if x.missed > 0 {
				text = fmt.Sprintf("%d+%s", x.missed, text)
			}
			got = append(got, text)
		}
		if strings.Join(got, " ") != tc.want || left != tc.left || p != (position{22, true}) {
			t.Errorf("%s: %q and %d, position %+v; want %q and %d", what, got, left, p, tc.want, tc.left)
		}
	}
}

// With a rate the stream keeps to it.
func TestStream_Rate(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := newNarrator()
		server, err := New(Config{Backend: n})
		must(t, err)
		ctx, cancel := context.WithCancel(context.Background())
		pipes := newPipes()
		ended := make(chan error, 1)
		go func() { ended <- server.Run(ctx, Listener{Listener: pipes, Trusted: true}) }()
		c := pipes.dial()
		_, err = fmt.Fprintf(c, "GET /v1/events?rate=20 HTTP/1.1\r\nHost: gatekeeper\r\n\r\n")
		must(t, err)
		read := make(chan string, 1)
		go func() { read <- c.readAll() }()
		const seconds, perSecond = 10, 1000
		synctest.Wait()
		for i := range uint64(seconds * perSecond) {
			n.tell(i+1, i+1)
			<-time.After(time.Second / perSecond)
		}
		synctest.Wait()
		close(n.events)
		got := <-read
		sent := strings.Count(got, "call.refused")
		if sent < 20*seconds-20 || sent > 20*seconds+10 {
			t.Errorf("%d events in %d s", sent, seconds)
		}
		missed := 0
		for _, m := range strings.Split(got, "missed\":")[1:] {
			var k int
			_, err := fmt.Sscanf(m, "%d}", &k)
			must(t, err)
			missed += k
		}
		if missed+sent != seconds*perSecond {
			t.Errorf("%d sent and %d missed, together not %d", sent, missed, seconds*perSecond)
		}
		cancel()
		must(t, <-ended)
	})
}
