package ingress_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/bifrosttest"
	"github.com/bifrost-rack/bifrost/ingress"
	"github.com/bifrost-rack/bifrost/ingress/internal/shop"
	"github.com/bifrost-rack/bifrost/rpc"
)

// rig is a rack with an ingress on blade s1 and the shop on s2, in virtual time.
type rig struct {
	*testing.T
	*bifrosttest.Rack
	config ingress.Config
	runs   atomic.Int64 // of purchases and deposits

	mu      sync.Mutex
	server  *ingress.Server // the ingress' present incarnation
	entered func(ctx context.Context, account string)
	idl     string // of the shop; "" is its own
}

const app = `
name: app
programs:
  - name: ingress
    command: [ingress]
    blades: [s1]
    services: [{name: Bifrost.IngressKeys, stateful: true}, {name: Bifrost.Ingress}]
  - name: shop
    command: [shop]
    blades: [s2]
    services: [{name: Shop, stateful: true}]
`

// onRack runs f with a rig.
func onRack(t *testing.T, c ingress.Config, f func(r *rig)) {
	t.Helper()
	r := &rig{config: c}
	programs := map[string]bifrosttest.Program{
		"ingress": func(ctx context.Context, node *rpc.Node, _ []string) error {
			s, err := ingress.New(ctx, node, r.config)
			if err == nil {
				r.set(s)
			}
			return bifrosttest.Serve(ctx, err)
		},
		"shop": func(ctx context.Context, node *rpc.Node, _ []string) error {
			s := &shop.Service{Runs: &r.runs, Entered: func(ctx context.Context, account string) {
				r.mu.Lock()
				f := r.entered
				r.mu.Unlock()
				if f != nil {
					f(ctx, account)
				}
			}}
			r.mu.Lock()
			var options []rpc.ExportOption
			if r.idl != "" {
				options = append(options, rpc.WithIDL(r.idl))
			}
			r.mu.Unlock()
			return bifrosttest.Serve(ctx, s.Export(ctx, node, options...))
		},
	}
	bifrosttest.Run(t, bifrosttest.Config{Programs: programs, Network: bifrosttest.Network{Delay: 10 * time.Microsecond}}, func(t *testing.T, rack *bifrosttest.Rack) {
		r.T, r.Rack = t, rack
		rack.DeployText(app)
		f(r)
	})
}

func (r *rig) set(s *ingress.Server) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.server = s
}

// on sets what happens in the middle of each purchase.
func (r *rig) on(f func(ctx context.Context, account string)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.entered = f
}

// reply is what a client has got.
type reply struct {
	status int
	header http.Header
	body   string
}

// problem is the last part of a problem's type.
func (a *reply) problem() string {
	var p struct{ Type string }
	_ = json.Unmarshal([]byte(a.body), &p)
	return p.Type[strings.LastIndexByte(p.Type, ':')+1:]
}

// do makes a request of the ingress' present incarnation. Headers are pairs.
func (r *rig) do(method, path, body string, headers ...string) reply {
	if body != "" {
		headers = append([]string{"Content-Type", "application/json"}, headers...)
	}
	w := httptest.NewRecorder()
	r.present().ServeHTTP(w, r.request(method, path, strings.NewReader(body), headers...))
	b, _ := io.ReadAll(w.Result().Body)
	return reply{w.Code, w.Header(), string(b)}
}

// present is the handler of the ingress' present incarnation.
func (r *rig) present() http.Handler {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.server.Handler()
}

func (r *rig) request(method, path string, body io.Reader, headers ...string) *http.Request {
	req := httptest.NewRequestWithContext(r.Context(), method, path, body)
	req.Host = "localhost"
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	return req
}

// buy buys for so many cents.
func (r *rig) buy(account string, cents int, headers ...string) reply {
	return r.do("POST", "/call/Shop/buy", fmt.Sprintf(`{"account":%q,"cents":%d}`, account, cents), headers...)
}

// expect checks an answer.
func (r *rig) expect(what string, got reply, status int, body string) {
	r.Helper()
	if got.status != status || !strings.Contains(got.body, body) {
		r.Errorf("%s: %d %s, want %d %s", what, got.status, got.body, status, body)
	}
}

// total checks what an account has.
func (r *rig) total(account string, want int) {
	r.Helper()
	a := r.until(func() reply { return r.do("POST", "/call/Shop/total", fmt.Sprintf(`{"account":%q}`, account)) }, 503)
	if a.status != 200 || a.body != fmt.Sprint(want) {
		r.Errorf("account %s: %d %s, want %d", account, a.status, a.body, want)
	}
}

// until asks again, in virtual time, until an answer has another status than these.
func (r *rig) until(ask func() reply, not ...int) (a reply) {
	r.Helper()
	for range 600 {
		a = ask()
		ready := true
		for _, s := range not {
			ready = ready && a.status != s
		}
		if ready {
			return a
		}
		<-time.After(100 * time.Millisecond)
	}
	r.Errorf("still %d %s", a.status, a.body)
	return a
}
