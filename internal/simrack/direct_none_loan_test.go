package simrack_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/examples/arrays/service"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/idl/bifrost"
)

// copier is a service that is lent memory, and returns a region of its own.
type copier struct {
	service.Arrays
	handle func(ctx context.Context, p dsm.Pointer) (dsm.Pointer, error)
}

func (c copier) EchoRef(ctx context.Context, data *bifrost.GlobalPointer, _ int64) (*bifrost.GlobalPointer, error) {
	p, err := rpc.PointerOf(data)
	if err == nil {
		p, err = c.handle(ctx, p)
	}
	return rpc.GlobalPointer(p), err
}

// lendAtMostOnce lends Borrower a region, by a call of policy none.
func lendAtMostOnce(ctx context.Context, n *rpc.Node, p dsm.Pointer) (dsm.Pointer, error) {
	g, err := arrays.NewArraysClient(n.Client("Borrower", rpc.WithPolicy(rpc.PolicyNone))).EchoRef(ctx, rpc.GlobalPointer(p), 8)
	if err != nil {
		return dsm.Pointer{}, err
	}
	return rpc.PointerOf(g)
}

// outlives kills the caller's program, and returns long after its next one is there.
func (r *shelf) outlives() {
	r.Helper()
	if err := r.KillSoon("s1", "app/p/1"); err != nil {
		r.Error(err)
	}
	<-r.up
	<-time.After(5 * time.Second) // virtual
}

// TestDirectNoneLoan: an execution that lends memory to calls of policy none stays direct.
func TestDirectNoneLoan(t *testing.T) {
	withShelf(t, false, func(r *shelf) {
		r.borrows(func(ctx context.Context, p dsm.Pointer) error {
			r.reads(ctx, p, "contents")
			return nil
		})
		r.call(func(ctx context.Context, _ *dsm.Pointer) error {
			return lentOut(ctx, rpc.Memory(ctx), func(p dsm.Pointer) error {
				for range 3 {
					if _, err := lendAtMostOnce(ctx, r.server, p); err != nil {
						return err
					}
				}
				return nil
			})
		})
		r.direct()
		r.regions(0)
	})
}

// TestDirectNoneLoan_CallerDies: the caller's program dies while the callee of a call of policy none reads. What the caller
// has written is not taken back before that call has ended, and its next run may write then. So it is if the caller has
// got the region from another call, and has nothing to take back.
func TestDirectNoneLoan_CallerDies(t *testing.T) {
	for name, source := range map[string]func(ctx context.Context, r *shelf) (dsm.Pointer, error){
		"a region of its own":  func(ctx context.Context, _ *shelf) (dsm.Pointer, error) { return fresh(ctx) },
		"a region that it got": func(ctx context.Context, r *shelf) (dsm.Pointer, error) { return get(ctx, r.server) },
	} {
		t.Run(name, func(t *testing.T) {
			withShelf(t, false, func(r *shelf) {
				r.gives(fresh)
				var lent atomic.Int64
				r.borrows(func(ctx context.Context, p dsm.Pointer) error {
					r.reads(ctx, p, "contents")
					if lent.Add(1) == 1 {
						r.outlives()
						if lent.Load() > 1 {
							t.Error("the caller has gone on before the call has ended")
						}
						r.reads(ctx, p, "contents")
					}
					return nil
				})
				r.call(func(ctx context.Context, _ *dsm.Pointer) error {
					p, err := source(ctx, r)
					if err != nil {
						return err
					}
					if _, err := lendAtMostOnce(ctx, r.server, p); err != nil {
						return err
					}
					_, err = rpc.Memory(ctx).Write(ctx, p, []byte("after"))
					return err
				})
				if r.runs.Load() != 2 || lent.Load() != 2 {
					t.Errorf("%d runs, %d calls: want two of each", r.runs.Load(), lent.Load())
				}
				r.direct()
				r.regions(0)
			})
		})
	}
}

