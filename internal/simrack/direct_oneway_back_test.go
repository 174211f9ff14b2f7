package simrack_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/rpc"
)

// givenBack runs f in a rack in which a plain client's one-way has failed, since its receiver is gone for good. A call of the receiver goes on. The region that the
// one-way was to hand over is the client's again, and still is when f has returned.
func givenBack(t *testing.T, f func(r *shelf)) {
	t.Helper()
	withShelf(t, false, func(r *shelf) {
		ctx := r.Context()
		doomed := r.join("s2", "doomed")
		if err := doomed.Export(ctx, "Borrower", arrays.NewArraysProcessor(borrower{handle: func(context.Context, dsm.Pointer) error { return nil }})); err != nil {
			r.Fatal(err)
		}
		begun, ends := make(chan struct{}), make(chan struct{})
		r.handle = func(context.Context, *dsm.Pointer) error {
			close(begun)
			<-ends
			return nil
		}
		var call sync.WaitGroup
		calling, giveUp := context.WithCancel(ctx)
		call.Go(func() {
			_, _ = arrays.NewArraysClient(doomed.Client("Shelf", rpc.WithPolicy(rpc.PolicyRecover), rpc.WithPlainCalls())).Echo(calling, []byte("x")) // nobody hears of its end
		})
		<-begun
		var p dsm.Pointer
		for i := range 2 { // with the first one-way the client learns who serves it
			var err error
			if p, err = filled(ctx, r.client.Memory()); err != nil {
				r.Fatal(err)
			}
			if i == 0 {
				if err := hand(ctx, r.client, "Borrower", p); err != nil {
					r.Fatal(err)
				}
			}
		}
		if err := r.CrashBlade("s2"); err != nil {
			r.Fatal(err)
		}
		if err := hand(ctx, r.client, "Borrower", p); rpc.CodeOf(err) != rpc.Unavailable {
			r.Fatalf("a one-way to a node that is gone for good: %v", err)
		}
		r.own(ctx, r.client.Memory(), p)
		f(r)
		<-time.After(time.Minute) // virtual
		r.own(ctx, r.client.Memory(), p)
		close(ends)
		giveUp()
		call.Wait()
	})
}

// TestDirectOneway_GivenBack: such a region stays.
func TestDirectOneway_GivenBack(t *testing.T) { givenBack(t, func(*shelf) {}) }
