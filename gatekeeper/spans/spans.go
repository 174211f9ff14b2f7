// Package spans exports calls as OpenTelemetry spans: one for each call that is over,
// from when its caller sent it (a1) to when it was answered (a2), with everything
// between as events. Calls that belong together are one trace, whose id is that of
// the outermost call.
//
//	Gatekeeper's loop ─ Over ─▶ queue ─▶ Run ─▶ SDK: sampler, batches ─▶ OTLP
//	                      └─ full: dropped and counted
//
// The loop never waits, and without an Exporter pays one comparison for each call.
package spans

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/bifrost-rack/bifrost/gatekeeper/trace"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// queue is how many calls wait to become spans; at some hundred bytes, a few MiB.
const queue = 8192

// lastExport is how long the export of the last spans may take, when the Gatekeeper ends.
const lastExport = 3 * time.Second

// Wanted reports whether spans are to be exported: to an endpoint that is given, or to
// one that the environment names in the variables of the OpenTelemetry specification.
func Wanted(endpoint string) bool {
	if strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") || os.Getenv("OTEL_TRACES_EXPORTER") == "none" {
		return false
	}
	return endpoint != "" || os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != ""
}

// Exporter makes spans of calls. Over may be called concurrently with all others.
type Exporter struct {
	calls    chan finished
	dropped  atomic.Uint64
	provider *sdk.TracerProvider
	tracer   oteltrace.Tracer
	log      *slog.Logger
}

type finished struct {
	call trace.Call
	root rpcpacket.ID
}

// New returns an Exporter that speaks OTLP over HTTP to an endpoint, a URL; "" leaves
// that to the environment, as everything else: OTEL_EXPORTER_OTLP_HEADERS, OTEL_SERVICE_NAME,
// OTEL_TRACES_SAMPLER, OTEL_BSP_SCHEDULE_DELAY and so on. Nobody needs to listen there yet.
func New(ctx context.Context, endpoint, version string, log *slog.Logger) (*Exporter, error) {
	var options []otlptracehttp.Option
	if endpoint != "" {
		if !strings.HasPrefix(endpoint, "http://") && !strings.HasPrefix(endpoint, "https://") {
			return nil, fmt.Errorf("OTLP endpoint %q: want a URL, such as http://localhost:4318", endpoint)
		}
		options = append(options, otlptracehttp.WithEndpointURL(strings.TrimSuffix(endpoint, "/")+"/v1/traces"))
	}
	to, err := otlptracehttp.New(ctx, options...)
	if err != nil {
		return nil, fmt.Errorf("OTLP exporter: %w", err)
	}
	return with(ctx, sdk.NewBatchSpanProcessor(to), version, log)
}

// with is New with what takes the spans.
func with(ctx context.Context, to sdk.SpanProcessor, version string, log *slog.Logger) (*Exporter, error) {
	about, err := resource.New(ctx,
		resource.WithAttributes(attribute.String("service.name", "bifrost-gatekeeper"), attribute.String("service.version", version)),
		resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("OpenTelemetry resource: %w", err)
	}
	e := &Exporter{
		calls: make(chan finished, queue), log: log,
		provider: sdk.NewTracerProvider(sdk.WithSpanProcessor(to), sdk.WithIDGenerator(given{}), sdk.WithResource(about)),
	}
	e.tracer = e.provider.Tracer("github.com/bifrost-rack/bifrost/gatekeeper/spans")
	return e, nil
}

// Over takes a call that is over, and the outermost on whose behalf it was made. It
// does not block.
func (e *Exporter) Over(call trace.Call, root rpcpacket.ID) {
	select {
	case e.calls <- finished{call, root}:
	default:
		e.dropped.Add(1)
	}
}

// Dropped is how many calls were dropped because too many waited.
func (e *Exporter) Dropped() uint64 { return e.dropped.Load() }

// Run makes spans until ctx ends, and then exports what is left, for which it takes
// lastExport at most. It must be called once.
func (e *Exporter) Run(ctx context.Context) error {
	for {
		select {
		case f := <-e.calls:
			e.export(&f)
		case <-ctx.Done():
			return e.end(context.WithoutCancel(ctx))
		}
	}
}

func (e *Exporter) end(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lastExport)
	defer cancel()
	for {
		select {
		case f := <-e.calls:
			e.export(&f)
			continue
		default:
		}
		if n := e.Dropped(); n > 0 {
			e.log.Warn("calls without a span: too many at a time", "calls", n)
		}
		return errors.Join(e.provider.ForceFlush(ctx), e.provider.Shutdown(ctx))
	}
}
