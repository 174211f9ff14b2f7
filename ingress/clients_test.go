package ingress_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/bifrost-rack/bifrost/examples/counter/tally"
	"github.com/bifrost-rack/bifrost/ingress"
	"github.com/bifrost-rack/bifrost/p4switch/shared/privilege"
	"github.com/bifrost-rack/bifrost/rpc"
)

// lossy is in front of an ingress: of each key's first request the answer is lost, and so is that of each request without a key.
type lossy struct {
	to *httputil.ReverseProxy

	mu   sync.Mutex
	seen map[string]int
}

func (l *lossy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key := r.Header.Get("Idempotency-Key")
	l.mu.Lock()
	l.seen[key]++
	first := l.seen[key] == 1
	l.mu.Unlock()
	if !first {
		l.to.ServeHTTP(w, r)
		return
	}
	l.to.ServeHTTP(httptest.NewRecorder(), r)
	panic(http.ErrAbortHandler) // the connection breaks
}

// TestClients: programs in other languages, as they are in the examples, call the Counter. The answer to each one's first request is lost:
// they come again with its key, and nothing is added twice.
func TestClients(t *testing.T) {
	at, rack := liveRack(t, ingress.Config{})
	node, err := rpc.Join(rack.On(t.Context(), "c1"), rpc.WithName("counter"))
	if err != nil {
		t.Fatal(err)
	}
	defer node.Close(context.Background())
	if err := tally.Serve(t.Context(), node, tally.CounterName); err != nil {
		t.Fatal(err)
	}
	target, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	front := &lossy{to: &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }}, seen: map[string]int{}}
	proxy := httptest.NewServer(front)
	defer proxy.Close()
	compiled := t.TempDir()
	for i, c := range []struct {
		program string
		args    []string
	}{{"curl", []string{"sh", "../examples/outside/add.sh"}}, {"tsc", []string{"node", filepath.Join(compiled, "add.mjs")}}, {"javac", []string{"java", "../examples/outside/Add.java"}}} {
		t.Run(c.program, func(t *testing.T) {
			privilege.Program(t, c.program)
			if c.program == "tsc" {
				compile := []string{"--strict", "--target", "es2022", "--module", "es2022", "--lib", "es2022,dom", "--outDir", compiled, "../examples/outside/add.mts"}
				if out, err := exec.Command("tsc", compile...).CombinedOutput(); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
			}
			account := string(rune('1' + i))
			for n, want := range []string{"account " + account + " has 100", "account " + account + " has 200"} {
				out, err := exec.Command(c.args[0], append(c.args[1:], proxy.URL, account, "100")...).CombinedOutput()
				if err != nil || strings.TrimSpace(string(out)) != want {
					t.Errorf("call %d: %v: %s, want %s", n, err, out, want)
				}
			}
			out, err := exec.Command(c.args[0], append(c.args[1:], proxy.URL, "99", "100")...).CombinedOutput()
			if err == nil || !strings.Contains(string(out), "urn:bifrost:exception:NoSuchAccount") || !strings.Contains(string(out), `"accounts":64`) {
				t.Errorf("an account that is not there: %v: %s", err, out)
			}
		})
	}
	for key, n := range front.seen {
		if n < 2 || key == "" {
			t.Errorf("key %q came %d times", key, n)
		}
	}
}

// TestPage: the page has a form for each method, and makes calls; what is shown is escaped. The OpenAPI document has the same methods.
func TestPage(t *testing.T) {
	onRack(t, ingress.Config{}, func(r *rig) {
		page := r.do("GET", "/", "")
		r.expect("the page", page, 200, `action="/form/Shop/buy"`)
		for _, want := range []string{"Adds to an account, and returns what it has then.", "&#34;account&#34;: &#34;&#34;", `"/openapi.json"`} {
			r.expect("the page", page, 200, want)
		}
		form := func(method, body, key string) reply {
			return r.do("POST", "/form/Shop/"+method, url.Values{"body": {body}, "key": {key}}.Encode(), "Content-Type", "application/x-www-form-urlencoded")
		}
		r.expect("a call", form("buy", `{"account":"<b>","cents":5}`, "k"), 200, "Shop.buy: 200 OK")
		again := form("buy", `{"account":"<b>","cents":5}`, "k")
		r.expect("again", again, 200, "<pre>5</pre>")
		if strings.Contains(again.body, "<b>") {
			r.Error("the page shows what it was sent as it came")
		}
		r.expect("a problem", form("buy", `{}`, ""), 200, "400 Bad Request")
		r.expect("a bad key", form("buy", `{}`, strings.Repeat("k", 300)), 200, "bad-key")
		if a := r.do("POST", "/form/Shop/buy", "body=%7B%7D", "Content-Type", "application/x-www-form-urlencoded", "Sec-Fetch-Site", "cross-site"); a.status != 403 {
			r.Errorf("from another origin: %d", a.status)
		}
		var doc struct {
			Paths map[string]map[string]any
		}
		if err := json.Unmarshal([]byte(r.do("GET", "/openapi.json", "").body), &doc); err != nil {
			r.Fatal(err)
		}
		for _, method := range []string{"echo", "buy", "total", "fail", "note", "measure", "deposit", "repeat", "make", "both"} {
			if doc.Paths["/call/Shop/"+method]["post"] == nil {
				r.Errorf("the document does not have %s", method)
			}
		}
		if b, err := json.Marshal(doc.Paths["/call/Shop/repeat"]); err != nil || strings.Count(string(b), "application/octet-stream") != 2 || !strings.Contains(string(b), `"name":"arguments"`) {
			r.Errorf("the document says of a method with bodies as they are: %s", b)
		}
		if len(doc.Paths) != 11 {
			r.Errorf("the document has %d paths", len(doc.Paths))
		}
	})
}
