package peer

import (
	"context"

	"github.com/bifrost-rack/bifrost/bench/idl/gen-go/hop"
)

// chain makes the operation of passing one array through a chain: it is put into
// memory, passed, and freed.
func (c bifrostClient) chain(ctx context.Context, w Work) (Operation, func(), error) {
	raw, release, err := c.kind.dialer(c.Node)(ctx, hopName(1), 1)
	if err != nil {
		return nil, nil, err
	}
	data := pattern(w.Size, 1)
	want, stage := sum(data), hop.NewHopClient(raw)
	return func(ctx context.Context, k *Clock) error {
		l := loan{memory: c.Memory(), phases: k.Phases}
		err := l.make(ctx, [][]byte{data})
		if err == nil {
			var got int64
			if got, err = stage.ForwardRef(ctx, l.args[0], int64(len(data)), int32(w.Hops-1)); err == nil && got != want {
				err = errWrong
			}
		}
		if freed := l.end(ctx); err == nil {
			err = freed
		}
		return err
	}, release, nil
}

// access makes the operation of reading or writing memory.
func (c bifrostClient) access(ctx context.Context, w Work) (Operation, func(), error) {
	memory := c.Memory()
	p, err := memory.Alloc(ctx, uint64(max(1, w.Size)))
	if err != nil {
		return nil, nil, err
	}
	data := pattern(w.Size, 1)
	release := func() { _ = memory.Free(context.WithoutCancel(ctx), p) } // the node's end frees it, too
	if _, err := memory.Write(ctx, p, data); err != nil {
		release()
		return nil, nil, err
	}
	if w.Op == Write {
		return func(ctx context.Context, _ *Clock) error {
			_, err := memory.Write(ctx, p, data)
			return err
		}, release, nil
	}
	got, v := make([]byte, w.Size), &verifier{want: data}
	return func(ctx context.Context, k *Clock) error {
		_, err := memory.Read(ctx, p, got)
		return v.check(k, got, err)
	}, release, nil
}
