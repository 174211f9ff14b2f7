package admin

import (
	"bufio"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
)

// statusBy sends a request on a connection that stays open, and returns the status.
func statusBy(t *testing.T, c net.Conn, path, token string) int {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://x"+path, nil)
	must(t, err)
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	must(t, r.Write(c))
	answer, err := http.ReadResponse(bufio.NewReader(c), r)
	must(t, err)
	must(t, answer.Body.Close())
	return answer.StatusCode
}

// Connections without a token, as many as somebody likes, keep no request with a token from being answered, on a new connection or on one that has had
// the token before.
func TestStrangers(t *testing.T) {
	s := startSite(t, startBusy(t).Gatekeeper())
	dial := func() net.Conn {
		c, err := net.Dial("tcp", strings.TrimPrefix(s.URL, "http://"))
		must(t, err)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	before := dial()
	if status := statusBy(t, before, "/v1/nodes", testToken); status != http.StatusOK {
		t.Fatalf("with a token: %d", status)
	}
	for range maxConns + maxStrangers {
		if status := statusBy(t, dial(), "/healthz", ""); status != http.StatusOK {
			t.Fatalf("healthz: %d", status)
		}
	}
	for name, c := range map[string]net.Conn{"before": before, "new": dial()} {
		must(t, c.SetDeadline(time.Now().Add(time.Minute)))
		if status := statusBy(t, c, "/v1/nodes", testToken); status != http.StatusOK {
			t.Errorf("%s: with a token: %d", name, status)
		}
	}
	if status := statusBy(t, dial(), "/v1/nodes", "a token that nobody has"); status != http.StatusUnauthorized {
		t.Errorf("with a wrong token: %d", status)
	}
}

// A token has its share of connections, and is told so; another one finds some. What is closed is free again.
func TestTokensShareConnections(t *testing.T) {
	l := newVisitors(nil)
	var first []*visitor
	connect := func(token string) bool {
		v := &visitor{Conn: discard{}, of: l}
		v.place = l.strangers.PushBack(v)
		if !v.admit(token) {
			must(t, v.Close())
			return false
		}
		if token == "first" {
			first = append(first, v)
		}
		return true
	}
	for connect("first") {
	}
	if n := len(first); n < maxConns/2 || n > maxConns-maxConns/8 || !connect("second") || l.strangers.Len() != 0 {
		t.Errorf("one token has %d connections of %d, strangers %d", n, maxConns, l.strangers.Len())
	}
	for _, v := range first {
		must(t, v.Close())
		must(t, v.Close()) // as net/http does
	}
	if held := l.tokens.Held("first"); held != 0 {
		t.Errorf("%d connections are left", held)
	}
}

// discard is a connection of which only the read deadline matters.
type discard struct{ net.Conn }

func (discard) Close() error                    { return nil }
func (discard) SetReadDeadline(time.Time) error { return nil }

// deadline keeps it.
type deadline struct {
	discard
	at time.Time
}

func (d *deadline) SetReadDeadline(t time.Time) error { d.at = t; return nil }

// A connection without a token lives for seconds when nobody uses it, one with a token as long as the server says.
func TestStrangersLive(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		l, d := newVisitors(nil), &deadline{}
		v := &visitor{Conn: d, of: l}
		v.place = l.strangers.PushBack(v)
		for _, until := range []time.Time{{}, time.Now().Add(idleTimeout)} {
			must(t, v.SetReadDeadline(until))
			if left := time.Until(d.at); left != strangerTimeout {
				t.Errorf("a stranger lives for %v", left)
			}
		}
		v.admit("admin")
		must(t, v.SetReadDeadline(time.Now().Add(idleTimeout)))
		if left := time.Until(d.at); left != idleTimeout {
			t.Errorf("a token's connection lives for %v", left)
		}
	})
}

// The first request on a connection has a valid token, and takes longer than a stranger's connection lives. It is answered.
func TestStrangersLive_LongRequest(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		pipes := newPipes()
		server := NewHTTPServer(t.Context(), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !admitted(r.Context(), "admin") {
				t.Error("not admitted")
			}
			select {
			case <-time.After(strangerTimeout * 2):
			case <-r.Context().Done():
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		}), slog.New(slog.DiscardHandler))
		ended := make(chan error, 1)
		go func() { ended <- server.Serve(newVisitors(pipes)) }()
		c := pipes.dial()
		if status := statusBy(t, c, "/", ""); status != http.StatusOK {
			t.Errorf("status %d", status)
		}
		must(t, c.Close())
		must(t, server.Close())
		<-ended
	})
}

// crowd is a listener at which somebody always connects.
type crowd struct{ net.Listener }

func (crowd) Accept() (net.Conn, error) { return discard{}, nil }

// When one stranger too many comes, the oldest one's connection is closed; one with a token stays.
func TestStrangers_Oldest(t *testing.T) {
	turnedAway := 0
	l := newVisitors(crowd{})
	l.turnedAway = func() { turnedAway++ }
	var all []*visitor
	for range maxStrangers + 4 {
		c, err := l.Accept()
		must(t, err)
		all = append(all, c.(*visitor))
		if len(all) == 1 && !all[0].admit("admin") {
			t.Fatal("the first is not admitted")
		}
	}
	for i, v := range all {
		if gone := i >= 1 && i <= 3; v.gone != gone {
			t.Errorf("connection %d is gone: %t", i, v.gone)
		}
	}
	if turnedAway != 3 || l.strangers.Len() != maxStrangers {
		t.Errorf("%d were turned away, %d are there", turnedAway, l.strangers.Len())
	}
}
