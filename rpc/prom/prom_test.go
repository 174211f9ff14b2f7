package prom_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/goleak"

	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/internal/bridge"
	"github.com/bifrost-rack/bifrost/rpc/internal/testrack"
	"github.com/bifrost-rack/bifrost/rpc/internal/testsvc"
	"github.com/bifrost-rack/bifrost/rpc/prom"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Both sides count what was called, how it ended, how long it took and how large it was.
func TestCollector(t *testing.T) {
	r := testrack.New(t, wire.Config{})
	join := func(name string) *rpc.Node {
		n, err := rpc.Join(join.NewContext(t.Context(), r.Joiner()), rpc.WithName(name), rpc.WithLogger(slog.New(slog.DiscardHandler)))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := n.Close(context.Background()); err != nil {
				t.Error(err)
			}
		})
		return n
	}
	server, client := join("server"), join("client")
	handler := &testsvc.Handler{Gate: func(context.Context, int64) error { return rpc.Errorf(rpc.NoSpace, "full") }}
	if err := server.Export(t.Context(), "Test", testsvc.NewTestProcessor(handler)); err != nil {
		t.Fatal(err)
	}
	calls := testsvc.NewTestClient(client.Client("Test", rpc.WithPolicy(rpc.PolicyNone)))
	for range 3 {
		if _, err := calls.Blob(t.Context(), make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := calls.Count(t.Context(), 1); rpc.CodeOf(err) != rpc.NoSpace {
		t.Fatal(err)
	}
	_, bad := calls.Greet(t.Context(), "", nil)
	var refused *testsvc.Refused
	if !errors.As(bad, &refused) {
		t.Fatal(bad)
	}
	caller := bridge.CallerOf(client.Client("Test"))
	for range 2 { // one that reads a page has answered
		caller.Learn(bridge.Argument{Method: "blob", Name: "raw"}, 2)
	}
	for side, node := range map[string]*rpc.Node{"client": client, "server": server} {
		registry := prometheus.NewPedanticRegistry()
		registry.MustRegister(prom.NewCollector(node))
		w := httptest.NewRecorder()
		promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil))
		b, _ := io.ReadAll(w.Result().Body)
		got := string(b)
		blob := `rpc_method="blob",rpc_service="Test",rpc_system_name="bifrost"`
		for _, want := range []string{
			`rpc_` + side + `_call_duration_seconds_count{error_type="",` + blob + `} 3`,
			`rpc_` + side + `_call_duration_seconds_count{error_type="no space",rpc_method="count",`,
			`rpc_` + side + `_call_duration_seconds_count{error_type="declared",rpc_method="greet",`,
			`rpc_` + side + `_request_size_bytes_bucket{` + blob + `,le="1024"} 3`,
			`rpc_` + side + `_request_size_bytes_bucket{` + blob + `,le="256"} 0`,
			`rpc_` + side + `_response_size_bytes_count{` + blob + `} 3`,
			`rpc_node_dropped_datagrams_total{reason="full"} 0`,
			"rpc_node_resent_datagrams_total ",
			"rpc_node_exactly_once_calls_accepted_total 0",
		} {
			if !strings.Contains(got, want) {
				t.Errorf("%s: no %s in\n%s", side, want, got)
			}
		}
		const learned = `rpc_node_region_from_bytes{argument="raw",rpc_method="blob",rpc_service="Test"} 4.194304e+06`
		if strings.Contains(got, learned) != (side == "client") {
			t.Errorf("%s: %s is not to be, or is, in\n%s", side, learned, got)
		}
	}
}
