package peer

import (
	"context"

	"golang.org/x/sync/errgroup"
)

// maxFrees is how many results are freed in the background at once.
const maxFrees = 16

// keeping makes an operation of a call whose arguments' regions stay from call to
// call, and whose results are freed while the next call is made.
func (c bifrostClient) keeping(ctx context.Context, call call, v *verifier, args [][]byte) (Operation, func(), error) {
	kept := loan{memory: c.Memory()}
	if err := kept.make(ctx, args); err != nil {
		_ = kept.end(context.WithoutCancel(ctx)) // the node's end frees what is left
		return nil, nil, err
	}
	result := make([]byte, len(args[0]))
	frees, freeing := errgroup.WithContext(context.WithoutCancel(ctx))
	frees.SetLimit(maxFrees)
	op := func(ctx context.Context, k *Clock) error {
		l := loan{memory: kept.memory, phases: k.Phases, regions: kept.regions, args: kept.args}
		if err := l.write(ctx, args); err != nil {
			return err
		}
		l.regions = nil
		err := l.call(ctx, call, result)
		for _, p := range l.regions {
			frees.Go(func() error { return kept.memory.Free(freeing, p) })
		}
		if failed := context.Cause(freeing); err == nil {
			err = failed
		}
		return v.check(k, result, err)
	}
	release := func() {
		_ = frees.Wait()
		_ = kept.end(context.WithoutCancel(ctx))
	}
	return op, release, nil
}
