package spans

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	spanpb "go.opentelemetry.io/proto/otlp/trace/v1"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/bifrost-rack/bifrost/gatekeeper/trace"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sink is an OTLP collector that keeps spans by name.
type sink struct {
	*httptest.Server
	mu      sync.Mutex
	spans   map[string]*spanpb.Span
	service string
	paths   map[string]bool
}

func newSink(t *testing.T) *sink {
	t.Helper()
	s := &sink{spans: map[string]*spanpb.Span{}, paths: map[string]bool{}}
	s.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		var m collector.ExportTraceServiceRequest
		if err == nil {
			err = proto.Unmarshal(b, &m)
		}
		if err != nil {
			t.Error(err)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.paths[r.URL.Path] = true
		for _, rs := range m.ResourceSpans {
			for _, a := range rs.Resource.Attributes {
				if a.Key == "service.name" {
					s.service = a.Value.GetStringValue()
				}
			}
			for _, ss := range rs.ScopeSpans {
				for _, span := range ss.Spans {
					s.spans[span.Name] = span
				}
			}
		}
	}))
	t.Cleanup(s.Close)
	return s
}

var begin = time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC)

func at(ms int) time.Time { return begin.Add(time.Duration(ms) * time.Millisecond) }

// calls are an outer and an inner call, which was run again.
func calls() (outer, inner trace.Call) {
	step := func(ms int, k trace.Kind) trace.Step { return trace.Step{Time: at(ms), Kind: k} }
	outer = trace.Call{
		ID: rpcpacket.ID{1, 15: 1}, A1: at(0), B1: at(10), B2: at(90), A2: at(100), Code: fault.Declared,
		About: trace.About{Service: "Front", Method: "add", Policy: rpcpacket.PolicyRecover, Caller: trace.Node{Address: rackaddr.Node(1)}},
		Steps: []trace.Step{step(0, trace.Sent), step(10, trace.Delivered), step(90, trace.Replied), step(100, trace.Answered)},
	}
	inner = trace.Call{
		ID: rpcpacket.ID{2, 15: 9}, A1: at(20), Code: fault.Unavailable, Attempts: 1,
		About: trace.About{Parent: outer.ID, Service: "Counter", Method: "add", Callee: trace.Node{Address: rackaddr.Node(3)}},
		Steps: []trace.Step{step(20, trace.Sent), step(40, trace.Replayed), step(50, trace.Answered)},
	}
	return outer, inner
}

// Calls that belong together arrive at a collector as one trace, with their times.
func TestExport(t *testing.T) {
	s := newSink(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", s.URL)
	for name, endpoint := range map[string]string{"by flag": s.URL, "by the environment": ""} {
		t.Run(name, func(t *testing.T) {
			clear(s.spans)
			if !Wanted(endpoint) {
				t.Fatal("it is off")
			}
			e, err := New(t.Context(), endpoint, "v1", slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			outer, inner := calls()
			e.Over(inner, outer.ID)
			e.Over(outer, outer.ID)
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if err := e.Run(ctx); err != nil {
				t.Fatal(err)
			}
			front, count := s.spans["Front/add"], s.spans["Counter/add"]
			if front == nil || count == nil || len(s.spans) != 2 || s.service != "bifrost-gatekeeper" || !s.paths["/v1/traces"] || len(s.paths) != 1 {
				t.Fatalf("service %q, paths %v, spans %v", s.service, s.paths, s.spans)
			}
			if id := rpcpacket.ID(front.TraceId); id != outer.ID || rpcpacket.ID(count.TraceId) != outer.ID || len(front.ParentSpanId) != 0 || string(count.ParentSpanId) != string(front.SpanId) {
				t.Errorf("trace %x, the other %x with parent %x of %x", front.TraceId, count.TraceId, count.ParentSpanId, front.SpanId)
			}
			if front.StartTimeUnixNano != uint64(at(0).UnixNano()) || front.EndTimeUnixNano != uint64(at(100).UnixNano()) || count.EndTimeUnixNano != uint64(at(50).UnixNano()) {
				t.Errorf("times %d to %d, and to %d", front.StartTimeUnixNano, front.EndTimeUnixNano, count.EndTimeUnixNano)
			}
			if front.Status.GetCode() == spanpb.Status_STATUS_CODE_ERROR || count.Status.GetCode() != spanpb.Status_STATUS_CODE_ERROR || count.Status.Message != "unavailable" {
				t.Errorf("status %v and %v", front.Status, count.Status)
			}
			if len(front.Events) != 3 || front.Events[0].Name != "delivered" || front.Events[0].TimeUnixNano != uint64(at(10).UnixNano()) || len(count.Events) != 2 || count.Events[0].Name != "replayed" {
				t.Errorf("events %v and %v", front.Events, count.Events)
			}
		})
	}
}

// Over never waits, and says how much was too much.
func TestOver_DoesNotBlock(t *testing.T) {
	e, err := with(t.Context(), sdk.NewSimpleSpanProcessor(nil), "v1", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	outer, _ := calls()
	for range queue + 5 {
		e.Over(outer, outer.ID)
	}
	if e.Dropped() != 5 {
		t.Errorf("%d are dropped", e.Dropped())
	}
}

// It is off unless somebody asks for it.
func TestWanted(t *testing.T) {
	for _, tc := range []struct {
		flag, variable, value string
		want                  bool
	}{
		{"", "OTEL_SERVICE_NAME", "x", false}, {"http://x", "OTEL_SERVICE_NAME", "x", true}, {"", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://x", true},
		{"http://x", "OTEL_SDK_DISABLED", "true", false}, {"http://x", "OTEL_TRACES_EXPORTER", "none", false},
	} {
		t.Run(tc.variable+tc.value, func(t *testing.T) {
			t.Setenv(tc.variable, tc.value)
			if got := Wanted(tc.flag); got != tc.want {
				t.Errorf("with %q and %s=%s: %t", tc.flag, tc.variable, tc.value, got)
			}
		})
	}
	if _, err := New(t.Context(), "localhost:4318", "v1", nil); err == nil {
		t.Error("an endpoint that is no URL is taken")
	}
}

// BenchmarkOver is what the Gatekeeper's loop pays for a call, the copy besides.
func BenchmarkOver(b *testing.B) {
	e, err := with(b.Context(), sdk.NewSimpleSpanProcessor(nil), "v1", slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	go func() {
		for range e.calls {
		}
	}()
	defer close(e.calls)
	outer, _ := calls()
	for b.Loop() {
		e.Over(outer, outer.ID)
	}
}
