package rpc_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/internal/testrack"
	"github.com/bifrost-rack/bifrost/rpc/internal/testsvc"
)

func TestMain(m *testing.M) {
	if os.Getenv(serverVariable) != "" {
		fmt.Fprintln(os.Stderr, benchServer())
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// joinNode makes a node that is closed at the end of the test.
func joinNode(t testing.TB, r *testrack.Rack, name string) *rpc.Node {
	t.Helper()
	n, err := rpc.Join(join.NewContext(t.Context(), r.Joiner()), rpc.WithName(name), rpc.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := n.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return n
}

// plain is a client of policy none: the peer of a test has no ledger.
func plain(n *rpc.Node, service string) thrift.TClient {
	return n.Client(service, rpc.WithPolicy(rpc.PolicyNone))
}

// serve makes a node that exports the test service.
func serve(t testing.TB, r *testrack.Rack, h *testsvc.Handler, opts ...rpc.ExportOption) *rpc.Node {
	t.Helper()
	n := joinNode(t, r, "server")
	if err := n.Export(t.Context(), "Test", testsvc.NewTestProcessor(h), opts...); err != nil {
		t.Fatal(err)
	}
	return n
}

// nobody is a joiner without a daemon.
type nobody struct{}

func (nobody) Join(context.Context, string) (join.Session, error) {
	return nil, &rpc.Error{Code: rpc.Unavailable, Msg: "no daemon"}
}
