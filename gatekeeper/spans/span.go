package spans

import (
	"cmp"
	"context"
	"encoding/binary"
	"net/netip"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/bifrost-rack/bifrost/gatekeeper/trace"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// spanID is a call's id in 8 bytes.
func spanID(id rpcpacket.ID) (s oteltrace.SpanID) {
	v := binary.BigEndian.Uint64(id[:8]) ^ binary.BigEndian.Uint64(id[8:])
	if v == 0 {
		v = 1 // 0 is no id
	}
	binary.BigEndian.PutUint64(s[:], v)
	return s
}

// given is the ids of a span, which come in the context.
type given struct{}

type idsKey struct{}

// NewIDs and NewSpanID implement the SDK's IDGenerator.
func (given) NewIDs(ctx context.Context) (oteltrace.TraceID, oteltrace.SpanID) {
	f, _ := ctx.Value(idsKey{}).(*finished)
	return oteltrace.TraceID(f.root), spanID(f.call.ID)
}

// NewSpanID is for spans with a parent.
func (given) NewSpanID(ctx context.Context, _ oteltrace.TraceID) oteltrace.SpanID {
	f, _ := ctx.Value(idsKey{}).(*finished)
	return spanID(f.call.ID)
}

// export makes the span of a call.
func (e *Exporter) export(f *finished) {
	c := &f.call
	ctx := context.WithValue(context.Background(), idsKey{}, f)
	if c.ID != f.root {
		ctx = oteltrace.ContextWithRemoteSpanContext(ctx, oteltrace.NewSpanContext(oteltrace.SpanContextConfig{
			TraceID: oteltrace.TraceID(f.root), SpanID: spanID(c.Parent), TraceFlags: oteltrace.FlagsSampled, Remote: true,
		}))
	}
	name := c.Method
	if c.Service != "" {
		name = c.Service + "/" + c.Method
	}
	_, span := e.tracer.Start(ctx, name, oteltrace.WithTimestamp(c.A1), oteltrace.WithSpanKind(oteltrace.SpanKindClient), oteltrace.WithAttributes(attributes(c)...))
	end := c.A1
	for _, s := range c.Steps {
		if s.Kind != trace.Sent {
			span.AddEvent(s.Kind.String(), oteltrace.WithTimestamp(s.Time), oteltrace.WithAttributes(
				attribute.String("bifrost.node", text(s.Node.Address)), attribute.Int("bifrost.attempt", int(s.Attempt))))
		}
		end = latest(end, s.Time)
	}
	if c.Code.Failure() {
		span.SetStatus(codes.Error, c.Code.String())
	}
	span.End(oteltrace.WithTimestamp(end))
}

func attributes(c *trace.Call) []attribute.KeyValue {
	as := []attribute.KeyValue{
		attribute.String("rpc.system", "bifrost"), attribute.String("rpc.service", c.Service), attribute.String("rpc.method", c.Method),
		attribute.String("client.address", text(c.Caller.Address)), attribute.String("server.address", text(c.Callee.Address)),
		attribute.String("bifrost.call", c.ID.String()), attribute.String("bifrost.policy", c.Policy.String()),
		attribute.Int("bifrost.attempts", c.Attempts),
	}
	if !c.Parent.IsZero() {
		as = append(as, attribute.String("bifrost.parent", c.Parent.String()))
	}
	if c.Oneway {
		as = append(as, attribute.Bool("bifrost.oneway", true))
	}
	if c.Code != fault.OK {
		as = append(as, attribute.String("error.type", cmp.Or(c.Details.Exception, c.Code.String())))
	}
	return as
}

func text(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
