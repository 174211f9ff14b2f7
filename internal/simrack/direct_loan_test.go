package simrack_test

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/examples/arrays/service"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/idl/bifrost"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// borrower is a service that is lent memory, and returns none.
type borrower struct {
	service.Arrays
	handle func(ctx context.Context, p dsm.Pointer) error
}

func (b borrower) EchoRef(ctx context.Context, data *bifrost.GlobalPointer, _ int64) (*bifrost.GlobalPointer, error) {
	p, err := rpc.PointerOf(data)
	if err == nil {
		err = b.handle(ctx, p)
	}
	return rpc.GlobalPointer(dsm.Pointer{}), err
}

// borrows has a node of its own export a borrower as Borrower.
func (r *shelf) borrows(handle func(ctx context.Context, p dsm.Pointer) error) *rpc.Node {
	r.Helper()
	n, err := r.Join(r.Context(), "c1", "borrower")
	if err == nil {
		err = n.Export(r.Context(), "Borrower", arrays.NewArraysProcessor(borrower{handle: handle}))
	}
	if err != nil {
		r.Fatal(err)
	}
	return n
}

// lendTo passes a region to Borrower.
func lendTo(ctx context.Context, n *rpc.Node, p dsm.Pointer) error {
	_, err := arrays.NewArraysClient(n.Client("Borrower", rpc.WithPolicy(rpc.PolicyRecover))).EchoRef(ctx, rpc.GlobalPointer(p), 8)
	return err
}

// lentOut lends a new region with contents, and then writes and frees it.
func lentOut(ctx context.Context, m *dsm.Client, lend func(p dsm.Pointer) error) error {
	p, err := filled(ctx, m)
	if err != nil {
		return err
	}
	if err := lend(p); err != nil {
		return err
	}
	if _, err := m.Write(ctx, p, []byte("after")); err != nil {
		return err
	}
	return m.Free(ctx, p)
}

// TestDirectLoan: a call with a pointer goes direct, from an execution and from a plain client. Its
// callee reads, and cannot write; its caller cannot write meanwhile, and can again after it.
func TestDirectLoan(t *testing.T) {
	withShelf(t, false, func(r *shelf) {
		n := r.borrows(func(ctx context.Context, p dsm.Pointer) error {
			b := make([]byte, 8)
			if _, err := rpc.Memory(ctx).Read(ctx, p, b); err != nil || !bytes.Equal(b, []byte("contents")) {
				r.Errorf("the callee reads %q, %v", b, err)
			}
			if _, err := rpc.Memory(ctx).Write(ctx, p, b); fault.CodeOf(err) != fault.PermissionDenied {
				r.Errorf("the callee writes: %v", err)
			}
			return nil
		})
		by := func(ctx context.Context, m *dsm.Client, n *rpc.Node) error {
			return lentOut(ctx, m, func(p dsm.Pointer) error {
				for range 3 {
					if err := lendTo(ctx, n, p); err != nil {
						return err
					}
				}
				return nil
			})
		}
		r.call(func(ctx context.Context, _ *dsm.Pointer) error { return by(ctx, rpc.Memory(ctx), r.server) })
		r.direct()
		if s := n.Stats(); s.Lending != 3 {
			r.Errorf("%+v: want three direct calls with pointers", s)
		}
		if err := by(r.Context(), r.client.Memory(), r.client); err != nil {
			r.Error(err)
		}
		if s := n.Stats(); s.Lending != 6 {
			r.Errorf("%+v: want six direct calls with pointers", s)
		}
		r.regions(0)
	})
}

// TestDirectLoan_ByItself: an execution, or a plain client, that writes to what a call of its own has out is refused, and does not wait for
// itself. So is a client's free. When the call is over, also by an exception, it may write.
func TestDirectLoan_ByItself(t *testing.T) {
	withShelf(t, false, func(r *shelf) {
		entered, over := make(chan struct{}), make(chan error)
		r.borrows(func(context.Context, dsm.Pointer) error {
			entered <- struct{}{}
			return <-over
		})
		by := func(ctx context.Context, m *dsm.Client, n *rpc.Node) error {
			p, err := filled(ctx, m)
			if err != nil {
				return err
			}
			for _, outcome := range []error{nil, errors.New("no")} {
				call := rpc.Go(ctx, func(ctx context.Context) error { return lendTo(ctx, n, p) })
				<-entered
				if _, err := m.Write(ctx, p, []byte("during")); fault.CodeOf(err) != fault.PermissionDenied {
					r.Errorf("the lender writes: %v", err)
				}
				if n == r.client { // else it goes when the execution is done
					if err := m.Free(ctx, p); fault.CodeOf(err) != fault.PermissionDenied {
						r.Errorf("the lender frees: %v", err)
					}
				}
				over <- outcome
				if err := call.Wait(); (err == nil) != (outcome == nil) {
					r.Errorf("the call ends with %v", err)
				}
				if _, err := m.Write(ctx, p, []byte("after")); err != nil {
					return err
				}
			}
			return m.Free(ctx, p)
		}
		r.call(func(ctx context.Context, _ *dsm.Pointer) error { return by(ctx, rpc.Memory(ctx), r.server) })
		r.direct()
		if err := by(r.Context(), r.client.Memory(), r.client); err != nil {
			r.Error(err)
		}
		r.regions(0)
	})
}

