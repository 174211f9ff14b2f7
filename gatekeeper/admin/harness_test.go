package admin

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/examples/arrays/service"
	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/idl/bifrost"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testToken = "a-token-that-nobody-guesses"

// busy is a rack in the middle of its work, at rest: c1 controls two regions and
// calls s2 with both, whose handler waits and has called s1 with one of them.
// s1's attempts to write were denied.
type busy struct {
	*simrack.Rack
	t                      testing.TB
	ctx                    context.Context
	caller, callee, nested *rpc.Node
	a, b, own              dsm.Pointer
	broken                 atomic.Bool // a memory blade has been failed, which may hold what the calls need
	calls                  sync.WaitGroup
	finish                 func() // lets the calls return; then nothing is left but the regions
}

// waiting is the Arrays service whose handlers wait.
type waiting struct {
	service.Arrays
	nest    func(ctx context.Context, p *bifrost.GlobalPointer) error // nil for the innermost
	entered chan struct{}
	resume  chan struct{}
}

func (w *waiting) AddRef(ctx context.Context, a *bifrost.GlobalPointer, n int64, b *bifrost.GlobalPointer, m int64) (*bifrost.GlobalPointer, error) {
	if err := w.nest(ctx, a); err != nil {
		return nil, err
	}
	return w.Arrays.AddRef(ctx, a, n, b, m)
}

func (w *waiting) IncrementRef(ctx context.Context, p *bifrost.GlobalPointer, n int64, delta int8) (*bifrost.GlobalPointer, error) {
	close(w.entered)
	select {
	case <-w.resume:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return w.Arrays.IncrementRef(ctx, p, n, delta)
}

// startBusy brings the rack up and to rest.
func startBusy(t testing.TB) *busy {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	rack, err := simrack.Start(ctx, simrack.Config{Heartbeat: 10 * time.Second, Machines: [][]string{{"m1", "m2"}}, Disk: new(wal.Disk), Ledgers: gatekeeper.LedgersTruth}) // no blade is taken for dead on a slow machine
	must(t, err)
	b := &busy{Rack: rack, t: t, ctx: ctx}
	t.Cleanup(func() {
		b.finish()
		must(t, b.Close())
	})
	b.caller, b.callee, b.nested = b.join("c1", "client"), b.join("s2", "front"), b.join("s1", "back")
	inner := &waiting{entered: make(chan struct{}), resume: make(chan struct{})}
	b.finish = sync.OnceFunc(func() {
		close(inner.resume)
		b.calls.Wait()
	})
	must(t, b.nested.Export(ctx, "Inner", arrays.NewArraysProcessor(inner)))
	outer := &waiting{nest: func(ctx context.Context, p *bifrost.GlobalPointer) error {
		_, err := arrays.NewArraysClient(b.callee.Client("Inner")).IncrementRef(ctx, p, 64, 1)
		return err
	}}
	must(t, b.callee.Export(ctx, "Arrays", arrays.NewArraysProcessor(outer)))
	b.a, b.b, b.own = b.alloc(b.caller, 4096), b.alloc(b.caller, 64), b.alloc(b.nested, 1<<20)
	b.calls.Go(func() {
		_, err := arrays.NewArraysClient(b.caller.Client("Arrays")).AddRef(ctx, rpc.GlobalPointer(b.a), 64, rpc.GlobalPointer(b.b), 64)
		if err != nil && (!b.broken.Load() || rpc.CodeOf(err) != rpc.Unavailable && rpc.CodeOf(err) != rpc.Canceled) {
			t.Error(err)
		}
	})
	select {
	case <-inner.entered:
	case <-ctx.Done():
		t.Fatal("the nested call does not begin")
	}
	b.deny(3)
	return b
}

func (b *busy) join(blade, name string) *rpc.Node {
	b.t.Helper()
	n, err := b.Join(b.ctx, blade, name)
	must(b.t, err)
	return n
}

func (b *busy) alloc(n *rpc.Node, size uint64) dsm.Pointer {
	b.t.Helper()
	p, err := n.Memory().Alloc(b.ctx, size)
	must(b.t, err)
	return p
}

// deny has the switch deny n accesses, and waits until the Gatekeeper knows. Each is
// one packet: a client would send it again if this machine is slow, and that would
// count, too.
func (b *busy) deny(n int) {
	b.t.Helper()
	before, err := b.Gatekeeper().Overview(b.ctx)
	must(b.t, err)
	events := b.Gatekeeper().Subscribe(b.ctx)
	from := netip.AddrPortFrom(b.nested.Address(), rackaddr.PortDSM)
	for range n {
		h := dsmpacket.Header{Kind: dsmpacket.Request, Request: 1, Floor: 1, Incarnation: 1, Length: 4}
		to := netip.AddrPortFrom(b.a.With(dsmpacket.OpWrite, 0).Addr(), rackaddr.PortDSM)
		b.Host("s1").SendRaw(from, to, append(h.Append(nil), "mine"...))
	}
	for seen := 0; seen < n; {
		if e := <-events; e.Kind == gatekeeper.AccessDenied {
			seen++
		}
	}
	after, err := b.Gatekeeper().Overview(b.ctx)
	must(b.t, err)
	if after.Counters.Denied != before.Counters.Denied+uint64(n) {
		b.t.Fatalf("%d denials, then %d: want %d more", before.Counters.Denied, after.Counters.Denied, n)
	}
}

// site is a server over HTTP, with its token.
type site struct {
	t      testing.TB
	server *Server
	url    string
	client *http.Client
	token  string
}

// startSite serves a backend until the test ends.
func startSite(t testing.TB, backend Backend) *site {
	t.Helper()
	l, err := Listen("127.0.0.1:0", nil)
	must(t, err)
	return serveSite(t, backend, l)
}

// serveSite is startSite at a listener.
func serveSite(t testing.TB, backend Backend, l Listener) *site {
	t.Helper()
	server, err := New(Config{Backend: backend, Grants: OneToken(testToken), Version: "test", Log: slog.New(slog.DiscardHandler)})
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx, l) }()
	transport := &http.Transport{}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		cancel()
		must(t, <-ended)
	})
	return &site{t: t, server: server, url: "http://" + l.Addr().String(), client: &http.Client{Transport: transport}, token: testToken}
}

