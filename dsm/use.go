package dsm

import (
	"context"

	"github.com/bifrost-rack/bifrost/dsm/internal/pool"
	"github.com/bifrost-rack/bifrost/dsm/packet"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// use is an operation under way on a region that the keeper knows. The zero use is one
// on any other.
type use struct {
	keeper *keeper
	region *pool.Region
	write  pool.Span
	turn   bool // it has the region's turn: it writes over what is stale
}

// begin begins a read or write of n bytes at p. What an earlier user of the region has
// left there is zeroed first, unless it is written over. A region that has been freed
// is refused, as the switch refuses one that is gone.
func (k *keeper) begin(ctx context.Context, op packet.Op, p Pointer, n int) (use, error) {
	if k == nil {
		return use{}, nil
	}
	k.mu.Lock()
	r := k.pool.Find(p)
	if r == nil {
		k.mu.Unlock()
		return use{}, nil
	}
	if r.Idle() {
		k.mu.Unlock()
		return use{}, fault.New(fault.PermissionDenied, op.String(), "%s has been freed", p)
	}
	u, at := use{keeper: k, region: r}, r.Span(p, n)
	if op == packet.OpWrite {
		u.write = at
	}
	r.Enter(u.write)
	stale := r.Stale.Overlaps(at)
	k.mu.Unlock()
	if !stale {
		return u, nil
	}
	return u, u.clean(ctx, at)
}

// clean makes what is stale zero before bytes at are used, or sees to it that it is
// written over. If that fails, the use has ended.
func (u *use) clean(ctx context.Context, at pool.Span) error {
	if err := u.takeTurn(ctx); err != nil {
		u.end(err)
		return err
	}
	stale := u.stale()
	if !stale.Overlaps(at) {
		u.giveTurn()
		return nil
	}
	if _, ok := stale.Without(u.write); ok && u.write.Overlaps(stale) {
		return nil // the turn is given when it is written
	}
	err := u.keeper.link.zero(ctx, u.region.Base.Add(int64(stale.From)), stale.To-stale.From)
	if err == nil {
		u.keeper.mu.Lock()
		u.region.Stale = pool.Span{}
		u.keeper.mu.Unlock()
	}
	u.giveTurn()
	if err != nil {
		u.end(err)
	}
	return err
}

func (u *use) stale() pool.Span {
	u.keeper.mu.Lock()
	defer u.keeper.mu.Unlock()
	return u.region.Stale
}

// takeTurn waits until nobody else changes what is stale.
func (u *use) takeTurn(ctx context.Context) error {
	u.keeper.mu.Lock()
	if u.region.Turn == nil {
		u.region.Turn = make(chan struct{}, 1)
		u.region.Turn <- struct{}{}
	}
	turn := u.region.Turn
	u.keeper.mu.Unlock()
	select {
	case <-turn:
		u.turn = true
		return nil
	case <-ctx.Done():
		return fault.FromContext("zero a region", ctx.Err())
	}
}

func (u *use) giveTurn() {
	u.turn = false
	u.region.Turn <- struct{}{}
}

// end ends the use, with the error of the operation.
func (u *use) end(err error) {
	k := u.keeper
	if k == nil {
		return
	}
	k.mu.Lock()
	u.region.Leave()
	if u.turn && err == nil {
		u.region.Stale, _ = u.region.Stale.Without(u.write)
	}
	if err != nil && !u.region.Lent() {
		k.suspect(u.region.Base.Machine(), fault.CodeOf(err))
	}
	k.mu.Unlock()
	if u.turn {
		u.giveTurn()
	}
}

// zeroPart is how many bytes are zeroed by one write.
const zeroPart = 1 << 20

// zero writes n zeros at p.
func (l *link) zero(ctx context.Context, p Pointer, n uint64) error {
	zeros := make([]byte, min(n, zeroPart))
	for done := uint64(0); done < n; {
		part := zeros[:min(n-done, zeroPart)]
		at := p.Add(int64(done))
		o := l.operations.get()
		o.Op, o.Pointer, o.Buf = packet.OpWrite, at, part
		l.run(ctx, o)
		status, local := o.Status, o.Local
		l.operations.put(o)
		if status != fault.OK {
			return failure(ctx, packet.OpWrite, at, status, local)
		}
		done += uint64(len(part))
	}
	return nil
}