// TestDirectNoneLoan_Results: the caller's program dies while the callee of a call of policy none runs, which returns a
// region. Nobody hears of that one, and it goes.
func TestDirectNoneLoan_Results(t *testing.T) {
	withShelf(t, false, func(r *shelf) {
		n := r.join("c1", "copier")
		calls := 0
		if err := n.Export(r.Context(), "Borrower", arrays.NewArraysProcessor(copier{handle: func(ctx context.Context, p dsm.Pointer) (dsm.Pointer, error) {
			if calls++; calls == 1 {
				r.outlives()
			}
			r.reads(ctx, p, "contents")
			return fresh(ctx)
		}})); err != nil {
			t.Fatal(err)
		}
		r.call(func(ctx context.Context, _ *dsm.Pointer) error {
			p, err := fresh(ctx)
			if err != nil {
				return err
			}
			q, err := lendAtMostOnce(ctx, r.server, p)
			if err != nil {
				return err
			}
			r.own(ctx, rpc.Memory(ctx), q)
			return rpc.Memory(ctx).Free(ctx, q)
		})
		if calls != 2 {
			t.Errorf("%d calls, want 2", calls)
		}
		r.direct()
		r.regions(0)
	})
}

// TestDirectNoneLoan_Got: what an execution gets by a call of policy none, and does not free or pass on, goes at its end.
func TestDirectNoneLoan_Got(t *testing.T) {
	withShelf(t, false, func(r *shelf) {
		r.gives(fresh)
		r.call(func(ctx context.Context, _ *dsm.Pointer) error {
			p, err := getBy(ctx, r.server, rpc.PolicyNone)
			r.own(ctx, rpc.Memory(ctx), p)
			return err
		})
		r.regions(0)
	})
}

// TestDirectNoneLoan_GotBefore: the execution's program dies when the ledger has that answer. The next run gets the same region from the ledger, and hands it
// over.
func TestDirectNoneLoan_GotBefore(t *testing.T) {
	withShelf(t, false, func(r *shelf) {
		taken := make(chan struct{}, 1)
		r.borrows(func(ctx context.Context, p dsm.Pointer) error {
			defer func() { taken <- struct{}{} }()
			r.own(ctx, rpc.Memory(ctx), p)
			return nil
		})
		r.gives(fresh)
		var got [2]dsm.Pointer
		r.call(func(ctx context.Context, _ *dsm.Pointer) (err error) {
			run := r.runs.Load() - 1
			if got[run], err = getBy(ctx, r.server, rpc.PolicyNone); err != nil {
				return err
			}
			if _, err := get(ctx, r.server); err != nil { // before this leaves, the ledger has the other answer
				return err
			}
			if run == 0 {
				return r.kill(ctx)
			}
			return hand(ctx, r.server, "Borrower", got[run])
		})
		if r.runs.Load() != 2 || got[0] != got[1] {
			t.Fatalf("%d runs got %v", r.runs.Load(), got)
		}
		<-taken
		r.regions(0)
	})
}

// packetStep is from one packet to the next at which something dies. With the race detector it is larger: a death at the packet beside
// has the same goroutines meet. It has no divisor with what tests take the packet's number by, so each variant comes.
func packetStep() int {
	if testing.Short() {
		return 7
	}
	return 1
}

// TestDirectNoneLoan_CrashAtEveryPacket: the caller's program dies at each packet from the beginning of its execution on,
// and at some the Gatekeeper does, too. The execution comes to its end, and leaves nothing.
func TestDirectNoneLoan_CrashAtEveryPacket(t *testing.T) {
	for at, over := 1, false; !over; at += packetStep() {
		var left atomic.Int64
		var struck atomic.Bool
		of := &shelf{frame: func(r *shelf, _ wire.Frame) {
			if left.Load() > 0 && left.Add(-1) == 0 {
				struck.Store(true)
				_ = r.KillSoon("s1", "app/p/1")
			}
		}}
		withShelves(t, of, mirroredThesis(), func(r *shelf) {
			r.borrows(func(ctx context.Context, p dsm.Pointer) error {
				r.reads(ctx, p, "contents")
				<-time.After(time.Duration(at%3) * time.Second) // virtual: it may outlive its caller
				r.reads(ctx, p, "contents")
				return nil
			})
			r.call(func(ctx context.Context, _ *dsm.Pointer) error {
				if r.runs.Load() == 1 {
					left.Store(int64(at))
				}
				return lentOut(ctx, rpc.Memory(ctx), func(p dsm.Pointer) error {
					_, err := lendAtMostOnce(ctx, r.server, p)
					if at%5 == 0 && r.runs.Load() == 1 {
						r.CrashGatekeeper()
						err = errors.Join(err, r.RestartGatekeeper(ctx))
					}
					return err
				})
			})
			left.Store(0)
			r.regions(0)
		})
		if over = !struck.Load(); over && at < 30 {
			t.Errorf("only %d packets", at)
		}
	}
}
