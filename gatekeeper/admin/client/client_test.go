package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve answers every request with f until the test ends.
func serve(t *testing.T, f http.HandlerFunc) *Client {
	t.Helper()
	s := httptest.NewServer(f)
	t.Cleanup(s.Close)
	c, err := New(Config{Address: s.URL, Token: "secret"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestErrors(t *testing.T) {
	for what, tc := range map[string]struct {
		status     int
		kind, body string
		want       string
	}{
		"a problem":          {404, "application/problem+json", `{"type":"about:blank","title":"Not Found","status":404,"detail":"there is no blade x"}`, "there is no blade x"},
		"mistakes":           {422, "application/problem+json", `{"title":"Unprocessable Entity","status":422,"errors":[{"message":"too large","location":"query.limit"}]}`, "; limit: too large"},
		"another server":     {500, "text/html", "<h1>Oops</h1>", "does not seem to be a Gatekeeper"},
		"another server, ok": {200, "text/html", "<h1>Hello</h1>", "does not seem to be a Gatekeeper"},
		"no JSON":            {200, "application/json", "{", "answer of the Gatekeeper"},
	} {
		c := serve(t, func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "Bearer secret" {
				t.Error("no token")
			}
			w.Header().Set("Content-Type", tc.kind)
			w.WriteHeader(tc.status)
			io.WriteString(w, tc.body)
		})
		_, err := c.Blades(t.Context())
		if err == nil || !strings.Contains(err.Error(), tc.want) || IsNotFound(err) != (tc.status == 404) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, address := range []string{"", "http://", "ftp://host", "host:port:9"} {
		if _, err := New(Config{Address: address}); err == nil {
			t.Errorf("address %q is taken", address)
		}
	}
}

func TestUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"items":[{"name":"c1"}]}`)
	})}
	go s.Serve(l)
	t.Cleanup(func() { s.Close() })
	c, err := New(Config{Address: "unix:" + path})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if bs, err := c.Blades(t.Context()); err != nil || len(bs) != 1 || bs[0].Name != "c1" {
		t.Errorf("blades %+v, %v", bs, err)
	}
}

// A list is read page by page, and no further than somebody wants.
func TestPages(t *testing.T) {
	asked := 0
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		asked++
		next := map[string]string{"": "a", "a": "b", "b": ""}[r.URL.Query().Get("cursor")]
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"items":[{"region":"1%s"},{"region":"2%s"}],"next":"%s"}`, next, next, next)
	})
	var got []string
	for r, err := range c.Regions(t.Context(), RegionFilter{}) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, r.Region)
	}
	if fmt.Sprint(got) != "[1a 2a 1b 2b 1 2]" {
		t.Errorf("regions %v", got)
	}
	asked = 0
	for range c.Regions(t.Context(), RegionFilter{}) {
		break
	}
	if asked != 1 {
		t.Errorf("%d pages were asked for", asked)
	}
}

// roundTripper answers requests in this process, so that time can be virtual.
type roundTripper func(r *http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func response(status int, kind, body string) *http.Response {
	return &http.Response{
		StatusCode: status, Status: http.StatusText(status), Header: http.Header{"Content-Type": {kind}}, Body: io.NopCloser(strings.NewReader(body)),
	}
}

// Follow goes on behind the last event when the stream breaks, until the Gatekeeper
// refuses.
func TestFollow(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var asked []string
		c := &Client{base: mustURL(t), http: &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
			asked = append(asked, r.Header.Get("Last-Event-ID"))
			switch len(asked) {
			case 1:
				return response(200, "text/event-stream", "retry: 2000\n\nid: b-1\ndata: {\"id\":\"b-1\",\"kind\":\"x\"}\n\nid: b-2\ndata: {\"id\":\"b-2\",\"kind\":\"x\"}\n\nid: b-3\nda"), nil
			case 2:
				return nil, errors.New("nobody there")
			case 3:
				return response(503, "application/problem+json", `{"title":"Service Unavailable","status":503}`), nil
			case 4:
				return response(200, "text/event-stream", "event: gap\ndata: {\"missed\":3}\n\n: alive\n\nid: b-6\ndata: {\"id\":\"b-6\",\n"+"data: \"kind\":\"x\"}\n\nevent: other\ndata: what\n\n"), nil
			}
			return response(401, "application/problem+json", `{"title":"Unauthorized","status":401}`), nil
		})}}
		var got []string
		lost := 0
		err := c.Follow(t.Context(), FollowOptions{Replay: 5, Lost: func(error) { lost++ }}, func(m Message) error {
			if m.Gap != nil {
				got = append(got, fmt.Sprint("gap ", m.Gap.Missed))
			} else {
				got = append(got, m.Event.ID)
			}
			return nil
		})
		if !IsUnauthorized(err) {
			t.Errorf("it ended with %v", err)
		}
		if fmt.Sprint(got) != "[b-1 b-2 gap 3 b-6]" || fmt.Sprint(asked) != "[ b-2 b-2 b-2 b-6]" || lost != 2 {
			t.Errorf("messages %v, asked behind %q, lost %d times", got, asked, lost)
		}
	})
}

