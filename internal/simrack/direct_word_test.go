package simrack_test

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// counted has a node on s2 export an arrays service as Borrower, and serve one call so that the node of the shelf knows it.
// It returns how often the service has run since. From then on handle is part of its handler, unless it is nil.
func (r *shelf) counted(handle func(), options ...rpc.ExportOption) *atomic.Int64 {
	r.Helper()
	ran, known := new(atomic.Int64), false
	n := r.join("s2", "copier")
	if err := n.Export(r.Context(), "Borrower", arrays.NewArraysProcessor(copier{handle: func(context.Context, dsm.Pointer) (dsm.Pointer, error) {
		if ran.Add(1); known && handle != nil {
			handle()
		}
		known = true
		return dsm.Pointer{}, nil
	}}), options...); err != nil {
		r.Fatal(err)
	}
	r.call(func(ctx context.Context, _ *dsm.Pointer) error {
		_, err := r.borrow(ctx)
		return err
	})
	ran.Store(0)
	r.runs.Store(0)
	return ran
}

func (r *shelf) borrow(ctx context.Context) (dsm.Pointer, error) {
	g, err := arrays.NewArraysClient(r.server.Client("Borrower", rpc.WithPolicy(rpc.PolicyRecover))).EchoRef(ctx, rpc.GlobalPointer(dsm.Pointer{}), 8)
	if err != nil {
		return dsm.Pointer{}, err
	}
	return rpc.PointerOf(g)
}

// unreachable has what is sent to s2 lost for a while.
func (r *shelf) unreachable(takes time.Duration) {
	r.Host("s2").Impair(wire.Impairment{}, wire.Impairment{Loss: 1})
	time.AfterFunc(takes, func() { r.Host("s2").Impair(wire.Impairment{}, wire.Impairment{}) })
}

// TestGivenUpCallRuns: an execution gives a call up, no copy of which has come. It goes on when the callee's ledger has the
// call, also if it is run again meanwhile. A call that is cancelled runs, once. One whose time is over ends without
// having begun, and the error says so.
func TestGivenUpCallRuns(t *testing.T) {
	for _, dies := range []bool{false, true} {
		for _, state := range []bool{false, true} {
			for _, code := range []rpc.Code{rpc.Canceled, rpc.Deadline} {
				withShelf(t, state, func(r *shelf) {
					ran := r.counted(nil)
					r.call(func(ctx context.Context, _ *dsm.Pointer) error {
						if r.runs.Load() == 1 {
							r.unreachable(300 * time.Millisecond) // virtual
							if dies {
								time.AfterFunc(100*time.Millisecond, func() { _ = r.KillSoon("s1", "app/p/1") })
							}
						}
						err := r.givesUpAfter(ctx, 50*time.Millisecond, code) // virtual
						if ctx.Err() == nil && err != nil && (rpc.CodeOf(err) != code || rpc.NeverBegan(err) != (code == rpc.Deadline)) {
							t.Errorf("dies %v, state %v, run %d: %v", dies, state, r.runs.Load(), err)
						}
						return ctx.Err()
					})
					<-time.After(10 * time.Second) // virtual
					if ran.Load() > 1 || ran.Load() == 0 && code == rpc.Canceled {
						t.Errorf("%v, dies %v, state %v: the call has run %d times", code, dies, state, ran.Load())
					}
					r.regions(0)
				})
			}
		}
	}
}

// givesUpAfter gives a call to Borrower up after a while: it is cancelled, or its time is over.
func (r *shelf) givesUpAfter(ctx context.Context, d time.Duration, code rpc.Code) error {
	return givesUpAfter(ctx, d, code, func(ctx context.Context) error {
		_, err := r.borrow(ctx)
		return err
	})
}

func givesUpAfter(ctx context.Context, d time.Duration, code rpc.Code, call func(context.Context) error) error {
	short, cancel := context.WithCancel(ctx)
	if code == rpc.Deadline {
		short, cancel = context.WithTimeout(ctx, d)
	} else {
		time.AfterFunc(d, cancel)
	}
	defer cancel()
	return call(short)
}

