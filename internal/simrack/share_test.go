package simrack_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/idl/bifrost"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// shares has a node share a text with another one.
func (r *shelf) shares(owner, with *rpc.Node) (*rpc.Ref[[]byte], *bifrost.Lease) {
	r.Helper()
	ref := rpc.RefOf([]byte("contents"))
	lease, err := ref.Share(r.Context(), owner, with.Address())
	if err != nil {
		r.Fatal(err)
	}
	return ref, lease
}

// readsBy has a node read by a lease.
func (r *shelf) readsBy(n *rpc.Node, handle *bifrost.Lease) error {
	r.Helper()
	ref := rpc.RefOf[[]byte](nil)
	if err := ref.Borrow(n, handle); err != nil {
		return err
	}
	b, err := ref.Take(r.Context())
	if err == nil && !bytes.Equal(b, []byte("contents")) {
		r.Errorf("the reader reads %q", b)
	}
	return err
}

// ends takes a lease back, and frees what was shared.
func (r *shelf) ends(ref *rpc.Ref[[]byte], lease *bifrost.Lease) {
	r.Helper()
	if err := ref.Unshare(r.Context()); err != nil {
		r.Fatal(err)
	}
	if err := ref.Free(r.Context()); err != nil {
		r.Error(err)
	}
}

// endsFor is ends, after which the reader lets go, too, and nothing is left.
func (r *shelf) endsFor(borrowed, ref *rpc.Ref[[]byte], lease *bifrost.Lease) {
	r.Helper()
	r.ends(ref, lease)
	if err := borrowed.Free(r.Context()); err != nil {
		r.Error(err)
	}
	r.regions(0)
}

// passesOn has a program pass a region to Borrower.
func (r *shelf) passesOn(n *rpc.Node, p dsm.Pointer) error {
	_, err := arrays.NewArraysClient(n.Client("Borrower", rpc.WithPolicy(rpc.PolicyNone))).EchoRef(r.Context(), rpc.GlobalPointer(p), 8)
	return err
}

// at is where what a lease is about stands.
func at(handle *bifrost.Lease) dsm.Pointer { return dsm.Pointer(handle.Address) }

// TestShare: the reader reads for longer than a call, in its program, in handlers, and in calls that it passes the value on to; nobody else does, and the owner
// cannot write. When the owner has taken the lease back nobody reads, and it may.
func TestShare(t *testing.T) {
	withShelf(t, false, func(r *shelf) {
		r.borrows(func(ctx context.Context, p dsm.Pointer) error {
			b := make([]byte, 8)
			_, err := rpc.Memory(ctx).Read(ctx, p, b)
			if err == nil && !bytes.Equal(b, []byte("contents")) {
				t.Errorf("who gets it from the reader reads %q", b)
			}
			return err
		})
		third := r.join("s2", "third")
		ref, lease := r.shares(r.client, r.server)
		handle := lease
		if err := r.readsBy(r.server, handle); err != nil {
			t.Error(err)
		}
		if err := r.readsBy(third, handle); rpc.CodeOf(err) != rpc.PermissionDenied {
			t.Errorf("a stranger reads by it: %v", err)
		}
		borrowed := rpc.RefOf[[]byte](nil)
		if err := borrowed.Borrow(r.server, handle); err != nil {
			t.Fatal(err)
		}
		r.call(func(ctx context.Context, _ *dsm.Pointer) error {
			if b, err := borrowed.Load(ctx); err != nil || string(b) != "contents" {
				t.Errorf("in a handler: %q, %v", b, err)
			}
			b := make([]byte, 8)
			if _, err := rpc.Memory(ctx).Read(ctx, at(handle), b); err != nil || string(b) != "contents" {
				t.Errorf("by its pointer: %q, %v", b, err)
			}
			if _, err := rpc.Memory(ctx).Write(ctx, at(handle), b); rpc.CodeOf(err) != rpc.PermissionDenied {
				t.Errorf("the reader writes: %v", err)
			}
			return lendTo(ctx, r.server, at(handle))
		})
		if err := r.passesOn(r.server, at(handle)); err != nil {
			t.Errorf("passed on by the reader's program: %v", err)
		}
		if _, err := r.client.Memory().Write(r.Context(), at(handle), []byte("x")); rpc.CodeOf(err) != rpc.PermissionDenied {
			t.Errorf("the owner writes: %v", err)
		}
		if err := ref.Free(r.Context()); rpc.CodeOf(err) != rpc.PermissionDenied {
			t.Errorf("the owner frees: %v", err)
		}
		began := time.Now()
		if err := ref.Unshare(r.Context()); err != nil || time.Since(began) < time.Second {
			t.Errorf("it has ended after %v: %v", time.Since(began), err)
		}
		if err := ref.Unshare(r.Context()); err != nil {
			t.Errorf("ended twice: %v", err)
		}
		if err := r.readsBy(r.server, handle); rpc.CodeOf(err) != rpc.PermissionDenied {
			t.Errorf("the reader reads after the end: %v", err)
		}
		if err := r.passesOn(r.server, at(handle)); rpc.CodeOf(err) != rpc.PermissionDenied {
			t.Errorf("passed on after the end: %v", err)
		}
		if _, err := r.client.Memory().Write(r.Context(), at(handle), []byte("x")); err != nil {
			t.Error(err)
		}
		if err := ref.Free(r.Context()); err != nil {
			t.Error(err)
		}
		if err := borrowed.Free(r.Context()); err != nil {
			t.Error(err)
		}
		if n := r.client.Stats().LeasesGiven; n != 1 {
			t.Errorf("%d leases were given", n)
		}
		r.regions(0)
	})
}

