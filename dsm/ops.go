package dsm

import (
	"context"

	"github.com/bifrost-rack/bifrost/dsm/internal/pool"
	"github.com/bifrost-rack/bifrost/dsm/internal/transport"
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
// caller. If the client Keeps regions, and knows that the node controls this one and
// that nobody else has it, Free waits for nobody; else for the Gatekeeper.
func (c *Client) Free(ctx context.Context, p Pointer) error {
	_, err := c.move(ctx, packet.OpFree, p, nil)
	return err
}

// move carries out an operation on a pointer.
func (c *Client) move(ctx context.Context, op packet.Op, p Pointer, b []byte) (int, error) {
	scope, err := c.scope.begin(op)
	if err != nil {
		return 0, err
	}
	defer c.scope.end()
	if err := c.link.check(ctx, op, p); err != nil {
		return 0, err
	}
	if len(b) == 0 && op != packet.OpFree {
		return 0, nil
	}
	if op == packet.OpFree {
		return 0, c.free(ctx, p, scope)
	}
	u, err := c.link.keeper.begin(ctx, op, p, len(b))
	if err != nil {
		return 0, err
	}
	n, err := c.carryOut(ctx, op, p, b, scope)
	u.end(err)
	if c.scope.counts() {
		c.link.keeper.note([]Pointer{p}, (*keeper).gone) // the write may be taken back
	}
	return n, err
}

// free frees a region, or keeps it to be used again.
func (c *Client) free(ctx context.Context, p Pointer, scope transport.Scope) error {
	v := c.link.keeper.free(p, c.scope.counts())
	switch v {
	case pool.Kept, pool.Deferred:
		return nil
	case pool.Twice:
		return fault.New(fault.PermissionDenied, packet.OpFree.String(), "%s has been freed", p)
	case pool.Unknown:
	}
	_, err := c.carryOut(ctx, packet.OpFree, p, nil, scope)
	return err
}

// carryOut has the memory blade carry out an operation.
func (c *Client) carryOut(ctx context.Context, op packet.Op, p Pointer, b []byte, scope transport.Scope) (int, error) {
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

// Settle returns when it is known what became of each write and free of the
// pointers' regions that this node has begun, cancelled ones included: none
// can take effect any more. A runtime settles a region before it passes it on.
// Without pointers, a client made With a scope waits for all that it has begun
// itself, allocations included.
func (c *Client) Settle(ctx context.Context, ptrs ...Pointer) error {
	if len(ptrs) == 0 && c.scope.counts() {
		return c.settleBranch(ctx)
	}
	_, err := c.link.wait(ctx, func(e *transport.Endpoint) *transport.Barrier { return e.Barrier(ptrs) })
	return err
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
