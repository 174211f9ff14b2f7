package rpc_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
	"github.com/bifrost-rack/bifrost/rpc/internal/testrack"
	"github.com/bifrost-rack/bifrost/rpc/internal/testsvc"
	"github.com/bifrost-rack/bifrost/rpc/record"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
	"github.com/bifrost-rack/bifrost/rpc/trailer"
)

// after is a branch that ends after d.
func after(ctx context.Context, d time.Duration, err error) *rpc.Branch {
	return rpc.Go(ctx, func(context.Context) error { pass(d); return err })
}

// The branch that was seen first is seen first again, whichever is faster now.
func TestOrderOfBranches(t *testing.T) {
	var saw []int
	slow := 0
	onBench(t, func(ctx context.Context, _ *rpc.Node) error {
		delays := []time.Duration{time.Second, time.Second}
		delays[slow] += time.Second
		branches := []*rpc.Branch{after(ctx, delays[0], nil), after(ctx, delays[1], nil)}
		i, err := rpc.WaitAny(ctx, branches...)
		saw = append(saw, i)
		return errors.Join(err, noted(ctx))
	}, func(b *bench) {
		m := b.call()
		b.run(m)
		journal := b.journal(m)
		if len(journal) != 1 || journal[0].Type != trailer.Order {
			b.t.Fatal(journal)
		}
		slow = 1
		if a := b.rerun(journal); a.Type != rpcpacket.Reply || saw[0] != 1 || saw[1] != 1 {
			b.t.Errorf("%v, saw %v", a.Type, saw)
		}
		journal[0].Data[3] = 77 // no such branch
		if a := b.rerun(journal); a.Code != rpc.Nondeterminism {
			b.t.Errorf("%v: %s", a.Code, a.Payload)
		}
	})
}

// A wait that was given up is given up again.
func TestWaitAnyGivenUp(t *testing.T) {
	var got []error
	onBench(t, func(ctx context.Context, _ *rpc.Node) error {
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		i, err := rpc.WaitAny(short, after(ctx, time.Minute, nil))
		if i != -1 {
			return errors.New("seen")
		}
		got = append(got, err)
		return noted(ctx)
	}, func(b *bench) {
		m := b.call()
		b.send(m)
		pass(2 * time.Minute)
		b.answer(m)
		journal := b.journal(m)
		if len(journal) != 1 {
			b.t.Fatal(journal)
		}
		m = b.call()
		b.begun(m, journal)
		pass(2 * time.Minute)
		a := b.answer(m)
		if a.Type != rpcpacket.Reply || len(got) != 2 || rpc.CodeOf(got[0]) != rpc.Deadline || got[0].Error() != got[1].Error() {
			b.t.Errorf("%v, %v", a.Type, got)
		}
	})
}

// Calls of branches are numbered apart, and an answer waits for all branches.
func TestBranchIDs(t *testing.T) {
	onBench(t, func(ctx context.Context, n *rpc.Node) error {
		ping := func(ctx context.Context) error {
			return testsvc.NewTestClient(n.Client("Down", rpc.WithPolicy(rpc.PolicyRecover))).Ping(ctx)
		}
		rpc.Go(ctx, func(ctx context.Context) error {
			return errors.Join(rpc.Go(ctx, ping).Wait(), ping(ctx))
		})
		return nil // with the branch open
	}, func(b *bench) {
		down := newCallee(b.t, b.rack, "down", rackaddr.Node(78), "Down")
		call := b.call()
		b.send(call)
		nested := endpoint.ChildBranch(1, 1)
		for _, want := range []struct{ branch, index uint32 }{{nested, 1}, {1, 2}} {
			m := down.must()
			if m.Branch != want.branch || m.Index != want.index || m.Parent != call.Call || m.Call != endpoint.ChildID(nil, call.Call, m.Branch, m.Index) {
				b.t.Errorf("%+v, want %v", m.Header, want)
			}
			if _, _, early := b.caller.receive(time.Millisecond); early {
				b.t.Error("answered while a branch is open")
			}
			down.send(b.server.Address(), answer(m, pong(b.t)))
		}
		b.answer(call)
	})
}

