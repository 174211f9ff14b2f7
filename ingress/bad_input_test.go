package ingress_test

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/bifrosttest"
	"github.com/bifrost-rack/bifrost/ingress"
	"github.com/bifrost-rack/bifrost/ingress/internal/shop"
	"github.com/bifrost-rack/bifrost/rpc"
)

// TestBadInput: what is refused, and how. None of it has an effect, or takes a key.
func TestBadInput(t *testing.T) {
	onRack(t, ingress.Config{MaxBody: 1000}, func(r *rig) {
		for _, c := range []struct {
			path, body string
			headers    []string
			status     int
			problem    string
			detail     string
		}{
			{"Shop/buy", `{"account":"a"}`, nil, 400, "mismatch", `"pointer":"/cents","expected":"a whole number of -9223372036854775808 to 9223372036854775807, as a number or a string","found":"nothing"`},
			{"Shop/buy", `{"account":"a","cents":1,"cents":2}`, nil, 400, "mismatch", `"pointer":"/cents"`},
			{"Shop/buy", `{"account":"a","cents":1e400}`, nil, 400, "mismatch", ``},
			{"Shop/buy", `{"account":"a","cents":9223372036854775808}`, nil, 400, "mismatch", ``},
			{"Shop/buy", `{"account":"a","cents":1,"more":2}`, nil, 400, "mismatch", `a member of another name`},
			{"Shop/buy", `{"account":"a","cents":1`, nil, 400, "mismatch", `the end of the body`},
			{"Shop/buy", `{"account":"` + strings.Repeat("x", 1000) + `","cents":1}`, nil, 413, "too-large", `more than 1000 bytes`},
			{"Shop/buy", `{}`, []string{"Content-Type", "text/plain"}, 415, "media-type", ``},
			{"Shop/buy", `{}`, []string{"Content-Type", ""}, 415, "media-type", ``},
			{"Shop/steal", `{}`, nil, 404, "unknown", `service Shop has no method`},
			{"Bank/buy", `{}`, nil, 404, "unknown", `no node of the rack exports a service`},
			{"Bifrost.Ingress/call", `{}`, nil, 404, "unknown", ``},
			{"Bifrost.IngressKeys/claim", `{}`, nil, 404, "unknown", ``},
			{"Shop/buy", `{}`, []string{"Idempotency-Key", strings.Repeat("k", 256)}, 400, "bad-key", `256 bytes: at most 255`},
			{"Shop/buy", `{}`, []string{"Idempotency-Key", strings.Repeat("k", 10_000)}, 400, "bad-key", `10000 bytes`},
			{"Shop/buy", `{}`, []string{"Idempotency-Key", `"open`}, 400, "bad-key", ``},
			{"Shop/buy", `{}`, []string{"Idempotency-Key", `""`}, 400, "bad-key", ``},
			{"Shop/buy", `{}`, []string{"Idempotency-Key", "ü"}, 400, "bad-key", ``},
			{"Shop/buy", `{}`, []string{"Idempotency-Key", ".."}, 400, "bad-key", ``},
			{"Shop/buy", `{"account":"a","cents":1}`, []string{"Sec-Fetch-Site", "cross-site"}, 403, "cross-origin", ``},
			{"Shop/buy", `{"account":"a","cents":1}`, []string{"Origin", "http://evil.example"}, 403, "cross-origin", ``},
		} {
			a := r.do("POST", "/call/"+c.path, c.body, c.headers...)
			if a.status != c.status || a.problem() != c.problem || !strings.Contains(a.body, c.detail) || a.header.Get("Content-Type") != "application/problem+json" {
				r.Errorf("%s %.60s %.60q: %d %s, want %d %s %s", c.path, c.body, c.headers, a.status, a.body, c.status, c.problem, c.detail)
			}
		}
		longest := strings.Repeat("k", 255)
		r.expect("bad with a key", r.do("POST", "/call/Shop/buy", `{"account":"a"}`, "Idempotency-Key", longest), 400, "mismatch")
		r.expect("good with the key", r.buy("a", 1, "Idempotency-Key", longest), 200, "1")
		r.expect("its outcome", r.do("GET", "/outcome/"+longest, ""), 200, "1")
		r.expect("a path", r.do("GET", "/call/Shop/buy", ""), 404, "there is no GET")
		r.total("a", 1)
	})
}

// TestHost: without tokens a page that has made its name lead to this machine is refused.
func TestHost(t *testing.T) {
	onRack(t, ingress.Config{}, func(r *rig) {
		for _, path := range []string{"http://evil.example:8046/", "http://evil.example/openapi.json"} {
			req, err := http.NewRequest(http.MethodGet, path, nil)
			if err != nil {
				r.Fatal(err)
			}
			w := &recorder{header: http.Header{}}
			r.present().ServeHTTP(w, req)
			if w.status != http.StatusForbidden {
				r.Errorf("%s: %d", path, w.status)
			}
		}
	})
}

