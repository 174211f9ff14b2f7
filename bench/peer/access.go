package peer

import (
	"context"
	"fmt"
	"time"

	"github.com/bifrost-rack/bifrost/bench/idl/gen-go/hop"
	"github.com/bifrost-rack/bifrost/dsm"
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
	p, err := c.alloc(ctx, uint64(max(1, w.Size)))
	if err != nil {
		return nil, nil, err
	}
	data := pattern(w.Size, 1)
	release := func() { _ = memory.Free(context.WithoutCancel(ctx), p) } // the node's end frees it, too
	if _, err := memory.Write(ctx, p, data); err != nil {
		release()
		return nil, nil, err
	}
	switch w.Op {
	case Hold:
		return hold, release, nil
	case Write:
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

// holdTime is how often somebody who only holds memory looks whether that is enough.
const holdTime = 100 * time.Millisecond

// hold does nothing for some time.
func hold(ctx context.Context, _ *Clock) error {
	timer := time.NewTimer(holdTime)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// maxElsewhere is how many regions in a row may be on another machine than the one that
// is wanted: clients choose machines by their free space.
const maxElsewhere = 64

// alloc allocates on the machine that is wanted. What is elsewhere is freed when it is
// found, so that the client does not choose by what it has had there.
func (c bifrostClient) alloc(ctx context.Context, size uint64) (p dsm.Pointer, err error) {
	memory := c.Memory()
	for range maxElsewhere {
		if p, err = memory.Alloc(ctx, size); err != nil || c.kind.machine == 0 || p.Machine() == c.kind.machine {
			return p, err
		}
		elsewhere := p
		defer func() { _ = memory.Free(context.WithoutCancel(ctx), elsewhere) }()
	}
	return p, fmt.Errorf("no region on machine %d in %d allocations", c.kind.machine, maxElsewhere)
}
