package dsm

import (
	"context"

	"github.com/bifrost-rack/bifrost/dsm/packet"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// Read fills b with the bytes from p on. It returns how many bytes, from the
// first on, have been read; less than len(b) only with an error.
func (c *Client) Read(ctx context.Context, p Pointer, b []byte) (int, error) {
	return c.move(ctx, packet.OpRead, p, b)
}

// Write puts b at p. It returns how many bytes, from the first on, certainly
// stand there; less than len(b) only with an error. When the context ends, what
// has been sent may still be written: Settle waits until that is known, and so
// do this client's later operations on the same bytes.
func (c *Client) Write(ctx context.Context, p Pointer, b []byte) (int, error) {
	return c.move(ctx, packet.OpWrite, p, b)
}

// Free ends the region that p is the first byte of. The node must control it,
// and no lease on it may be out. A Free whose context ends goes on without its
// caller.
func (c *Client) Free(ctx context.Context, p Pointer) error {
	_, err := c.move(ctx, packet.OpFree, p, nil)
	return err
}

// move carries out an operation on a pointer.
func (c *Client) move(ctx context.Context, op packet.Op, p Pointer, b []byte) (int, error) {
	scope := c.nextScope()
	if err := c.link.check(ctx, op, p); err != nil {
		return 0, err
	}
	if len(b) == 0 && op != packet.OpFree {
		return 0, nil
	}
	t := c.link.operations.get()
	t.Op, t.Pointer, t.Buf, t.Scope = op, p, b, scope
	c.link.run(ctx, t)
	n, status, local := t.N, t.Status, t.Local
	c.link.operations.put(t)
	if status == fault.OK {
		return n, nil
	}
	return n, failure(ctx, op, p.Add(int64(n)), status, local)
}

// Alloc makes a region of at least size bytes, all zero, that this node
// controls, and returns the pointer to its first byte. A larger size than any
// memory blade has room for is NoSpace. If the context ends, a region that is
// allocated nevertheless is freed again.
func (c *Client) Alloc(ctx context.Context, size uint64) (Pointer, error) {
	scope := c.nextScope()
	if _, ok := packet.ClassFor(size); !ok {
		return Pointer{}, fault.New(fault.BadRequest, "alloc", "%d bytes; a region has 1 to 2^%d", size, packet.MaxClass)
	}
	rack := c.link.rack()
	err := error(fault.New(fault.NoSpace, "alloc", "the rack has no memory blade in service"))
	for _, machine := range c.link.place(rack.Memories) {
		at := packet.Make(rack.DSMPrefix, machine, 0)
		if err := c.link.check(ctx, packet.OpAlloc, at); err != nil {
			return Pointer{}, err
		}
		t := c.link.operations.get()
		t.Op, t.Pointer, t.Size, t.Scope = packet.OpAlloc, at, size, scope
		c.link.run(ctx, t)
		region, status, local := t.Region, t.Status, t.Local
		c.link.operations.put(t)
		if status == fault.OK {
			return region.Base, nil
		}
		err = failure(ctx, packet.OpAlloc, at, status, local)
		if status != fault.NoSpace && status != fault.Unavailable {
			break // another blade would say the same
		}
	}
	return Pointer{}, err
}

// Settle returns when it is known what became of each write and free of the
// pointers' regions that this node has begun, cancelled ones included: none
// can take effect any more. A runtime settles a region before it passes it on.
func (c *Client) Settle(ctx context.Context, ptrs ...Pointer) error {
	return c.link.settle(ctx, ptrs)
}

// failure returns the error that an operation at p ended with.
func failure(ctx context.Context, op packet.Op, p Pointer, status fault.Code, local bool) error {
	e := &Error{Code: status, Op: op.String(), Msg: p.String(), Remote: !local}
	switch {
	case !local:
	case status == fault.Unavailable:
		e.Msg += ": the memory blade does not answer"
	case ctx.Err() != nil:
		e.Err = context.Cause(ctx)
	default:
		e.Msg += ": the client is closed"
	}
	return e
}
