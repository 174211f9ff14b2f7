package simrack_test

import (
	"bytes"
	"context"
	"slices"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/dsm/dsmclient"
	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/rpc"
)

// hand hands a region over to a service, by a one-way.
func hand(ctx context.Context, n *rpc.Node, service string, p dsm.Pointer) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute) // virtual
	defer cancel()
	_, err := n.Client(service, rpc.WithPolicy(rpc.PolicyRecover)).Call(ctx, "echoRef", &arrays.ArraysEchoRefArgs{Data: rpc.GlobalPointer(p), Length: 8}, nil)
	return err
}

// TestDirectOneway_Regions: one-ways of a plain client, of an execution, and of a handler of policy none go direct though they hand a region over.
// The region is the receiver's from then on. What the receiver does not free goes when the one-way has ended.
func TestDirectOneway_Regions(t *testing.T) {
	withShelf(t, false, func(r *shelf) {
		taken := make(chan struct{}, 6)
		n := r.borrows(func(ctx context.Context, p dsm.Pointer) error {
			defer func() { taken <- struct{}{} }()
			r.own(ctx, rpc.Memory(ctx), p)
			if len(taken) == 0 {
				return rpc.Memory(ctx).Free(ctx, p)
			}
			return nil
		})
		by := func(ctx context.Context, m *dsm.Client, n *rpc.Node) error {
			for range 2 {
				p, err := filled(ctx, m)
				if err != nil {
					return err
				}
				if err := hand(ctx, n, "Borrower", p); err != nil {
					return err
				}
				if _, err := m.Write(ctx, p, []byte("x")); fault.CodeOf(err) != fault.PermissionDenied {
					r.Errorf("the sender writes: %v", err)
				}
			}
			return nil
		}
		if err := by(r.Context(), r.client.Memory(), r.client); err != nil {
			r.Error(err)
		}
		r.call(func(ctx context.Context, _ *dsm.Pointer) error { return by(ctx, rpc.Memory(ctx), r.server) })
		// The handler of the call is now one of policy none.
		if _, err := arrays.NewArraysClient(r.client.Client("Shelf", rpc.WithPolicy(rpc.PolicyNone))).Echo(r.Context(), nil); err != nil {
			r.Error(err)
		}
		<-time.After(10 * time.Second) // virtual
		if len(taken) != 6 {
			r.Errorf("%d one-ways have run, want 6", len(taken))
		}
		r.direct()
		r.regions(0)
		if s := n.Stats(); s.OnewaysWithRegions != 6 {
			r.Errorf("%+v: want six direct one-ways with pointers", s)
		}
	})
}

// TestDirectOneway_NotOurs: nobody hands over what is another node's. A plain client is told so. An execution's one-way
// is dropped when the execution has ended, and takes nothing with it.
func TestDirectOneway_NotOurs(t *testing.T) {
	withShelf(t, true, func(r *shelf) {
		n := r.borrows(func(context.Context, dsm.Pointer) error { return nil })
		other := r.join("c1", "other")
		p, err := filled(r.Context(), other.Memory())
		if err != nil {
			r.Fatal(err)
		}
		if err := hand(r.Context(), r.client, "Borrower", p); fault.CodeOf(err) != fault.PermissionDenied {
			r.Errorf("a client hands over what is another's: %v", err)
		}
		r.call(func(ctx context.Context, _ *dsm.Pointer) error { return hand(ctx, r.server, "Borrower", p) })
		<-time.After(10 * time.Second) // virtual
		if s := n.Stats(); s.Oneways != 0 {
			r.Errorf("%+v: want no one-way", s)
		}
		r.direct()
		r.own(r.Context(), other.Memory(), p)
		r.regions(1)
	})
}

// TestDirectOneway_Nobody: the only node that serves a one-way with a region leaves before the one-way is delivered. The
// region goes, though the sender's service has state.
func TestDirectOneway_Nobody(t *testing.T) {
	withShelf(t, true, func(r *shelf) {
		n := r.borrows(func(context.Context, dsm.Pointer) error { return nil })
		r.call(func(ctx context.Context, _ *dsm.Pointer) error {
			p, err := fresh(ctx)
			if err != nil {
				return err
			}
			if err := hand(ctx, r.server, "Borrower", p); err != nil {
				return err
			}
			return n.Close(r.Context())
		})
		<-time.After(10 * time.Second) // virtual
		r.direct()
		r.regions(0)
	})
}