// TestGivenUpCallLate: an execution that is run again makes a call when the call's time is over. Its former run has sent
// the call, so the call has begun, and the error must not say that it has not.
func TestGivenUpCallLate(t *testing.T) {
	withShelf(t, false, func(r *shelf) {
		ran := r.counted(nil)
		r.call(func(ctx context.Context, _ *dsm.Pointer) error {
			short, cancel := context.WithTimeout(ctx, 50*time.Millisecond) // virtual
			defer cancel()
			if r.runs.Load() == 1 {
				r.unreachable(300 * time.Millisecond)                                           // virtual
				time.AfterFunc(20*time.Millisecond, func() { _ = r.KillSoon("s1", "app/p/1") }) // while the call is out
			} else {
				<-short.Done()
			}
			if _, err := r.borrow(short); ctx.Err() == nil && err != nil && (rpc.CodeOf(err) != rpc.Deadline || rpc.NeverBegan(err)) { // or it is answered at once
				t.Errorf("run %d: %v", r.runs.Load(), err)
			}
			return ctx.Err()
		})
		if <-time.After(10 * time.Second); ran.Load() != 1 { // virtual
			t.Errorf("the call has run %d times", ran.Load())
		}
	})
}

// TestGivenUpCallLate_Main: a durable main that is run again by the same program makes a call when the call's time is over. Its former run was answered, so
// the error must not say that the call has not begun, and what the answer has handed over goes.
func TestGivenUpCallLate_Main(t *testing.T) {
	withShelf(t, false, func(r *shelf) {
		r.handle = func(context.Context, *dsm.Pointer) error { return nil }
		again := errors.New("again")
		runs := 0
		run := func() error {
			runs++
			return rpc.Main(r.Context(), r.client, "main", func(ctx context.Context, _ []byte) error {
				short, cancel := context.WithTimeout(ctx, 50*time.Millisecond) // virtual
				defer cancel()
				if runs > 1 {
					<-short.Done()
				}
				_, err := arrays.NewArraysClient(r.client.Client("Shelf", rpc.WithPolicy(rpc.PolicyRecover))).EchoRef(short, nil, 0)
				if rpc.NeverBegan(err) || runs == 1 && err != nil {
					t.Errorf("run %d: %v", runs, err)
				}
				if runs == 1 {
					return again
				}
				return nil
			})
		}
		if err := run(); !errors.Is(err, again) {
			t.Error(err)
		}
		if err := run(); err != nil {
			t.Error(err)
		}
		if r.runs.Load() != 1 {
			t.Errorf("the call has run %d times", r.runs.Load())
		}
		r.regions(0)
	})
}

// TestGivenUpCall_Client: a plain client gives a call up that has not come. The call does not run when the callee can be reached again, whoever sends
// it then.
func TestGivenUpCall_Client(t *testing.T) {
	for _, policy := range []rpc.Policy{rpc.PolicyRecover, rpc.PolicyNone} {
		for _, code := range []rpc.Code{rpc.Canceled, rpc.Deadline} {
			withShelf(t, false, func(r *shelf) {
				ran := r.counted(nil)
				borrow := func(ctx context.Context) error {
					_, err := arrays.NewArraysClient(r.client.Client("Borrower", rpc.WithPolicy(policy))).EchoRef(ctx, rpc.GlobalPointer(dsm.Pointer{}), 8)
					return err
				}
				r.unreachable(300 * time.Millisecond) // virtual
				if err := givesUpAfter(r.Context(), 50*time.Millisecond, code, borrow); rpc.CodeOf(err) != code {
					t.Errorf("%s, %v: %v", policy, code, err)
				}
				<-time.After(10 * time.Second) // virtual
				if n := ran.Load(); n != 0 {
					t.Errorf("%s, %v: the call has run %d times", policy, code, n)
				}
				if err := borrow(r.Context()); err != nil || ran.Load() != 1 {
					t.Errorf("%s, %v: the next call has run %d times, %v", policy, code, ran.Load(), err)
				}
			})
		}
	}
}

