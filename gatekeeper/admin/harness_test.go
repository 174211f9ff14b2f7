package admin

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"go.uber.org/goleak"

	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/internal/admintest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testToken = admintest.Token

type (
	busy    = admintest.Busy
	stopped = admintest.Stopped
)

func startBusy(t testing.TB) *busy {
	t.Helper()
	return admintest.StartBusy(t)
}

// site is a server over HTTP, with its token.
type site struct {
	*admintest.Site
	server *Server
}

// startSite serves a backend until the test ends.
func startSite(t testing.TB, backend Backend) *site {
	t.Helper()
	l, err := Listen("127.0.0.1:0", nil)
	must(t, err)
	server, err := New(Config{Backend: backend, Grants: OneToken(testToken), Version: "test", Log: slog.New(slog.DiscardHandler)})
	must(t, err)
	run := func(ctx context.Context) error { return server.Run(ctx, l) }
	return &site{admintest.Serve(t, "http://"+l.Addr().String(), run), server}
}

// getAs decodes the body of a successful GET.
func getAs[T any](s *site, path string) T {
	s.T.Helper()
	return admintest.GetAs[T](s.Site, path)
}

// handler serves one request without a network.
func handle(h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func must(t testing.TB, err error) {
	t.Helper()
	admintest.Must(t, err)
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

// narrator is a Gatekeeper that only tells events, those that a test hands it.
type narrator struct {
	stopped
	events chan gatekeeper.Event
}

func newNarrator() narrator { return narrator{events: make(chan gatekeeper.Event)} }

func (n narrator) Subscribe(context.Context) <-chan gatekeeper.Event { return n.events }

// tell makes events of numbers from to to.
func (n narrator) tell(from, to uint64) {
	for seq := from; seq <= to; seq++ {
		n.events <- gatekeeper.Event{Seq: seq, Kind: gatekeeper.CallRefused}
	}
}