// TestShare_InUse: the end waits for a call by which the reader has passed the value on. No new one begins meanwhile.
func TestShare_InUse(t *testing.T) {
	withShelf(t, false, func(r *shelf) {
		reads, goes := make(chan struct{}, 2), make(chan struct{})
		r.borrows(func(ctx context.Context, p dsm.Pointer) error {
			reads <- struct{}{}
			<-goes
			_, err := rpc.Memory(ctx).Read(ctx, p, make([]byte, 8))
			return err
		})
		ref, lease := r.shares(r.client, r.server)
		borrowed := rpc.RefOf[[]byte](nil)
		if err := borrowed.Borrow(r.server, lease); err != nil {
			t.Fatal(err)
		}
		passed := make(chan error, 1)
		go func() { passed <- r.passesOn(r.server, at(lease)) }()
		<-reads
		short, cancel := context.WithTimeout(r.Context(), 5*time.Second)
		defer cancel()
		if err := ref.Unshare(short); rpc.CodeOf(err) != rpc.Deadline {
			t.Errorf("it has ended while it is passed on: %v", err)
		}
		if err := r.passesOn(r.server, at(lease)); rpc.CodeOf(err) != rpc.PermissionDenied {
			t.Errorf("passed on while it ends: %v", err)
		}
		close(goes)
		if err := <-passed; err != nil {
			t.Errorf("the call that had begun: %v", err)
		}
		r.endsFor(borrowed, ref, lease)
	})
}

// TestShare_ReaderDies: the next incarnation of the reader has the lease still. When the reader is gone for good, with a call by which it passes the value on and
// which does not end before it, the lease ends.
func TestShare_ReaderDies(t *testing.T) {
	withShelf(t, false, func(r *shelf) {
		ref, lease := r.shares(r.client, r.server)
		first := r.server
		if err := r.KillSoon("s1", "app/p/1"); err != nil {
			t.Fatal(err)
		}
		<-r.up
		if r.server == first {
			t.Fatal("it is not another one")
		}
		if err := r.readsBy(r.server, lease); err != nil {
			t.Errorf("its next incarnation: %v", err)
		}
		reads := make(chan struct{})
		r.borrows(func(ctx context.Context, _ dsm.Pointer) error {
			close(reads)
			<-ctx.Done()
			return ctx.Err()
		})
		if err := rpc.RefOf[[]byte](nil).Borrow(r.server, lease); err != nil {
			t.Fatal(err)
		}
		server := r.server
		go func() { // it never ends by itself
			_ = r.passesOn(server, at(lease))
		}()
		<-reads
		r.undeploy()
		short, cancel := context.WithTimeout(r.Context(), 2*time.Second)
		defer cancel()
		if err := ref.Unshare(short); err == nil {
			t.Error("it has ended while it is passed on")
		}
		s, err := r.Gatekeeper().Snapshot(r.Context())
		if err != nil || len(s.Calls) != 1 {
			t.Fatalf("%d calls are under way, %v", len(s.Calls), err)
		}
		id, err := hex.DecodeString(s.Calls[0].Call)
		if err == nil {
			err = r.Gatekeeper().CancelCall(r.Context(), rpcpacket.ID(id))
		}
		if err != nil {
			t.Fatal(err)
		}
		r.ends(ref, lease)
		r.regions(0)
	})
}