// TestDirectOneway_NoneNobody: a one-way of policy none goes to a node that is gone for good. What it was to hand over is its sender's again, and is freed. One that
// cannot leave hands nothing over.
func TestDirectOneway_NoneNobody(t *testing.T) {
	withShelf(t, false, func(r *shelf) {
		n := r.borrows(func(ctx context.Context, p dsm.Pointer) error { return rpc.Memory(ctx).Free(ctx, p) })
		send := func(ctx context.Context, p dsm.Pointer) error {
			_, err := r.client.Client("Borrower", rpc.WithPolicy(rpc.PolicyNone)).Call(ctx, "echoRef", &arrays.ArraysEchoRefArgs{Data: rpc.GlobalPointer(p), Length: 8}, nil)
			return err
		}
		region := func() dsm.Pointer {
			p, err := filled(r.Context(), r.client.Memory())
			if err != nil {
				r.Fatal(err)
			}
			return p
		}
		if err := send(r.Context(), region()); err != nil { // now it is known who serves it
			r.Error(err)
		}
		<-time.After(time.Second) // virtual
		r.Session(n.Address()).Crash("for good")
		if err := send(r.Context(), region()); err != nil {
			r.Error(err)
		}
		<-time.After(time.Minute) // virtual
		r.regions(0)

		stays := region()
		ctx, cancel := context.WithTimeout(r.Context(), time.Second) // virtual
		defer cancel()
		if err := send(ctx, stays); err == nil {
			r.Error("a one-way to nobody leaves")
		}
		if owned := (*dsmclient.Client)(r.client.Memory()).Account(); !slices.Contains(owned, stays) {
			r.Errorf("a one-way has not left, and its region is not among %v", owned)
		}
		r.own(r.Context(), r.client.Memory(), stays)
	})
}

// TestDirectOneway_SenderDies: an execution is done that hands a region over while the Gatekeeper is away, and its node dies. The receiver gets the
// region, once: from this incarnation or the next one.
func TestDirectOneway_SenderDies(t *testing.T) {
	withShelf(t, true, func(r *shelf) {
		n := r.borrows(func(ctx context.Context, p dsm.Pointer) error {
			r.own(ctx, rpc.Memory(ctx), p)
			return rpc.Memory(ctx).Free(ctx, p)
		})
		r.call(func(ctx context.Context, at *dsm.Pointer) (err error) {
			if *at, err = fresh(ctx); err != nil {
				return err
			}
			p, err := fresh(ctx)
			if err != nil {
				return err
			}
			return hand(ctx, r.server, "Borrower", p) // now it is known who serves it
		})
		<-time.After(time.Second) // virtual
		r.CrashGatekeeper()
		r.call(func(ctx context.Context, at *dsm.Pointer) error {
			p := *at
			*at = dsm.Pointer{}
			return hand(ctx, r.server, "Borrower", p)
		})
		if err := r.Kill("s1", "app/p/1"); err != nil {
			r.Fatal(err)
		}
		if err := r.RestartGatekeeper(r.Context()); err != nil {
			r.Fatal(err)
		}
		<-r.up
		<-time.After(10 * time.Second) // virtual
		if s := n.Stats(); s.Oneways != 2 {
			r.Errorf("%+v: want two direct one-ways", s)
		}
		r.regions(0)
	})
}

// TestDirectOneway_ReceiverDies: the receiver of a region dies when it has written there. It runs again, finds the region
// as the sender has left it, and keeps it.
func TestDirectOneway_ReceiverDies(t *testing.T) {
	withShelf(t, true, func(r *shelf) {
		p, err := filled(r.Context(), r.client.Memory())
		if err != nil {
			r.Fatal(err)
		}
		r.handle = func(ctx context.Context, _ *dsm.Pointer) error {
			b := make([]byte, 8)
			if _, err := rpc.Memory(ctx).Read(ctx, p, b); err != nil || !bytes.Equal(b, []byte("contents")) {
				r.Errorf("the receiver reads %q, %v", b, err)
			}
			if _, err := rpc.Memory(ctx).Write(ctx, p, []byte("received")); err != nil {
				return err
			}
			if r.runs.Load() == 1 {
				return r.kill(ctx)
			}
			return nil
		}
		if err := hand(r.Context(), r.client, "Shelf", p); err != nil {
			r.Fatal(err)
		}
		<-r.up
		<-time.After(10 * time.Second) // virtual
		r.direct()
		r.call(func(ctx context.Context, _ *dsm.Pointer) error {
			b := make([]byte, 8)
			if _, err := rpc.Memory(ctx).Read(ctx, p, b); err != nil || !bytes.Equal(b, []byte("received")) {
				r.Errorf("a later call reads %q, %v", b, err)
			}
			return rpc.Memory(ctx).Free(ctx, p)
		})
		if r.runs.Load() != 3 {
			r.Errorf("%d runs, want 3", r.runs.Load())
		}
		r.regions(1) // EchoRef has left one with the service
	})
}

