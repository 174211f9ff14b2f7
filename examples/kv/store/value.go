package store

import (
	"context"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/examples/kv/gen-go/kv"
	"github.com/bifrost-rack/bifrost/rpc"
)

// pointer is where a value's region begins. Only Store makes places, so it is one.
func pointer(p *kv.Place) (at dsm.Pointer) {
	copy(at[:], p.Pointer)
	return at
}

// load reads a value.
func load(ctx context.Context, p *kv.Place) ([]byte, error) {
	b := make([]byte, p.Length)
	if len(b) == 0 {
		return b, nil
	}
	_, err := rpc.Memory(ctx).Read(ctx, pointer(p), b)
	return b, err
}

// write puts bytes into a value's region, which has room for them.
func write(ctx context.Context, p *kv.Place, at int64, b []byte) error {
	if len(b) == 0 {
		return nil
	}
	_, err := rpc.Memory(ctx).Write(ctx, pointer(p).Add(at), b)
	return err
}

// store makes b the value: in its region if that fits well, else in another.
func store(ctx context.Context, p *kv.Place, b []byte) error {
	n := int64(len(b))
	if n > p.Room || n < p.Room/4 && p.Room > minRoom {
		if err := move(ctx, p, n); err != nil {
			return err
		}
	}
	p.Length = n
	return write(ctx, p, 0, b)
}

// minRoom is the size of the smallest region that there is, in bytes.
const minRoom = 64

// move gives a value another region, with room for n bytes; none for 0. The old one
// stays until the call has been committed: so says the memory blade.
func move(ctx context.Context, p *kv.Place, n int64) error {
	old := *p
	p.Pointer, p.Room = nil, 0
	if n > 0 {
		room := roomFor(n)
		at, err := rpc.Memory(ctx).Alloc(ctx, uint64(room))
		if err != nil {
			return err
		}
		p.Pointer, p.Room = at[:], room
	}
	return free(ctx, &old)
}

// roomFor is the size of a region with room for n bytes: the next power of two.
func roomFor(n int64) int64 {
	room := int64(minRoom)
	for room < n {
		room *= 2
	}
	return room
}

// free gives a value's region back.
func free(ctx context.Context, p *kv.Place) error {
	if p.Room == 0 {
		return nil
	}
	return rpc.Memory(ctx).Free(ctx, pointer(p))
}