// TestDirectLoan_CallerDies: the caller's program dies while its callee reads. What the caller has
// written stays until the callee has answered, though the caller's next incarnation is there by
// then. Then the caller runs again, and finds the answer.
func TestDirectLoan_CallerDies(t *testing.T) {
	withShelf(t, false, func(r *shelf) {
		read := func(ctx context.Context, p dsm.Pointer) []byte {
			b := make([]byte, 8)
			if _, err := rpc.Memory(ctx).Read(ctx, p, b); err != nil {
				r.Error(err)
			}
			return b
		}
		n := r.borrows(func(ctx context.Context, p dsm.Pointer) error {
			before := read(ctx, p)
			if err := r.KillSoon("s1", "app/p/1"); err != nil {
				r.Error(err)
			}
			<-r.up
			<-time.After(5 * time.Second) // virtual
			if after := read(ctx, p); !bytes.Equal(before, []byte("contents")) || !bytes.Equal(after, before) {
				r.Errorf("the callee reads %q, and then %q", before, after)
			}
			return nil
		})
		r.call(func(ctx context.Context, _ *dsm.Pointer) error {
			p, err := rpc.Memory(ctx).Alloc(ctx, 64)
			if err != nil {
				return err
			}
			if b := read(ctx, p); !bytes.Equal(b, make([]byte, 8)) {
				r.Errorf("a new region has %q", b)
			}
			if _, err := rpc.Memory(ctx).Write(ctx, p, []byte("contents")); err != nil {
				return err
			}
			if err := lendTo(ctx, r.server, p); err != nil {
				return err
			}
			_, err = rpc.Memory(ctx).Write(ctx, p, []byte("after"))
			return err
		})
		if s := n.Stats(); s.Lending != 1 || r.runs.Load() != 2 {
			r.Errorf("%d runs, %+v: want two, and one direct call with a pointer", r.runs.Load(), s)
		}
		r.direct()
		r.regions(0)
	})
}

// TestDirectLoan_GivenUp: a plain client gives a call up that lends memory. It cannot write there
// before the callee has answered.
func TestDirectLoan_GivenUp(t *testing.T) {
	withShelf(t, false, func(r *shelf) {
		begun, end := make(chan struct{}), make(chan struct{})
		n := r.borrows(func(ctx context.Context, p dsm.Pointer) error {
			close(begun)
			<-end
			_, err := rpc.Memory(ctx).Read(ctx, p, make([]byte, 8))
			if err != nil {
				r.Error(err)
			}
			return err
		})
		p, err := r.client.Memory().Alloc(r.Context(), 64)
		if err != nil {
			r.Fatal(err)
		}
		ctx, cancel := context.WithCancel(r.Context())
		go func() {
			<-begun
			cancel()
		}()
		if err := lendTo(ctx, r.client, p); rpc.CodeOf(err) != rpc.Canceled {
			r.Errorf("the call was given up: %v", err)
		}
		<-time.After(5 * time.Second) // virtual
		if _, err := r.client.Memory().Write(r.Context(), p, []byte("x")); rpc.CodeOf(err) != rpc.PermissionDenied {
			r.Errorf("write while it is lent: %v", err)
		}
		close(end)
		<-time.After(5 * time.Second)
		if _, err := r.client.Memory().Write(r.Context(), p, []byte("x")); err != nil {
			r.Errorf("write after that: %v", err)
		}
		if err := r.client.Memory().Free(r.Context(), p); err != nil {
			r.Error(err)
		}
		r.regions(0)
		if s := n.Stats(); s.Lending != 1 {
			r.Errorf("%+v: want one direct call with a pointer", s)
		}
	})
}

// TestHostile_Released is row 1 of the holes for calls that lend memory: a program that marks its own
// call as let through has it refused. Else the callee would use the region of somebody who has not
// lent it, its own for instance, and answer with what is there.
func TestHostile_Released(t *testing.T) {
	cfg, seen := watched("s1", "s2")
	inVirtualTimeWith(t, cfg, func(t *testing.T, ctx context.Context, r *simrack.Rack) {
		nodes := joinAll(t, ctx, r, "s1", "s2")
		stranger, callee := nodes[0], nodes[1]
		if err := callee.Export(ctx, "Arrays", arrays.NewArraysProcessor(service.Arrays{})); err != nil {
			t.Fatal(err)
		}
		region, err := callee.Memory().Alloc(ctx, 64)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := arrays.NewArraysClient(stranger.Client("Arrays", rpc.WithPolicy(rpc.PolicyRecover))).Echo(ctx, []byte("true")); err != nil {
			t.Fatal(err)
		}
		m := *seen.Load()
		if !m.Flags.Exact() {
			t.Errorf("%+v is no direct call", m.Header)
		}
		m.Number++
		m.Call, m.Lists = rpcpacket.PlainID(stranger.Address(), m.Slot, m.Number), rpcpacket.ListsOf(region)
		m.Flags |= rpcpacket.FlagReleased
		for _, port := range []uint16{rackaddr.PortDirect, rackaddr.PortRPC} { // the switch drops both
			r.Host("s1").SendRaw(netip.AddrPortFrom(stranger.Address(), port), netip.AddrPortFrom(callee.Address(), rackaddr.PortDirect), m.Append(nil))
		}
		<-time.After(time.Second) // virtual: all have arrived
		if s := callee.Stats(); s.Lending != 0 || s.Malformed != 0 {
			t.Errorf("%d calls were taken for such that the Gatekeeper has let through, %d packets were malformed", s.Lending, s.Malformed)
		}
	})
}