// TestDirectOneway_ToldLater: an execution hands two regions over that it has allocated. The second one-way leaves when
// its receiver has acknowledged the first one, which takes a while. The region does not go with the execution.
func TestDirectOneway_ToldLater(t *testing.T) {
	withShelf(t, false, func(r *shelf) {
		n := r.join("s2", "away")
		if err := n.Export(r.Context(), "Away", arrays.NewArraysProcessor(borrower{handle: func(ctx context.Context, p dsm.Pointer) error {
			r.own(ctx, rpc.Memory(ctx), p)
			return nil
		}})); err != nil {
			r.Fatal(err)
		}
		r.call(func(ctx context.Context, _ *dsm.Pointer) error {
			for range 2 {
				p, err := fresh(ctx)
				if err != nil {
					return err
				}
				if err := hand(ctx, r.server, "Away", p); err != nil {
					return err
				}
			}
			r.Host("s2").Impair(wire.Impairment{}, wire.Impairment{Loss: 1})
			return nil
		})
		<-time.After(200 * time.Millisecond) // virtual
		r.Host("s2").Impair(wire.Impairment{}, wire.Impairment{})
		<-time.After(10 * time.Second) // virtual
		if s := n.Stats(); s.OnewaysWithRegions != 2 {
			r.Errorf("%+v: want two one-ways", s)
		}
		r.direct()
		r.regions(0)
	})
}

// TestDirectOneway_Large: a one-way that hands a region over and exceeds a packet goes direct, from an execution and from a
// plain client. The receiver fetches the rest from its sender.
func TestDirectOneway_Large(t *testing.T) {
	withSmallPackets(t, func(r *shelf) {
		n := r.borrows(func(ctx context.Context, p dsm.Pointer) error {
			r.wholly(ctx)
			r.reads(ctx, p, "contents")
			return nil
		})
		by := func(ctx context.Context, m *dsm.Client, n *rpc.Node) error {
			p, err := filled(ctx, m)
			if err != nil {
				return err
			}
			return hand(bulky(ctx), n, "Borrower", p)
		}
		r.call(func(ctx context.Context, _ *dsm.Pointer) error { return by(ctx, rpc.Memory(ctx), r.server) })
		if err := by(r.Context(), r.client.Memory(), r.client); err != nil {
			r.Error(err)
		}
		<-time.After(10 * time.Second) // virtual
		r.direct()
		if s := n.Stats(); s.OnewaysWithRegions != 2 || s.LargeMessages != 2 {
			r.Errorf("%+v: want two large direct one-ways with pointers", s)
		}
		r.regions(0)
	})
}

// TestDirectOneway_TooLong: a receiver refuses a one-way that is larger than it takes, and says so. The region that the
// one-way was to hand over is still its sender's.
func TestDirectOneway_TooLong(t *testing.T) {
	withSmallPackets(t, func(r *shelf) {
		j, err := r.Joiner("s2")
		if err != nil {
			r.Fatal(err)
		}
		n, err := rpc.Join(join.NewContext(r.Context(), j), rpc.WithName("narrow"), rpc.WithMaxMessage(4096))
		if err == nil {
			err = n.Export(r.Context(), "Narrow", arrays.NewArraysProcessor(borrower{}))
		}
		if err != nil {
			r.Fatal(err)
		}
		p, err := filled(r.Context(), r.client.Memory())
		if err != nil {
			r.Fatal(err)
		}
		if err := hand(bulky(r.Context()), r.client, "Narrow", p); rpc.CodeOf(err) != rpc.BadRequest {
			r.Errorf("a one-way that is too long: %v", err)
		}
		<-time.After(10 * time.Second) // virtual
		r.own(r.Context(), r.client.Memory(), p)
		r.regions(1)
	})
}
