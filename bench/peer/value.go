package peer

import (
	"context"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/bench/idl/gen-go/hop"
	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
)

// dialer returns a Thrift client of a service of a peer; hop 0 is the main one.
type dialer func(ctx context.Context, service string, hop int) (thrift.TClient, func(), error)

// byValue makes the operations that Thrift's peers have in common: arguments and
// results are part of the message.
func byValue(ctx context.Context, dial dialer, w Work) (Operation, func(), error) {
	if err := w.check(); err != nil {
		return nil, nil, err
	}
	service, stage := "Arrays", 0
	switch w.Op {
	case Ping:
		service = "Ping"
	case Chain:
		service, stage = hopName(1), 1
	}
	raw, release, err := dial(ctx, service, stage)
	if err != nil {
		return nil, nil, err
	}
	client := &timedClient{inner: raw}
	op := valueOperation(client, w)
	if op == nil {
		release()
		return nil, nil, cannot("Thrift by value", w)
	}
	return client.watch(op), release, nil
}

func valueOperation(client thrift.TClient, w Work) Operation {
	calls, data := arrays.NewArraysClient(client), pattern(w.Size, 1)
	switch w.Op {
	case Ping:
		ping := arrays.NewPingClient(client)
		return func(ctx context.Context, _ *Clock) error { return ping.Ping(ctx) }
	case Increment:
		v := incremented(data)
		return func(ctx context.Context, c *Clock) error {
			got, err := calls.Increment(ctx, data, delta)
			return v.check(c, got, err)
		}
	case Transfer:
		if w.Reply != w.Size {
			return nil
		}
		return func(ctx context.Context, _ *Clock) error {
			got, err := calls.Echo(ctx, data)
			if err == nil && (len(got) != len(data) || ends(got) != ends(data)) {
				err = errWrong
			}
			return err
		}
	case Add:
		other := pattern(w.Size, 2)
		v := added(data, other)
		return func(ctx context.Context, c *Clock) error {
			got, err := calls.Add(ctx, data, other)
			return v.check(c, got, err)
		}
	case Chain:
		stage, want := hop.NewHopClient(client), sum(data)
		return func(ctx context.Context, _ *Clock) error {
			got, err := stage.Forward(ctx, data, int32(w.Hops-1))
			if err == nil && got != want {
				err = errWrong
			}
			return err
		}
	}
	return nil
}

// timedClient tells how long Thrift's own work takes: it has the structs that the
// generated code passes write and read themselves under a clock.
type timedClient struct {
	inner  thrift.TClient
	phases *Phases
}

// watch makes an operation's clock the client's.
func (t *timedClient) watch(op Operation) Operation {
	return func(ctx context.Context, c *Clock) error {
		t.phases = c.Phases
		return op(ctx, c)
	}
}

// Call implements thrift.TClient.
func (t *timedClient) Call(ctx context.Context, method string, args, result thrift.TStruct) (thrift.ResponseMeta, error) {
	if t.phases == nil {
		return t.inner.Call(ctx, method, args, result)
	}
	defer t.phases.Time(Call)()
	return t.inner.Call(ctx, method, timedStruct{args, t.phases}, timedStruct{result, t.phases})
}

type timedStruct struct {
	inner  thrift.TStruct
	phases *Phases
}

// Write implements thrift.TStruct.
func (t timedStruct) Write(ctx context.Context, p thrift.TProtocol) error {
	defer t.phases.Time(Marshal)()
	return t.inner.Write(ctx, p)
}

// Read implements thrift.TStruct.
func (t timedStruct) Read(ctx context.Context, p thrift.TProtocol) error {
	defer t.phases.Time(Marshal)()
	return t.inner.Read(ctx, p)
}
