package dsm

import (
	"context"

	"github.com/bifrost-rack/bifrost/dsm/packet"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// What follows is for a runtime that passes regions on: a client may use a freed region
// again only if it knows where each has been.

// Lend makes regions ready for a call that carries pointers to them: it waits like
// Settle. When the call has been answered, the runtime says so by Returned; if it never
// is, it does not.
func (c *Client) Lend(ctx context.Context, ptrs ...Pointer) error {
	if err := c.ready(ctx, ptrs); err != nil {
		return err
	}
	c.link.keeper.note(ptrs, (*keeper).lent)
	return nil
}

// Returned tells the client that a call has been answered for which regions were lent.
func (c *Client) Returned(ptrs ...Pointer) { c.link.keeper.note(ptrs, (*keeper).back) }

// HandOver makes regions ready to be given away, by a result or a one-way call. It waits
// like Settle.
func (c *Client) HandOver(ctx context.Context, ptrs ...Pointer) error {
	if err := c.ready(ctx, ptrs); err != nil {
		return err
	}
	c.link.keeper.note(ptrs, (*keeper).gone)
	return nil
}

// Gained tells the client that an answer has brought the node control of regions, on
// behalf of no execution. They are then freed without their caller's waiting for it.
func (c *Client) Gained(ptrs ...Pointer) { c.link.keeper.note(ptrs, (*keeper).gained) }

// ready makes regions hold what the program thinks they hold, for good.
func (c *Client) ready(ctx context.Context, ptrs []Pointer) error {
	for _, p := range ptrs {
		if c.link.keeper.freed(p) {
			return fault.New(fault.PermissionDenied, "pass on", "%s has been freed", p)
		}
		if err := c.link.keeper.whole(ctx, p); err != nil {
			return err
		}
	}
	return c.Settle(ctx, ptrs...)
}

// freed reports whether a pointer's region has been given back.
func (k *keeper) freed(p Pointer) bool {
	if k == nil {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.gaveBack(p)
}

// whole zeroes what is stale in a pointer's region.
func (k *keeper) whole(ctx context.Context, p Pointer) error {
	if k == nil {
		return nil
	}
	k.mu.Lock()
	r := k.pool.Find(p)
	if r == nil || r.Stale.Empty() || r.Idle() {
		k.mu.Unlock()
		return nil
	}
	base, size := r.Base, int(r.Size())
	k.mu.Unlock()
	u, err := k.begin(ctx, packet.OpRead, base, size)
	if err == nil {
		u.end(nil)
	}
	return err
}

// note tells the pool about each pointer.
func (k *keeper) note(ptrs []Pointer, what func(*keeper, Pointer)) {
	if k == nil || len(ptrs) == 0 {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range ptrs {
		what(k, p)
	}
}

func (k *keeper) lent(p Pointer)   { k.pool.Lend(p) }
func (k *keeper) back(p Pointer)   { k.pool.Back(p) }
func (k *keeper) gone(p Pointer)   { k.pool.Forget(p) }
func (k *keeper) gained(p Pointer) { k.pool.Gained(p) }
