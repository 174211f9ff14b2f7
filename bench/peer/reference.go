package peer

import (
	"context"

	"golang.org/x/sync/errgroup"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/idl/bifrost"
)

// byReference makes the operations whose arrays stand in distributed memory. An
// increment or add is all that a program does for one: allocate and write the
// arguments, call, read the result, free everything.
func (c bifrostClient) byReference(ctx context.Context, w Work) (Operation, func(), error) {
	if err := w.check(); err != nil {
		return nil, nil, err
	}
	if c.kind.patterns != "" {
		switch w.Op {
		case Whole, Page, Back, Onward:
			return c.use(w), func() {}, nil
		case Posts, OnePost:
			return c.posts(ctx, w)
		}
		return nil, nil, cannot("a way of references", w)
	}
	switch w.Op {
	case Read, Write, Hold:
		return c.access(ctx, w)
	case Chain:
		return c.chain(ctx, w)
	case Increment, Add:
		if c.kind.marked {
			return c.marked(w), func() {}, nil
		}
		op, release, err := c.arrays(ctx, w)
		return op, release, err
	}
	return nil, nil, cannot("Bifröst", w)
}

func (c bifrostClient) arrays(ctx context.Context, w Work) (Operation, func(), error) {
	raw, release, err := c.kind.dialer(c.Node)(ctx, "Arrays", 0)
	if err != nil {
		return nil, nil, err
	}
	client := &timedClient{inner: raw}
	calls := arrays.NewArraysClient(client)
	a, size := pattern(w.Size, 1), int64(w.Size)
	args, v := [][]byte{a}, incremented(a)
	f := func(ctx context.Context, p []*bifrost.GlobalPointer) (*bifrost.GlobalPointer, error) {
		return calls.IncrementRef(ctx, p[0], size, delta)
	}
	if w.Op == Add {
		b := pattern(w.Size, 2)
		args, v = [][]byte{a, b}, added(a, b)
		f = func(ctx context.Context, p []*bifrost.GlobalPointer) (*bifrost.GlobalPointer, error) {
			return calls.AddRef(ctx, p[0], size, p[1], size)
		}
	}
	if !c.kind.kept {
		return client.watch(c.lending(f, v, args)), release, nil
	}
	op, free, err := c.keeping(ctx, f, v, args)
	if err != nil {
		release()
		return nil, nil, err
	}
	return client.watch(op), func() { free(); release() }, nil
}

// call is a call by reference; its result is handed over.
type call func(ctx context.Context, args []*bifrost.GlobalPointer) (*bifrost.GlobalPointer, error)

// lending makes an operation of a call.
func (c bifrostClient) lending(call call, v *verifier, args [][]byte) Operation {
	result := make([]byte, len(args[0]))
	return func(ctx context.Context, k *Clock) error {
		l := loan{memory: c.Memory(), phases: k.Phases}
		err := l.make(ctx, args)
		if err == nil {
			err = l.call(ctx, call, result)
		}
		if freed := l.end(ctx); err == nil {
			err = freed
		}
		return v.check(k, result, err)
	}
}

// loan is the regions of one call. What does not depend on each other is done at
// once, as a program that wants speed does it.
type loan struct {
	memory  *dsm.Client
	phases  *Phases
	regions []dsm.Pointer
	args    []*bifrost.GlobalPointer
}

// make puts the arguments into memory.
func (l *loan) make(ctx context.Context, args [][]byte) error {
	defer l.phases.Time(Pre)()
	regions := make([]dsm.Pointer, len(args))
	done := l.phases.Time(Alloc)
	err := together(len(args), func(i int) (err error) {
		regions[i], err = l.memory.Alloc(ctx, uint64(max(1, len(args[i]))))
		return err
	})
	done()
	for _, p := range regions {
		if !p.IsNil() {
			l.regions = append(l.regions, p)
			l.args = append(l.args, rpc.GlobalPointer(p))
		}
	}
	if err != nil {
		return err
	}
	return l.write(ctx, args)
}

// write writes the arguments.
func (l *loan) write(ctx context.Context, args [][]byte) error {
	return together(len(args), func(i int) error {
		_, err := l.memory.Write(ctx, l.regions[i], args[i])
		return err
	})
}

// together does n things at once and returns the first error of any.
func together(n int, f func(i int) error) error {
	if n == 1 {
		return f(0)
	}
	var g errgroup.Group
	for i := range n {
		g.Go(func() error { return f(i) })
	}
	return g.Wait()
}

// call makes the call and reads its result.
func (l *loan) call(ctx context.Context, f call, result []byte) error {
	g, err := f(ctx, l.args)
	if err != nil {
		return err
	}
	p, err := rpc.PointerOf(g)
	if err != nil {
		return err
	}
	l.regions = append(l.regions, p)
	defer l.phases.Time(Post)()
	_, err = l.memory.Read(ctx, p, result)
	return err
}

// end frees the regions.
func (l *loan) end(ctx context.Context) error {
	defer l.phases.Time(Post)()
	defer l.phases.Time(Free)()
	return together(len(l.regions), func(i int) error { return l.memory.Free(ctx, l.regions[i]) })
}
