// Package service implements the arrays example's two services. The methods by
// value are ordinary Thrift handlers; those by reference read their arguments
// from the memory they were lent and hand over control of a region of their own.
package service

import (
	"context"
	"errors"

	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/idl/bifrost"
)

// Ping implements the service Ping.
type Ping struct{}

// Ping does nothing.
func (Ping) Ping(context.Context) error { return nil }

// Arrays implements the service Arrays. It keeps nothing between calls.
type Arrays struct{}

var (
	_ arrays.Ping   = Ping{}
	_ arrays.Arrays = Arrays{}
)

// Echo returns what it was given.
func (Arrays) Echo(_ context.Context, data []byte) ([]byte, error) { return data, nil }

// Increment adds delta to every byte.
func (Arrays) Increment(_ context.Context, data []byte, delta int8) ([]byte, error) {
	increment(data, delta)
	return data, nil
}

// Add adds a and b element by element.
func (Arrays) Add(_ context.Context, a, b []byte) ([]byte, error) {
	if err := sameLength(int64(len(a)), int64(len(b))); err != nil {
		return nil, err
	}
	add(a, b)
	return a, nil
}

// EchoRef returns a copy of what it was lent.
func (Arrays) EchoRef(ctx context.Context, data *bifrost.GlobalPointer, length int64) (*bifrost.GlobalPointer, error) {
	buf, err := load(ctx, data, length)
	if err != nil {
		return nil, err
	}
	return store(ctx, buf)
}

// IncrementRef is Increment on lent memory.
func (Arrays) IncrementRef(ctx context.Context, data *bifrost.GlobalPointer, length int64, delta int8) (*bifrost.GlobalPointer, error) {
	buf, err := load(ctx, data, length)
	if err != nil {
		return nil, err
	}
	increment(buf, delta)
	return store(ctx, buf)
}

// AddRef is Add on lent memory.
func (Arrays) AddRef(ctx context.Context, a *bifrost.GlobalPointer, aLength int64, b *bifrost.GlobalPointer, bLength int64) (*bifrost.GlobalPointer, error) {
	if err := sameLength(aLength, bLength); err != nil {
		return nil, err
	}
	x, err := load(ctx, a, aLength)
	if err != nil {
		return nil, err
	}
	y, err := load(ctx, b, bLength)
	if err != nil {
		return nil, err
	}
	add(x, y)
	return store(ctx, x)
}

// load reads an argument from the memory that the caller lent.
func load(ctx context.Context, p *bifrost.GlobalPointer, length int64) ([]byte, error) {
	if length < 0 || length > MaxLength {
		return nil, rpc.Errorf(rpc.BadRequest, "length %d: must be 0 to %d bytes", length, MaxLength)
	}
	ptr, err := rpc.PointerOf(p)
	if err != nil {
		return nil, err
	}
	buf := make([]byte, length)
	_, err = rpc.Memory(ctx).Read(ctx, ptr, buf)
	return buf, err
}

// store puts a result into a region of this call's own.
func store(ctx context.Context, data []byte) (*bifrost.GlobalPointer, error) {
	memory := rpc.Memory(ctx)
	p, err := memory.Alloc(ctx, max(1, uint64(len(data))))
	if err != nil {
		return nil, err
	}
	if _, err := memory.Write(ctx, p, data); err != nil { // such as that the caller has given the call up
		return nil, errors.Join(err, memory.Free(context.WithoutCancel(ctx), p))
	}
	return rpc.GlobalPointer(p), nil
}

// MaxLength is the longest array that the service takes, in bytes.
const MaxLength = 1 << 30

func sameLength(a, b int64) error {
	if a != b {
		return &arrays.LengthMismatch{A: a, B: b}
	}
	return nil
}

func increment(data []byte, delta int8) {
	for i := range data {
		data[i] += byte(delta)
	}
}

func add(a, b []byte) {
	for i := range a {
		a[i] += b[i]
	}
}