// A branch that panics, or is opened when its execution is over, fails.
func TestBranchFailures(t *testing.T) {
	var kept context.Context
	var failed error
	onBench(t, func(ctx context.Context, _ *rpc.Node) error {
		kept = ctx
		failed = rpc.Go(ctx, func(context.Context) error { panic("as asked") }).Wait()
		_, none := rpc.WaitAny(ctx)
		if rpc.CodeOf(none) != rpc.BadRequest {
			t.Errorf("waited for none: %v", none)
		}
		return nil
	}, func(b *bench) {
		b.run(b.call())
		if rpc.CodeOf(failed) != rpc.Internal {
			b.t.Errorf("panicked: %v", failed)
		}
		if err := after(kept, 0, nil).Wait(); rpc.CodeOf(err) != rpc.BadRequest {
			b.t.Errorf("afterwards: %v", err)
		}
	})
}

// Outside of executions all of it just does the thing.
func TestOutsideOfExecutions(t *testing.T) {
	ctx := t.Context()
	if d := time.Since(rpc.Now(ctx)); d < 0 || d > time.Minute {
		t.Errorf("the time is off by %v", d)
	}
	var a, b [16]byte
	if err := errors.Join(rpc.Random(ctx, a[:]), rpc.Random(ctx, b[:])); err != nil || a == b {
		t.Errorf("random: %x, %x, %v", a, b, err)
	}
	own := errors.New("own")
	if _, err := rpc.Effect(ctx, "key", func(context.Context) ([]byte, error) { return nil, own }); !errors.Is(err, own) {
		t.Errorf("effect: %v", err)
	}
	slow, quick := make(chan struct{}), rpc.Go(ctx, func(context.Context) error { return own })
	other := rpc.Go(ctx, func(context.Context) error { <-slow; return nil })
	if i, err := rpc.WaitAny(ctx, other, quick); i != 1 || !errors.Is(err, own) {
		t.Errorf("saw %d, %v", i, err)
	}
	close(slow)
	if err := other.Wait(); err != nil {
		t.Error(err)
	}
	if err := rpc.Checkpoint(ctx, nil); rpc.CodeOf(err) != rpc.BadRequest {
		t.Errorf("checkpoint: %v", err)
	}
}

// checkpoints are those in a node's ledger.
func checkpoints(t *testing.T, r *testrack.Rack, n *rpc.Node) (all []*record.Checkpoint) {
	t.Helper()
	for _, k := range records(t, r, n) {
		if k, ok := k.(*record.Checkpoint); ok {
			all = append(all, k)
		}
	}
	return all
}

// A main that has open branches, or runs already, cannot do what it asks for. Its checkpoint is in
// the ledger when Checkpoint returns.
func TestMainRefusals(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := testrack.New(t, wire.Config{})
		n := joinNode(t, r, "main")
		failed := errors.New("failed")
		err := rpc.Main(t.Context(), n, "m", func(ctx context.Context, state []byte) error {
			if err := rpc.Main(ctx, n, "m", nil); rpc.CodeOf(err) != rpc.BadRequest {
				t.Errorf("a second run: %v", err)
			}
			b := after(ctx, time.Second, nil)
			if err := rpc.Checkpoint(ctx, nil); rpc.CodeOf(err) != rpc.BadRequest {
				t.Errorf("with an open branch: %v", err)
			}
			if err := rpc.Go(ctx, func(ctx context.Context) error { return rpc.Checkpoint(ctx, nil) }).Wait(); rpc.CodeOf(err) != rpc.BadRequest {
				t.Errorf("in a branch: %v", err)
			}
			if err := b.Wait(); err != nil || state != nil {
				t.Error(err, state)
			}
			if all := checkpoints(t, r, n); len(all) != 0 {
				t.Errorf("refused, and in the ledger: %+v", all[0])
			}
			if err := rpc.Checkpoint(ctx, []byte("s")); err != nil {
				t.Error(err)
			}
			if all := checkpoints(t, r, n); len(all) != 1 || string(all[0].State) != "s" || all[0].Main != endpoint.MainID("m") || all[0].Ended {
				t.Errorf("in the ledger: %+v", all)
			}
			return failed
		})
		if !errors.Is(err, failed) {
			t.Errorf("main: %v", err)
		}
	})
}

