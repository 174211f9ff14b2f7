package peer

import (
	"context"

	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/idl/bifrost"
)

// refHandler serves the arrays by reference, too, as examples/arrays does, and
// tells how long its parts take.
type refHandler struct{ valueHandler }

var _ arrays.Arrays = refHandler{}

// IncrementRef is Increment on lent memory.
func (h refHandler) IncrementRef(ctx context.Context, data *bifrost.GlobalPointer, length int64, delta int8) (*bifrost.GlobalPointer, error) {
	p := Served.Phases()
	defer p.Time(Handler)()
	buf, err := load(ctx, p, data, length)
	if err != nil {
		return nil, err
	}
	done := p.Time(Compute)
	_, _ = h.Arrays.Increment(ctx, buf, delta) // in place; it cannot fail
	done()
	return store(ctx, p, buf)
}

// AddRef is Add on lent memory.
func (h refHandler) AddRef(ctx context.Context, a *bifrost.GlobalPointer, aLength int64, b *bifrost.GlobalPointer, bLength int64) (*bifrost.GlobalPointer, error) {
	p := Served.Phases()
	defer p.Time(Handler)()
	x, err := load(ctx, p, a, aLength)
	if err != nil {
		return nil, err
	}
	y, err := load(ctx, p, b, bLength)
	if err != nil {
		return nil, err
	}
	done := p.Time(Compute)
	_, err = h.Arrays.Add(ctx, x, y)
	done()
	if err != nil {
		return nil, err
	}
	return store(ctx, p, x)
}

// load reads an argument from the memory that the caller lent.
func load(ctx context.Context, phases *Phases, g *bifrost.GlobalPointer, length int64) ([]byte, error) {
	defer phases.Time(Memory)()
	if length < 0 || length > MaxSize {
		return nil, rpc.Errorf(rpc.BadRequest, "length %d: must be 0 to %d bytes", length, MaxSize)
	}
	p, err := rpc.PointerOf(g)
	if err != nil {
		return nil, err
	}
	buf := make([]byte, length)
	_, err = rpc.Memory(ctx).Read(ctx, p, buf)
	return buf, err
}

// store puts a result into a region of this call's own.
func store(ctx context.Context, phases *Phases, data []byte) (*bifrost.GlobalPointer, error) {
	defer phases.Time(Memory)()
	memory := rpc.Memory(ctx)
	done := phases.Time(HAlloc)
	p, err := memory.Alloc(ctx, uint64(max(1, len(data))))
	done()
	if err != nil {
		return nil, err
	}
	if _, err := memory.Write(ctx, p, data); err != nil {
		return nil, err
	}
	return rpc.GlobalPointer(p), nil
}