func TestFollow_Ends(t *testing.T) {
	stream := func(*http.Request) (*http.Response, error) {
		return response(200, "text/event-stream", "data: {}\n\ndata: {}\n\n"), nil
	}
	c := &Client{base: mustURL(t), http: &http.Client{Transport: roundTripper(stream)}}
	enough := errors.New("enough")
	if err := c.Follow(t.Context(), FollowOptions{}, func(Message) error { return enough }); !errors.Is(err, enough) {
		t.Errorf("a reader that has enough: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	err := c.Follow(ctx, FollowOptions{}, func(Message) error { cancel(); return nil })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("a reader that is gone: %v", err)
	}
	gone := errors.New("nobody there")
	c.http.Transport = roundTripper(func(*http.Request) (*http.Response, error) { return nil, gone })
	if err := c.Follow(t.Context(), FollowOptions{}, nil); !errors.Is(err, gone) {
		t.Errorf("nobody from the beginning: %v", err)
	}
}

// FuzzReadStream: whatever a server sends, the reader ends with an error and hands on
// only messages that are whole.
func FuzzReadStream(f *testing.F) {
	f.Add("id: b-1\ndata: {\"kind\":\"x\"}\n\n")
	f.Add("event: gap\ndata: {\"missed\":1}\n\n: alive\n\n")
	f.Add("data\n\n:\n\ndata:{}\nid\n\n")
	f.Fuzz(func(t *testing.T, stream string) {
		last := ""
		err := readStream(strings.NewReader(stream), &last, func(m Message) error {
			if (m.Event == nil) == (m.Gap == nil) {
				t.Errorf("message %+v", m)
			}
			return nil
		})
		if err == nil {
			t.Error("the stream ended without an error")
		}
	})
}

func mustURL(t *testing.T) *url.URL {
	t.Helper()
	c, err := New(Config{Address: "gatekeeper:1"})
	if err != nil {
		t.Fatal(err)
	}
	return c.base
}

// A token does not leave the machine in clear text.
func TestClearText(t *testing.T) {
	for address, refused := range map[string]bool{
		"127.0.0.1:8045": false, "localhost:8045": false, "[::1]:8045": false, "unix:/run/x": false, "https://rack.example": false,
		"rack.example:8045": true, "http://10.0.0.7:8045": true, "http://localhost.example": true,
	} {
		c, err := New(Config{Address: address, Token: "secret"})
		if errors.Is(err, ErrClearText) != refused || !refused && err != nil {
			t.Errorf("%s: %v", address, err)
		}
		if c != nil {
			c.Close()
		}
	}
	if _, err := New(Config{Address: "rack.example:8045"}); err != nil {
		t.Errorf("without a token: %v", err)
	}
}

// A deadline that no time.Duration can say is no near one.
func TestFarDeadlines(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"items":[]}`)
	})
	for _, at := range []time.Time{time.Now().Add(math.MaxInt64), time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)} {
		ctx, cancel := context.WithDeadline(t.Context(), at)
		if _, err := c.Blades(ctx); err != nil {
			t.Errorf("until %v: %v", at, err)
		}
		if _, err := c.Logs(ctx, LogFilter{Since: at}); err != nil {
			t.Errorf("logs since %v: %v", at, err)
		}
		cancel()
	}
}

// Whoever lists regions learns who has not answered, on whichever page that is said.
func TestRegions_Missing(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, map[string]string{
			"":  `{"items":[{"region":"0:0:1001::/112"}],"next":"1"}`,
			"1": `{"items":[{"region":"0:0:1002::/112"}],"missing":["m2","m1"],"next":"2"}`,
			"2": `{"items":[],"missing":["m1"]}`,
		}[r.URL.Query().Get("cursor")])
	})
	var missing []string
	n := 0
	for _, err := range c.Regions(t.Context(), RegionFilter{Missing: &missing}) {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	if n != 2 || !slices.Equal(missing, []string{"m1", "m2"}) {
		t.Errorf("%d regions, no answer from %q", n, missing)
	}
}