type recorder struct {
	header http.Header
	status int
}

func (w *recorder) Header() http.Header         { return w.header }
func (w *recorder) WriteHeader(status int)      { w.status = status }
func (w *recorder) Write(b []byte) (int, error) { return len(b), nil }

// TestTokens: a token calls what it may, sees its own keys only, and is refused once it is out of the file.
func TestTokens(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens")
	write := func(lines ...string) {
		if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	line := func(name, services string) string {
		return fmt.Sprintf("%s %x %s", name, sha256.Sum256([]byte("token of "+name)), services)
	}
	write("# tokens", line("one", "Shop"), line("two", "*"), line("three", "Bank,Other"))
	tokens, err := ingress.OpenTokens(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	onRack(t, ingress.Config{Tokens: tokens}, func(r *rig) {
		of := func(name string) []string {
			return []string{"Authorization", "Bearer token of " + name, "Idempotency-Key", "k"}
		}
		r.expect("none", r.buy("a", 1), 401, "unauthorized")
		r.expect("a wrong one", r.buy("a", 1, of("nobody")...), 401, "unauthorized")
		r.expect("for other services", r.buy("a", 1, of("three")...), 403, "forbidden")
		r.expect("the first", r.buy("a", 1, of("one")...), 200, "1")
		r.expect("the second", r.buy("a", 2, of("two")...), 200, "3")
		r.expect("the first's outcome", r.do("GET", "/outcome/k", "", of("one")...), 200, "1")
		r.expect("the third's outcome", r.do("GET", "/outcome/k", "", of("three")...), 404, "unknown-key")
		r.expect("the page without", r.do("GET", "/", ""), 401, "")
		r.expect("the page by a browser", r.do("GET", "/", "", "Authorization", "Basic Ong="), 401, "")
		r.expect("what the third sees", r.do("GET", "/", "", of("three")...), 200, "No service is there")
		r.expect("what the first sees", r.do("GET", "/openapi.json", "", of("one")...), 200, "/call/Shop/buy")
		write(line("two", "*"), "")
		r.expect("taken out", r.buy("a", 1, of("one")...), 401, "unauthorized")
		write("rubbish")
		r.expect("an unreadable file", r.buy("a", 1, of("two")...), 401, "unauthorized")
	})
	for _, bad := range []string{"one", "a b c", line("x", "A") + "\n" + line("x", "B"), line("x", "A,,B")} {
		if all, err := ingress.ParseGrants([]byte(bad)); err == nil {
			t.Errorf("%q: %v", bad, all)
		}
	}
	if err := os.Chmod(file, 0o622); err != nil {
		t.Fatal(err)
	}
	if _, err := ingress.ReadGrants(file); err == nil {
		t.Error("a file that others may write is taken")
	}
}

// TestLimits: each client has its rate, and its share of the calls under way.
func TestLimits(t *testing.T) {
	onRack(t, ingress.Config{Rate: 1, Burst: 4, Concurrent: 4}, func(r *rig) {
		goOn := make(chan struct{})
		r.on(func(context.Context, string) { <-goOn })
		done := make(chan reply)
		busy := 0
		for i := range 4 {
			go func() { done <- r.buy("a", 1, "Idempotency-Key", fmt.Sprint(i)) }()
		}
		<-time.After(time.Second)
		a := r.buy("a", 1)
		r.expect("one more at once", a, 503, "calls of this client are under way")
		b := r.do("GET", "/outcome/0", "")
		r.expect("too often", b, 429, "1 requests a second")
		if b.header.Get("Retry-After") != "1" {
			r.Errorf("headers %v", b.header)
		}
		close(goOn)
		for range 4 {
			if a := <-done; a.status == 503 {
				busy++
			} else if a.status != 200 {
				r.Errorf("%d %s", a.status, a.body)
			}
		}
		if busy == 4 {
			r.Error("nobody was served")
		}
		<-time.After(10 * time.Second)
		r.expect("later", r.buy("b", 1), 200, "1")
	})
}

// live is an ingress at a real socket, with the shop.
func live(t testing.TB, c ingress.Config) (url string) {
	t.Helper()
	url, _ = liveRack(t, c)
	return url
}

func liveRack(t testing.TB, c ingress.Config) (url string, rack *bifrosttest.Live) {
	t.Helper()
	ctx := t.Context()
	rack, err := bifrosttest.Start(context.WithoutCancel(ctx), bifrosttest.Config{})
	if err != nil {
		t.Fatal(err)
	}
	join := func(blade, name string) *rpc.Node {
		n, err := rpc.Join(rack.On(ctx, blade), rpc.WithName(name))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			_ = n.Close(ctx) // a node whose callers have left waits for word that they will not ask again
		})
		return n
	}
	t.Cleanup(func() {
		if err := rack.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := new(shop.Service).Export(ctx, join("s1", "shop")); err != nil {
		t.Fatal(err)
	}
	s, err := ingress.New(ctx, join("s2", "ingress"), c)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serving, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(serving, l) }()
	t.Cleanup(func() {
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return "http://" + l.Addr().String(), rack
}

// TestTwoRacks: two racks are behind one address, each below a path. A key is each rack's own. What comes to the wrong rack calls nothing.
func TestTwoRacks(t *testing.T) {
	behind := map[string]string{}
	for _, path := range []string{"/blue", "/green/2"} {
		behind[path] = live(t, ingress.Config{Path: path})
	}
	proxy := http.NewServeMux()
	for path, at := range behind {
		to, err := url.Parse(at)
		if err != nil {
			t.Fatal(err)
		}
		proxy.Handle(path+"/", &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }})
	}
	front := httptest.NewServer(proxy)
	defer front.Close()
	do := func(method, url, body string, headers ...string) reply {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		for i := 0; i+1 < len(headers); i += 2 {
			req.Header.Set(headers[i], headers[i+1])
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		return reply{resp.StatusCode, resp.Header, string(b)}
	}
	expect := func(what string, a reply, status int, body string) {
		t.Helper()
		if a.status != status || !strings.Contains(a.body, body) {
			t.Errorf("%s: %d %s, want %d %s", what, a.status, a.body, status, body)
		}
	}
	const buy = `{"account":"a","cents":5}`
	for path := range behind {
		a := do("POST", front.URL+path+"/call/Shop/buy", buy, "Idempotency-Key", "k", "Prefer", "respond-async")
		expect(path, a, 202, path+"/outcome/k")
		expect(path+": its outcome", do("GET", front.URL+a.header.Get("Location"), "", "Prefer", "wait=10"), 200, "5")
		expect(path+": the page", do("GET", front.URL+path+"/", ""), 200, `action="`+path+`/form/Shop/buy"`)
		expect(path+": the document", do("GET", front.URL+path+"/openapi.json", ""), 200, `"servers":[{"url":"`+path+`/"}]`)
	}
	for _, wrong := range []string{"/green/2/call/Shop/buy", "/call/Shop/buy", "/bluecall/Shop/buy", "/blue%2Fcall/Shop/buy"} {
		expect(wrong, do("POST", behind["/blue"]+wrong, buy, "Idempotency-Key", "other"), 404, "begin with /blue/")
	}
	for path := range behind {
		expect(path+" in the end", do("POST", front.URL+path+"/call/Shop/total", `{"account":"a"}`), 200, "5")
	}
}

// TestPath_Bad: a path that could not be one is refused.
func TestPath_Bad(t *testing.T) {
	for _, path := range []string{"/", "blue", "/blue/", "//blue", "/../blue", "/a b", "/{x}", "/ä", "/a?b"} {
		if _, err := ingress.New(t.Context(), nil, ingress.Config{Path: path}); err == nil || !strings.Contains(err.Error(), "want something like /blue") {
			t.Errorf("%q: %v", path, err)
		}
	}
}

// TestSlowClients: a client that does not send its request in time is told so, if it has come so far, and its connection is closed.
func TestSlowClients(t *testing.T) {
	at := strings.TrimPrefix(live(t, ingress.Config{BodyTimeout: 50 * time.Millisecond}), "http://")
	head := "POST /call/Shop/buy HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n"
	for _, c := range []struct{ name, sent, want string }{
		{"half a header", head, ""},
		{"half a body", head + "\r\n{\"account\":", "HTTP/1.1 408"},
	} {
		conn, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, c.sent); err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(conn) // until the ingress closes the connection
		conn.Close()
		if !strings.HasPrefix(string(b), c.want) || c.want == "" && strings.Contains(string(b), "200") {
			t.Errorf("%s: %q", c.name, b)
		}
	}
	conn, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, head+"\r\n{\"account\":"); err != nil {
		t.Fatal(err)
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil { // cut short
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var p struct{ Type string }
	if err := json.NewDecoder(resp.Body).Decode(&p); err != nil || resp.StatusCode != http.StatusBadRequest || p.Type != "urn:bifrost:problem:cut-short" {
		t.Errorf("%d %+v %v", resp.StatusCode, p, err)
	}
}