// request makes a request without a body, with the site's token.
func (s *site) request(method, path string, header ...string) *http.Request {
	s.t.Helper()
	r, err := http.NewRequestWithContext(context.Background(), method, s.url+path, nil)
	must(s.t, err)
	if s.token != "" {
		r.Header.Set("Authorization", "Bearer "+s.token)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	return r
}

// do returns a response with its body.
func (s *site) do(r *http.Request) (*http.Response, []byte) {
	s.t.Helper()
	resp, err := s.client.Do(r)
	must(s.t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	must(s.t, err)
	return resp, b
}

// get returns the body of a successful GET.
func (s *site) get(path string) []byte {
	s.t.Helper()
	resp, b := s.do(s.request(http.MethodGet, path))
	if resp.StatusCode != http.StatusOK {
		s.t.Fatalf("GET %s: %s\n%s", path, resp.Status, b)
	}
	return b
}

// getAs decodes the body of a successful GET.
func getAs[T any](s *site, path string) (out T) {
	s.t.Helper()
	must(s.t, json.Unmarshal(s.get(path), &out))
	return out
}

// refused expects a problem document of a status.
func (s *site) refused(r *http.Request, status int) (p api.Problem) {
	s.t.Helper()
	resp, b := s.do(r)
	if err := json.Unmarshal(b, &p); err != nil || resp.Header.Get("Content-Type") != "application/problem+json" ||
		resp.StatusCode != status || p.Status != status || p.Title != http.StatusText(status) || p.Type != "about:blank" || p.Detail == "" {
		s.t.Errorf("%s %s: %s, %s\n%s\nwant a problem of status %d (%v)", r.Method, r.URL, resp.Status, resp.Header.Get("Content-Type"), b, status, err)
	}
	return p
}

// handler serves one request without a network.
func handle(h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func contextThatHasEnded() (context.Context, func()) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx, cancel
}

func contextUntil(t testing.TB) (context.Context, func()) {
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	return ctx, cancel
}
