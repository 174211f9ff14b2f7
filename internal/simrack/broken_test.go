package simrack_test

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/rpc"
)

// TestBrokenOff: a handler panics, or ends its goroutine, when it has changed the service's state and memory, has freed a region and
// allocated another one, has got one from a call, and has sent a one-way. All that is taken back. The call fails, and the service goes on.
func TestBrokenOff(t *testing.T) {
	for name, leave := range map[string]func(){"panic": func() { panic("as asked") }, "Goexit": runtime.Goexit} {
		for _, state := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, state %v", name, state), func(t *testing.T) {
				withShelf(t, state, func(r *shelf) { r.breaksOff(leave) })
			})
		}
	}
}

func (r *shelf) breaksOff(leave func()) {
	r.Helper()
	ran := r.counted(nil)
	kept := 0
	if r.state {
		kept = 2
		r.call(func(ctx context.Context, at *dsm.Pointer) (err error) {
			var other dsm.Pointer
			if *at, err = fresh(ctx); err != nil {
				return err
			}
			if other, err = fresh(ctx); err != nil {
				return err
			}
			_, err = rpc.Memory(ctx).Write(ctx, at.Add(16), other[:]) // the first one knows the second one
			return err
		})
	}
	r.regions(kept)
	r.handle = func(ctx context.Context, at *dsm.Pointer) error {
		m := rpc.Memory(ctx)
		if r.state {
			var other dsm.Pointer
			if _, err := m.Read(ctx, at.Add(16), other[:]); err != nil {
				return err
			}
			if _, err := m.Write(ctx, *at, []byte("half")); err != nil {
				return err
			}
			if err := m.Free(ctx, other); err != nil {
				return err
			}
		}
		p, err := fresh(ctx)
		if err != nil {
			return err
		}
		*at = p
		beside := arrays.NewArraysClient(r.server.Client("Beside", rpc.WithPolicy(rpc.PolicyRecover)))
		if _, err := beside.EchoRef(ctx, rpc.GlobalPointer(p), 64); err != nil { // its answer hands a region over
			return err
		}
		if err := tell(ctx, r.server, "Borrower"); err != nil {
			return err
		}
		leave()
		return nil
	}
	_, err := arrays.NewArraysClient(r.client.Client("Shelf", rpc.WithPolicy(rpc.PolicyRecover))).Echo(r.Context(), []byte("x"))
	if rpc.CodeOf(err) != rpc.Internal {
		r.Errorf("got %v", err)
	}
	<-time.After(10 * time.Second) // virtual
	r.regions(kept)
	if n := ran.Load(); n != 0 {
		r.Errorf("%d one-ways have left", n)
	}
	r.call(func(ctx context.Context, at *dsm.Pointer) error {
		if !r.state {
			return nil
		}
		b, m := make([]byte, 32), rpc.Memory(ctx)
		if _, err := m.Read(ctx, *at, b); err != nil {
			return err
		}
		if !bytes.HasPrefix(b, []byte("contents")) {
			r.Errorf("the region has %q", b)
		}
		_, err := m.Read(ctx, dsm.Pointer(b[16:]), b[:8])
		return err
	})
}

// tell sends a one-way.
func tell(ctx context.Context, n *rpc.Node, service string) error {
	_, err := n.Client(service, rpc.WithPolicy(rpc.PolicyRecover)).Call(ctx, "echoRef", &arrays.ArraysEchoRefArgs{Data: rpc.GlobalPointer(dsm.Pointer{}), Length: 8}, nil)
	return err
}
