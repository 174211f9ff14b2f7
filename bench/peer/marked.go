package peer

import (
	"context"

	"github.com/bifrost-rack/bifrost/bench/idl/gen-go/marked"
	"github.com/bifrost-rack/bifrost/rpc"
)

// markedName is the service whose IDL marks its arrays (bifrost.ref): the runtime
// decides whether they travel inside the call or stand in memory.
const markedName = "Marked"

// markedHandler serves it.
type markedHandler struct{ valueHandler }

var _ marked.MarkedRefHandler = markedHandler{}

// Increment adds delta to every byte.
func (h markedHandler) Increment(ctx context.Context, data *rpc.Ref[[]byte], delta int8) (*rpc.Ref[[]byte], error) {
	b, err := data.Load(ctx)
	if err != nil {
		return nil, err
	}
	out, err := h.Arrays.Increment(ctx, b, delta)
	return rpc.RefOf(out), err
}

// Add adds a and b element by element.
func (h markedHandler) Add(ctx context.Context, a, b *rpc.Ref[[]byte]) (*rpc.Ref[[]byte], error) {
	x, err := a.Load(ctx)
	if err != nil {
		return nil, err
	}
	y, err := b.Load(ctx)
	if err != nil {
		return nil, err
	}
	out, err := h.Arrays.Add(ctx, x, y)
	return rpc.RefOf(out), err
}

// marked makes the operations of arrays with what "bifrost gen" generates: all that a
// program does for one is to make references, call, load the result, and free all.
func (c bifrostClient) marked(w Work) Operation {
	calls := marked.OpenMarked(c.Node, c.kind.service(markedName), rpc.WithPolicy(c.kind.policy))
	a := pattern(w.Size, 1)
	if w.Op == Increment {
		v := incremented(a)
		return func(ctx context.Context, k *Clock) error {
			arg := rpc.RefOf(a)
			got, err := calls.Increment(ctx, arg, delta)
			return v.taken(ctx, k, got, err, arg)
		}
	}
	b := pattern(w.Size, 2)
	v := added(a, b)
	return func(ctx context.Context, k *Clock) error {
		x, y := rpc.RefOf(a), rpc.RefOf(b)
		got, err := calls.Add(ctx, x, y)
		return v.taken(ctx, k, got, err, x, y)
	}
}

// taken takes a result, frees the arguments, and checks the result.
func (v *verifier) taken(ctx context.Context, k *Clock, got *rpc.Ref[[]byte], err error, args ...*rpc.Ref[[]byte]) error {
	var result []byte
	if err == nil {
		result, err = got.Take(ctx)
	}
	freed := together(len(args), func(i int) error { return args[i].Free(ctx) })
	if err == nil {
		err = freed
	}
	return v.check(k, result, err)
}