// TestShare_OwnerDies: the owner's leases end with it. Its next incarnation gets its regions, of which it knows nothing, freed when nobody reads them.
func TestShare_OwnerDies(t *testing.T) {
	for name, dies := range map[string]func(r *shelf){
		"comes back": func(r *shelf) {
			if err := r.KillSoon("s1", "app/p/1"); err != nil {
				r.Fatal(err)
			}
			<-r.up
		},
		"is gone": func(r *shelf) { r.undeploy() },
	} {
		t.Run(name, func(t *testing.T) {
			withShelf(t, false, func(r *shelf) {
				_, lease := r.shares(r.server, r.client)
				if err := r.readsBy(r.client, lease); err != nil {
					t.Error(err)
				}
				dies(r)
				<-time.After(time.Second / 10) // virtual: the rule's way to the switch
				if err := r.readsBy(r.client, lease); rpc.CodeOf(err) != rpc.PermissionDenied {
					t.Errorf("its owner has ended: %v", err)
				}
				<-time.After(5 * time.Second) // virtual
				r.regions(0)
			})
		})
	}
}

// TestShare_RollbackWaits: what an execution has changed in a region before that was shared is not taken back while somebody may read it by a lease.
func TestShare_RollbackWaits(t *testing.T) {
	withShelf(t, false, func(r *shelf) {
		_, lease := r.shares(r.server, r.client)
		borrowed := rpc.RefOf[[]byte](nil)
		if err := borrowed.Borrow(r.client, lease); err != nil {
			t.Fatal(err)
		}
		var began time.Time
		runs := 0
		r.call(func(ctx context.Context, _ *dsm.Pointer) error {
			m := rpc.Memory(ctx)
			p, err := m.Alloc(ctx, 64) // it has something to take back
			if err != nil {
				return err
			}
			if runs++; runs == 1 {
				began = time.Now()
				return r.kill(ctx)
			}
			if took := time.Since(began); took < time.Second {
				t.Errorf("the re-run begins after %v", took)
			}
			return m.Free(ctx, p)
		})
		if _, err := borrowed.Load(r.Context()); rpc.CodeOf(err) != rpc.PermissionDenied {
			t.Errorf("after the re-run: %v", err)
		}
	})
}

