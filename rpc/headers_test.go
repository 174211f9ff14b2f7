package rpc_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/internal/testrack"
	"github.com/bifrost-rack/bifrost/rpc/internal/testsvc"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

// Headers reach middleware and handler, the trace context goes on with the calls that the
// handler makes, and answers have headers of their own.
func TestHeaders(t *testing.T) {
	r := testrack.New(t, wire.Config{})
	saw := make(chan string, 4)
	var server *rpc.Node
	h := &testsvc.Handler{}
	h.Gate = func(ctx context.Context, number int64) error {
		tenant, _ := rpc.Header(ctx, "tenant")
		trace, _ := thrift.GetHeader(ctx, "traceparent")
		saw <- fmt.Sprint(number, " ", tenant, " ", trace)
		if number > 0 {
			if _, err := testsvc.NewTestClient(plain(server, "Test")).Count(ctx, number-1); err != nil {
				return err
			}
		}
		return rpc.SetAnswerHeader(ctx, "served-by", fmt.Sprint(number))
	}
	server = joinNode(t, r, "server")
	middleware := func(name string, next thrift.TProcessorFunction) thrift.TProcessorFunction {
		return thrift.WrappedTProcessorFunction{Wrapped: func(ctx context.Context, seq int32, in, out thrift.TProtocol) (bool, thrift.TException) {
			tenant, _ := rpc.Header(ctx, "tenant")
			saw <- name + " " + tenant
			return next.Process(ctx, seq, in, out)
		}}
	}
	processor := thrift.WrapProcessor(testsvc.NewTestProcessor(h), middleware)
	if err := server.Export(t.Context(), "Test", processor); err != nil {
		t.Fatal(err)
	}
	client := testsvc.NewTestClient(plain(joinNode(t, r, "client"), "Test"))
	ctx := rpc.WithHeader(rpc.WithHeader(t.Context(), "tenant", "blue"), "traceparent", parent)
	if _, err := client.Count(rpc.WithHeader(ctx, "tenant", "red"), 1); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"count red", "1 red " + parent, "count ", "0  " + parent} {
		if got := <-saw; got != want {
			t.Errorf("saw %q, want %q", got, want)
		}
	}
	if got := client.LastResponseMeta_().Headers; len(got) != 1 || got["served-by"] != "1" {
		t.Errorf("headers of the answer: %v", got)
	}
	if err := client.Ping(ctx); err != nil || client.LastResponseMeta_().Headers != nil {
		t.Errorf("an answer without headers: %v, %v", client.LastResponseMeta_().Headers, err)
	}
	large := testsvc.NewTestClient(plain(joinNode(t, r, "other"), "Test"))
	if b, err := large.Blob(ctx, make([]byte, 200_000)); err != nil || len(b) != 200_000 {
		t.Errorf("headers in front of a message in parts: %d bytes, %v", len(b), err)
	}
}

// Headers beyond the limits are refused where they are made, and those that do not parse
// where they come.
func TestBadHeaders(t *testing.T) {
	r := testrack.New(t, wire.Config{})
	server := serve(t, r, &testsvc.Handler{})
	client := testsvc.NewTestClient(plain(joinNode(t, r, "client"), "Test"))
	err := client.Ping(rpc.WithHeader(t.Context(), "long", strings.Repeat("x", rpc.MaxHeaderBytes)))
	var app thrift.TApplicationException
	if rpc.CodeOf(err) != rpc.BadRequest || !errors.As(err, &app) || !strings.Contains(err.Error(), "at most 64 with 8192 bytes") {
		t.Errorf("too long: %v", err)
	}
	if err := rpc.SetAnswerHeader(t.Context(), "key", "value"); rpc.CodeOf(err) != rpc.BadRequest {
		t.Errorf("no handler's context: %v", err)
	}
	gk := newPeer(t, r, "gk", rackaddr.Node(77))
	ping := thriftMessage(t, "ping", thrift.CALL, &testsvc.BasePingArgs{})
	for i, payload := range []string{"", "\x00", "\x00\x09abc", "\x00\x04\x00\x00\x00\x00" + string(ping), "\x00\x00", string(ping)} {
		m := callOf(t, "ping", uint64(i+1), []byte(payload))
		m.Flags |= rpcpacket.FlagHeaders
		gk.call(server, m.Append(nil))
		if a := gk.must(); a.Type != rpcpacket.Exception || a.Code != rpc.BadRequest {
			t.Errorf("%q: %v %v %q", payload, a.Type, a.Code, a.Payload)
		}
	}
	m := callOf(t, "ping", 10, append([]byte{0, 0}, ping...))
	m.Flags |= rpcpacket.FlagHeaders
	gk.call(server, m.Append(nil))
	if a := gk.must(); a.Type != rpcpacket.Reply {
		t.Errorf("no headers: %v %v %q", a.Type, a.Code, a.Payload)
	}
}

// The headers of a call are in the ledger: a handler that runs again sees the same, and sets those
// of the answer anew. A call of policy none that it made is not made again, and its answer has the
// headers that it had.
func TestHeadersOfReRun(t *testing.T) {
	var saw []string
	onBench(t, func(ctx context.Context, n *rpc.Node) error {
		tenant, _ := rpc.Header(ctx, "tenant")
		client := testsvc.NewSmallClient(n.Client("Down", rpc.WithPolicy(rpc.PolicyNone)))
		twice, err := client.Twice(ctx, 4)
		saw = append(saw, fmt.Sprint(tenant, twice, client.LastResponseMeta_().Headers, err))
		return errors.Join(noted(ctx), rpc.SetAnswerHeader(ctx, "run", fmt.Sprint(len(saw))))
	}, func(b *bench) {
		down := newCallee(b.t, b.rack, "down", rackaddr.Node(78), "Down")
		headed := func(kv ...rpcpacket.KeyValue) []byte {
			h, err := rpcpacket.AppendHeaders(nil, kv)
			if err != nil {
				b.t.Fatal(err)
			}
			return h
		}
		call := func() rpcpacket.Message {
			m := b.call()
			m.Flags |= rpcpacket.FlagHeaders
			m.Payload = append(headed(rpcpacket.KeyValue{Key: "tenant", Value: "blue"}), m.Payload...)
			return m
		}
		first := call()
		b.send(first)
		eight := int64(8)
		reply := thriftMessage(b.t, "twice", thrift.REPLY, &testsvc.SmallTwiceResult{Success: &eight})
		a := down.must()
		a.Type, a.Flags, a.Attempt = rpcpacket.Reply, a.Flags|rpcpacket.FlagHeaders, 0
		a.Payload, a.Trailer = append(headed(rpcpacket.KeyValue{Key: "from", Value: "down"}), reply...), nil
		down.send(b.server.Address(), a.Append(nil))
		b.answer(first)
		journal, again := b.journal(first), call()
		b.begun(again, journal)
		headers, _, err := rpcpacket.TakeHeaders(b.answer(again).Payload)
		if len(saw) != 2 || saw[0] != saw[1] || saw[0] != "blue8 map[from:down] <nil>" || err != nil || headers[0].Value != "2" {
			b.t.Errorf("saw %q, answer's headers %v, %v", saw, headers, err)
		}
	})
}
