package simrack_test

import (
	"context"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/rpc"
)

func TestZZ(t *testing.T) {
	withShelf(t, false, func(r *shelf) {
		n := r.borrows(func(ctx context.Context, p dsm.Pointer) error { return rpc.Memory(ctx).Free(ctx, p) })
		at := n.Address()
		send := func() {
			p, err := filled(r.Context(), r.client.Memory())
			if err != nil {
				r.Fatal(err)
			}
			_, err = r.client.Client("Borrower", rpc.WithPolicy(rpc.PolicyNone)).Call(r.Context(), "echoRef", &arrays.ArraysEchoRefArgs{Data: rpc.GlobalPointer(p), Length: 8}, nil)
			t.Log(err)
		}
		send()
		<-time.After(time.Second)
		r.Session(at).Crash("for good")
		send()
		<-time.After(10 * time.Minute)
		r.regions(0)
	})
}