// TestShare_GatekeeperDies: leases stand while there is no Gatekeeper, and over its restart. What was asked of it meanwhile it does when it is back.
func TestShare_GatekeeperDies(t *testing.T) {
	withShelf(t, false, func(r *shelf) {
		ref, lease := r.shares(r.client, r.server)
		r.CrashGatekeeper()
		if err := r.readsBy(r.server, lease); err != nil {
			t.Errorf("without a Gatekeeper: %v", err)
		}
		other := rpc.RefOf([]byte("contents"))
		shared := make(chan *bifrost.Lease, 1)
		go func() {
			l, err := other.Share(r.Context(), r.client, r.server.Address())
			if err != nil {
				t.Error(err)
			}
			shared <- l
		}()
		ended := make(chan error, 1)
		go func() { ended <- ref.Unshare(r.Context()) }()
		<-time.After(time.Second) // virtual
		if err := r.RestartGatekeeper(r.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if err := ref.Free(r.Context()); err != nil {
			t.Error(err)
		}
		l := <-shared
		if err := r.readsBy(r.server, l); err != nil {
			t.Error(err)
		}
		r.CrashGatekeeper()
		if err := r.RestartGatekeeper(r.Context()); err != nil {
			t.Fatal(err)
		}
		if err := r.readsBy(r.server, l); err != nil {
			t.Errorf("after a restart: %v", err)
		}
		r.ends(other, l)
		r.regions(0)
	})
}

// TestShare_RegistersLost: leases stand when the switch's machine comes back empty, also one by which the reader passes the value on, and also if the Gatekeeper dies
// with it.
func TestShare_RegistersLost(t *testing.T) {
	for _, restarts := range []bool{false, true} {
		withShelf(t, false, func(r *shelf) {
			reads, goes := make(chan struct{}), make(chan struct{})
			r.borrows(func(ctx context.Context, p dsm.Pointer) error {
				close(reads)
				<-goes
				_, err := rpc.Memory(ctx).Read(ctx, p, make([]byte, 8))
				return err
			})
			ref, lease := r.shares(r.client, r.server)
			borrowed := rpc.RefOf[[]byte](nil)
			if err := borrowed.Borrow(r.server, lease); err != nil {
				t.Fatal(err)
			}
			passed := make(chan error, 1)
			go func() { passed <- r.passesOn(r.server, at(lease)) }()
			<-reads
			if restarts {
				r.CrashGatekeeper()
			}
			if err := r.LoseSwitch(); err != nil {
				t.Fatal(err)
			}
			if err := r.BootSwitch(); err != nil {
				t.Fatal(err)
			}
			if restarts {
				if err := r.RestartGatekeeper(r.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if b, err := borrowed.Load(r.Context()); err != nil || string(b) != "contents" {
				t.Errorf("the reader reads %q, %v", b, err)
			}
			close(goes)
			if err := <-passed; err != nil {
				t.Errorf("the call that passes it on: %v", err)
			}
			if _, err := r.client.Memory().Write(r.Context(), at(lease), []byte("x")); rpc.CodeOf(err) != rpc.PermissionDenied {
				t.Errorf("the owner writes: %v", err)
			}
			r.endsFor(borrowed, ref, lease)
		})
	}
}

// TestShare_Refused: what cannot be shared is refused, and leaves nothing behind.
func TestShare_Refused(t *testing.T) {
	withShelf(t, false, func(r *shelf) {
		ref := rpc.RefOf([]byte("contents"))
		if _, err := ref.Share(r.Context(), r.client, r.client.Address()); rpc.CodeOf(err) != rpc.BadRequest {
			t.Errorf("with itself: %v", err)
		}
		gone := r.join("s2", "gone")
		if err := gone.Close(r.Context()); err != nil {
			t.Fatal(err)
		}
		<-time.After(5 * time.Second) // virtual: nothing is left of it
		if _, err := ref.Share(r.Context(), r.client, gone.Address()); rpc.CodeOf(err) != rpc.NotFound {
			t.Errorf("with nobody: %v", err)
		}
		if _, err := ref.Share(r.Context(), r.server, r.client.Address()); rpc.CodeOf(err) != rpc.BadRequest {
			t.Errorf("by another node: %v", err)
		}
		r.call(func(ctx context.Context, _ *dsm.Pointer) error {
			if _, err := rpc.RefOf([]byte("x")).Share(ctx, r.server, r.client.Address()); rpc.CodeOf(err) != rpc.Unsupported {
				t.Errorf("in an exactly-once execution: %v", err)
			}
			return nil
		})
		over, cancel := context.WithCancel(r.Context())
		cancel()
		if _, err := ref.Share(over, r.client, r.server.Address()); rpc.CodeOf(err) != rpc.Canceled {
			t.Errorf("given up: %v", err)
		}
		<-time.After(2 * time.Second) // virtual: it has ended
		if err := ref.Free(r.Context()); err != nil {
			t.Error(err)
		}
		if _, err := ref.Share(r.Context(), r.client, r.server.Address()); rpc.CodeOf(err) != rpc.BadRequest {
			t.Errorf("what is freed: %v", err)
		}
		empty := rpc.RefOf([]byte{})
		lease, err := empty.Share(r.Context(), r.client, r.server.Address())
		if err != nil {
			t.Fatal(err)
		}
		none := rpc.RefOf[[]byte](nil)
		if err := none.Borrow(r.server, lease); err != nil {
			t.Fatal(err)
		}
		if b, err := none.Load(r.Context()); err != nil || len(b) > 0 {
			t.Errorf("no bytes: %q, %v", b, err)
		}
		if err := ref.Unshare(r.Context()); err != nil {
			t.Error(err)
		}
		r.regions(0)
	})
}

// TestHostile_Share: a node without a runtime shares what is another's, and what it was lent: refused. It may not answer a lease, and not open the slot of one.
func TestHostile_Share(t *testing.T) {
	withJudge(t, func(j *judging, owner, stranger, callee *bare) {
		p := owner.region(0)
		owner.has(p)
		share := func(n *bare, id uint64, with *bare, p dsm.Pointer) (r control.ShareReply, err error) {
			for range 100 {
				r, err = n.session.Share(j.ctx, control.Share{ID: id, Lessee: with.id.Address, Regions: []rpcpacket.Region{rpcpacket.RegionOf(p)}})
				if err != nil || r.State != control.ShareComes {
					return r, err
				}
				<-time.After(time.Millisecond) // virtual
			}
			return r, err
		}
		if _, err := share(stranger, 1, callee, p); fault.CodeOf(err) != fault.PermissionDenied {
			t.Errorf("a stranger shares it: %v", err)
		}
		r, err := share(owner, 1, callee, p)
		if err != nil || r.State != control.ShareHolds {
			t.Fatalf("%+v, %v", r, err)
		}
		if _, err := share(callee, 1, stranger, p); fault.CodeOf(err) != fault.PermissionDenied {
			t.Errorf("the reader shares it: %v", err)
		}
		use := rpcpacket.Ref{Slot: r.Slot, Number: r.Number}
		later := rpcpacket.Ref{Slot: r.Slot, Number: r.Number + 2}
		j.expect("the reader reads", passes, callee.memory(dsmpacket.OpRead, p, by(use)))
		j.expect("a stranger reads by it", denied, stranger.memory(dsmpacket.OpRead, p, by(use)))
		j.expect("the reader reads by another number", denied, callee.memory(dsmpacket.OpRead, p, by(later)))
		j.expect("the reader reads without it", denied, callee.memory(dsmpacket.OpRead, p))
		j.expect("the owner writes", lent, owner.memory(dsmpacket.OpWrite, p))
		j.expect("the reader answers it", dropped, callee.says(rpcpacket.Reply, owner, use, nil))
		j.expect("the reader gives it back as an exception", dropped, callee.says(rpcpacket.Exception, owner, use, nil))
		for what, of := range map[string]*bare{"the owner": owner, "the reader": callee} {
			number := rpcpacket.NumberOf(of.id.Incarnation, 1<<30)
			j.expect(what+" calls in the slot of a lease", dropped, of.says(rpcpacket.Call, stranger, rpcpacket.Ref{Slot: r.Slot, Number: number}, nil))
		}
		// A reader that lends to itself again and again does not keep it from ending.
		n := uint64(2)
		for i := range uint32(3) {
			j.expect("the reader lends to itself", passes, callee.says(rpcpacket.Call, callee, callee.use(i, n), lists(listed(use, p))))
		}
		ended := func() control.ShareState {
			r, err := owner.session.Share(j.ctx, control.Share{ID: 1, End: true})
			if err != nil {
				t.Fatal(err)
			}
			return r.State
		}
		ended()
		<-time.After(5 * time.Second) // virtual
		j.expect("the reader lends to itself while it ends", denied, callee.says(rpcpacket.Call, callee, callee.use(4, n), lists(listed(use, p))))
		if state := ended(); state != control.ShareEnds {
			t.Errorf("it is %d while it is lent on", state)
		}
		for i := range uint32(3) {
			j.expect("an answer", passes, callee.says(rpcpacket.Reply, callee, callee.use(i, n), nil))
		}
		<-time.After(5 * time.Second) // virtual
		if state := ended(); state != control.ShareEnded {
			t.Errorf("it is %d", state)
		}
		j.expect("the owner writes after the end", passes, owner.memory(dsmpacket.OpWrite, p))
	})
}