// What follows from the end of the context that Main was given is no part of the main: it goes on with
// another one. So nothing of it is journalled, and the main can do nothing after it.
func TestMainStopped(t *testing.T) {
	waits := func(ctx context.Context, _ *rpc.Node) error {
		release := make(chan struct{})
		b := rpc.Go(ctx, func(context.Context) error { <-release; return nil })
		_, err := rpc.WaitAny(ctx, b)
		close(release)
		return errors.Join(err, b.Wait())
	}
	calls := func(ctx context.Context, n *rpc.Node) error {
		return testsvc.NewTestClient(n.Client("Test", rpc.WithPolicy(rpc.PolicyRecover))).Ping(ctx)
	}
	for _, does := range []func(context.Context, *rpc.Node) error{waits, calls} {
		bubble.Test(t, func(t *testing.T) {
			r := testrack.New(t, wire.Config{})
			newCallee(t, r, "callee", rackaddr.Node(78), "Test")
			n := joinNode(t, r, "main")
			ctx, stop := context.WithCancel(t.Context())
			err := rpc.Main(ctx, n, "m", func(ctx context.Context, _ []byte) error {
				stop()
				if err := does(ctx, n); !errors.Is(err, context.Canceled) {
					t.Errorf("it ended with %v", err)
				}
				short, end := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
				defer end()
				if err := rpc.Checkpoint(short, []byte("s")); rpc.CodeOf(err) != rpc.Canceled {
					t.Errorf("a checkpoint after that: %v", err)
				}
				return nil
			})
			if !errors.Is(err, context.Canceled) {
				t.Errorf("main: %v", err)
			}
			for _, k := range records(t, r, n) {
				if j, ok := k.(*record.Journal); !ok || len(j.Entries) > 0 {
					t.Errorf("the ledger has %+v", k)
				}
			}
		})
	}
}

// A one-way returns when the ledger of its receiver has it.
func TestDirectOneway(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := testrack.New(t, wire.Config{})
		s, n := newCallee(t, r, "service", rackaddr.Node(78), "Test"), joinNode(t, r, "client")
		note := testsvc.NewTestClient(n.Client("Test", rpc.WithPolicy(rpc.PolicyRecover)))
		done := make(chan error)
		go func() { done <- note.Note(t.Context(), 1) }()
		m := s.must()
		s.must() // again
		select {
		case err := <-done:
			t.Errorf("returned unacknowledged: %v", err)
		default:
		}
		s.send(n.Address(), answer(m, nil))
		if err := <-done; err != nil {
			t.Error(err)
		}
		go func() { done <- note.Note(t.Context(), 2) }()
		refusal := s.must()
		for refusal.Call == m.Call {
			refusal = s.must() // another copy
		}
		refusal.Type, refusal.Code, refusal.Payload, refusal.Trailer = rpcpacket.Exception, rpc.NoSuchMethod, nil, nil
		s.send(n.Address(), refusal.Append(nil))
		if err := <-done; rpc.CodeOf(err) != rpc.NoSuchMethod {
			t.Errorf("refused: %v", err)
		}
	})
}

// A call of policy none is bound to the incarnation that its caller has chosen: the next one refuses a copy of it, however late
// that is, since the former one may have run it.
func TestCallOfFormerIncarnation(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := testrack.New(t, wire.Config{})
		server := serve(t, r, &testsvc.Handler{})
		peer := newPeer(t, r, "caller", rackaddr.Node(77))
		m := callOf(t, "ping", 1, thriftMessage(t, "ping", thrift.CALL, &testsvc.BasePingArgs{}))
		peer.call(server, m.Append(nil))
		if a := peer.must(); a.Type != rpcpacket.Reply {
			t.Errorf("the first copy: %+v", a.Header)
		}
		r.Crash("server")
		server = serve(t, r, &testsvc.Handler{})
		peer.call(server, m.Append(nil)) // a copy that was on its way for long
		if a := peer.must(); a.Type != rpcpacket.Exception || a.Code != rpc.Unavailable || a.Flags&rpcpacket.FlagUnbegun != 0 {
			t.Errorf("a late copy: %+v", a.Header)
		}
		if n := server.Stats().Served; n != 0 {
			t.Errorf("the next incarnation has run %d calls", n)
		}
		m.CalleeIncarnation = 2
		plainCall(&m, m.Slot, 2)
		peer.call(server, m.Append(nil))
		if a := peer.must(); a.Type != rpcpacket.Reply {
			t.Errorf("a call to the next incarnation: %+v", a.Header)
		}
	})
}
