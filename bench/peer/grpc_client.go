package peer

import (
	"context"
	"errors"

	"google.golang.org/grpc"

	"github.com/bifrost-rack/bifrost/bench/idl/benchpb"
)

// grpcClient calls over two connections: one to the main services, one to a chain.
type grpcClient struct{ calls, chain *grpc.ClientConn }

func dialGRPC(_ context.Context, s Site) (Client, error) {
	calls, err := dialGRPCAt(s.main())
	if err != nil {
		return nil, err
	}
	chain, err := dialGRPCAt(s.hop(1))
	if err != nil {
		return nil, errors.Join(err, calls.Close())
	}
	return grpcClient{calls, chain}, nil
}

// Close ends the connections.
func (c grpcClient) Close() error { return errors.Join(c.calls.Close(), c.chain.Close()) }

// Prepare implements Client.
func (c grpcClient) Prepare(_ context.Context, w Work) (Operation, func(), error) {
	if err := w.check(); err != nil {
		return nil, nil, err
	}
	op := c.operation(w)
	if op == nil {
		return nil, nil, cannot("gRPC", w)
	}
	return op, func() {}, nil
}

func (c grpcClient) operation(w Work) Operation {
	client, data := benchpb.NewBenchClient(c.calls), pattern(w.Size, 1)
	switch w.Op {
	case Ping:
		return func(ctx context.Context, _ *Clock) error {
			_, err := client.Ping(ctx, &benchpb.Nothing{})
			return err
		}
	case Increment:
		v := incremented(data)
		return func(ctx context.Context, k *Clock) error {
			got, err := client.Increment(ctx, &benchpb.IncrementRequest{Data: data, Delta: delta})
			return v.check(k, got.GetData(), err)
		}
	case Add:
		other := pattern(w.Size, 2)
		v := added(data, other)
		return func(ctx context.Context, k *Clock) error {
			got, err := client.Add(ctx, &benchpb.AddRequest{A: data, B: other})
			return v.check(k, got.GetData(), err)
		}
	case Chain:
		chain, want := benchpb.NewBenchClient(c.chain), sum(data)
		return func(ctx context.Context, _ *Clock) error {
			got, err := chain.Forward(ctx, &benchpb.ForwardRequest{Data: data, Left: int32(w.Hops - 1)})
			if err == nil && got.GetSum() != want {
				err = errWrong
			}
			return err
		}
	}
	return nil
}