// TestGivenUpCallWaitsForTheLedger: a call that runs is given up while its callee's ledger is away. The caller goes on when
// the ledger has the call, and not before.
func TestGivenUpCallWaitsForTheLedger(t *testing.T) {
	const away = 300 * time.Millisecond
	withShelf(t, false, func(r *shelf) {
		impair := func(loss float64) {
			for _, m := range []string{"m1", "m2"} {
				r.Host(m).Impair(wire.Impairment{}, wire.Impairment{Loss: loss})
			}
		}
		ran := r.counted(func() {
			impair(1)
			time.AfterFunc(away, func() { impair(0) })
			<-time.After(time.Second) // virtual
		})
		r.call(func(ctx context.Context, _ *dsm.Pointer) error {
			short, cancel := context.WithTimeout(ctx, 50*time.Millisecond) // virtual
			defer cancel()
			began := time.Now()
			_, err := r.borrow(short)
			if took := time.Since(began); rpc.CodeOf(err) != rpc.Deadline || took < away || took > time.Second {
				t.Errorf("after %v: %v", took, err)
			}
			return nil
		})
		if ran.Load() != 1 {
			t.Errorf("the call has run %d times", ran.Load())
		}
	})
}

// TestHostile_Word: nobody but the callee can say that its ledger has a call which is given up.
func TestHostile_Word(t *testing.T) {
	var given atomic.Pointer[rpcpacket.Message] // the call that is given up
	of := &shelf{frame: func(_ *shelf, f wire.Frame) {
		u, err := frame.ParseUDP6(f.Data)
		if err != nil || u.Dst.Port() != rackaddr.PortDirect {
			return
		}
		if m, err := rpcpacket.Parse(slices.Clone(u.Payload)); err == nil && m.Type == rpcpacket.Call && m.Flags&rpcpacket.FlagGivenUp != 0 {
			given.Store(&m)
		}
	}}
	withShelves(t, of, mirroredThesis(), func(r *shelf) {
		ran, stranger := r.counted(nil), r.join("c1", "stranger")
		r.call(func(ctx context.Context, _ *dsm.Pointer) error {
			r.unreachable(300 * time.Millisecond) // virtual
			time.AfterFunc(100*time.Millisecond, func() {
				m := given.Load()
				forged := rpcpacket.Message{Header: rpcpacket.Header{
					Type: rpcpacket.Ack, Flags: rpcpacket.FlagGivenUp.WithPolicy(rpc.PolicyRecover), Call: m.Call, CallerIncarnation: 1, CalleeIncarnation: 1,
				}}
				at := netip.AddrPortFrom(r.server.Address(), rackaddr.PortDirect)
				r.Host("c1").SendRaw(netip.AddrPortFrom(stranger.Address(), rackaddr.PortDirect), at, forged.Append(nil))
			})
			began := time.Now()
			if err := r.givesUpAfter(ctx, 50*time.Millisecond, rpc.Canceled); time.Since(began) < 300*time.Millisecond || err != nil && rpc.CodeOf(err) != rpc.Canceled {
				t.Errorf("after %v: %v", time.Since(began), err)
			}
			return nil
		})
		if ran.Load() != 1 {
			t.Errorf("the call has run %d times", ran.Load())
		}
	})
}

// TestGivenUpCallWaits: a call is given up while it waits for a worker. If its time is over it ends at once, and has never
// begun. If it is cancelled it runs in its turn, though its time is over by then.
func TestGivenUpCallWaits(t *testing.T) {
	withShelf(t, false, func(r *shelf) {
		busy := make(chan struct{})
		ran := r.counted(func() { <-busy }, rpc.WithWorkers(1))
		r.call(func(ctx context.Context, _ *dsm.Pointer) error {
			first := rpc.Go(ctx, func(ctx context.Context) error { _, err := r.borrow(ctx); return err })
			<-time.After(time.Second) // virtual
			began := time.Now()
			if err := r.givesUpAfter(ctx, 50*time.Millisecond, rpc.Deadline); rpc.CodeOf(err) != rpc.Deadline || !rpc.NeverBegan(err) || time.Since(began) > 60*time.Millisecond {
				t.Errorf("its time is over: after %v: %v", time.Since(began), err)
			}
			timed, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
			defer cancel()
			if err := r.givesUpAfter(timed, 50*time.Millisecond, rpc.Canceled); rpc.CodeOf(err) != rpc.Canceled || rpc.NeverBegan(err) {
				t.Errorf("it is cancelled: %v", err)
			}
			<-timed.Done()
			<-time.After(10 * time.Millisecond) // virtual: its time is over at the callee, too
			close(busy)
			return first.Wait()
		})
		<-time.After(time.Second) // virtual
		if ran.Load() != 2 {
			t.Errorf("%d calls have run, want the first and the one that was cancelled", ran.Load())
		}
	})
}
