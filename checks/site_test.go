// Package checks has the tests that need a browser, a checker of JSON schemas or one of
// linearizability. It is a module of its own, so that no user of Bifröst fetches these.
package checks

import (
	"context"
	"flag"
	"log/slog"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin"
	"github.com/bifrost-rack/bifrost/gatekeeper/history"
	"github.com/bifrost-rack/bifrost/internal/admintest"
)

var axe = flag.String("axe", fetchedAxe(), "axe.min.js of npm's axe-core, which looks at the page; by default what scripts/setup.sh has fetched")

func fetchedAxe() string {
	const path = "../out/axe/package/axe.min.js"
	if _, err := os.Stat(path); err != nil {
		return ""
	}
	return path
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t testing.TB, err error) {
	t.Helper()
	admintest.Must(t, err)
}

// startSite serves a backend until the test ends.
func startSite(t testing.TB, backend admin.Backend) *admintest.Site {
	t.Helper()
	l, err := admin.Listen("127.0.0.1:0", nil)
	must(t, err)
	return serve(t, backend, l, nil)
}

// serve is startSite at a listener.
func serve(t testing.TB, backend admin.Backend, l admin.Listener, past *history.History) *admintest.Site {
	t.Helper()
	server := newServer(t, backend, past)
	return admintest.Serve(t, "http://"+l.Addr().String(), func(ctx context.Context) error { return server.Run(ctx, l) })
}

func newServer(t testing.TB, backend admin.Backend, past *history.History) *admin.Server {
	t.Helper()
	s, err := admin.New(admin.Config{Backend: backend, History: past, Grants: admin.OneToken(admintest.Token), Version: "test", Log: slog.New(slog.DiscardHandler)})
	must(t, err)
	return s
}
