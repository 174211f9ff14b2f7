package simrack_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/rpc"
)

// copies has a node of its own export a copier as Borrower, which takes some time. It returns how often that has run.
func (r *shelf) copies(takes time.Duration) *atomic.Int64 {
	r.Helper()
	ran := new(atomic.Int64)
	n := r.join("c1", "copier")
	if err := n.Export(r.Context(), "Borrower", arrays.NewArraysProcessor(copier{handle: func(ctx context.Context, p dsm.Pointer) (dsm.Pointer, error) {
		ran.Add(1)
		<-time.After(takes)              // virtual
		ctx = context.WithoutCancel(ctx) // its deadline has passed
		if !p.IsNil() {
			r.reads(ctx, p, "contents")
		}
		return fresh(ctx)
	}})); err != nil {
		r.Fatal(err)
	}
	return ran
}

// givesUp calls a service that gets a pointer and returns one, and gives the call up after a moment.
func (r *shelf) givesUp(ctx context.Context, n *rpc.Node, service string, p dsm.Pointer) {
	r.Helper()
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond) // virtual
	defer cancel()
	_, err := arrays.NewArraysClient(n.Client(service, rpc.WithPolicy(rpc.PolicyRecover))).EchoRef(short, rpc.GlobalPointer(p), 8)
	if ctx.Err() == nil && rpc.CodeOf(err) != rpc.Deadline {
		r.Errorf("the call that was given up: %v", err)
	}
}

// eachGivenUp runs a test with a service that has a state and with one that has none, whose execution gives a call up. The call
// lends a region or does not, and is answered before the execution ends or after that.
func eachGivenUp(t *testing.T, f func(r *shelf, lends bool, takes time.Duration)) {
	for _, state := range []bool{false, true} {
		for _, lends := range []bool{false, true} {
			for _, takes := range []time.Duration{time.Second, 10 * time.Second} {
				t.Run(fmt.Sprintf("state %v, lends %v, takes %v", state, lends, takes), func(t *testing.T) {
					withShelf(t, state, func(r *shelf) { f(r, lends, takes) })
				})
			}
		}
	}
}

// TestDirectGiveUp: an execution gives a call up that returns a region. The region goes, also if the execution's service has
// state. What the call was lent stays until it is answered.
func TestDirectGiveUp(t *testing.T) {
	eachGivenUp(t, func(r *shelf, lends bool, takes time.Duration) {
		ran := r.copies(takes)
		r.call(func(ctx context.Context, at *dsm.Pointer) error {
			var p dsm.Pointer
			if lends {
				var err error
				if p, err = fresh(ctx); err != nil {
					return err
				}
				*at = p
			}
			r.givesUp(ctx, r.server, "Borrower", p)
			<-time.After(2 * time.Second) // virtual
			return nil
		})
		kept := 0
		if r.state && lends {
			kept = 1 // by the service
		}
		if takes > 2*time.Second {
			want := kept
			if lends {
				want = 1
			}
			r.regions(want)
			<-time.After(takes) // virtual
		}
		r.direct()
		r.regions(kept)
		if ran.Load() != 1 {
			r.Errorf("the call has run %d times", ran.Load())
		}
	})
}

// TestDirectGiveUp_CallerDies: the caller's program dies when its execution has given a call up. The next run has given it
// up, too, so that the call runs once. What it returns goes, also if the execution's service has state.
func TestDirectGiveUp_CallerDies(t *testing.T) {
	eachGivenUp(t, func(r *shelf, lends bool, takes time.Duration) {
		ran := r.copies(takes)
		r.gives(fresh)
		r.call(func(ctx context.Context, at *dsm.Pointer) error {
			var p dsm.Pointer
			if lends { // a region that it gets, so that there is nothing to take back
				var err error
				if p, err = get(ctx, r.server); err != nil {
					return err
				}
				*at = p
			}
			r.givesUp(ctx, r.server, "Borrower", p)
			if _, err := arrays.NewArraysClient(r.server.Client("Beside", rpc.WithPolicy(rpc.PolicyRecover))).Echo(ctx, []byte("x")); err != nil {
				return err
			}
			if r.runs.Load() == 1 {
				return r.kill(ctx)
			}
			<-time.After(2 * time.Second) // virtual
			return nil
		})
		if r.runs.Load() != 2 || ran.Load() != 1 {
			r.Errorf("%d runs, and %d of the call: want 2 and 1", r.runs.Load(), ran.Load())
		}
		<-time.After(takes) // virtual
		r.direct()
		if r.state && lends {
			r.regions(1) // the service has it
		} else {
			r.regions(0)
		}
	})
}

// TestDirectGiveUp_AnsweredBefore: the answer to a call that was given up has brought a region when the caller's program dies. The next incarnation frees it,
// though its service has state, which might know it.
func TestDirectGiveUp_AnsweredBefore(t *testing.T) {
	withShelf(t, true, func(r *shelf) {
		r.call(func(ctx context.Context, at *dsm.Pointer) (err error) {
			*at, err = fresh(ctx)
			return err
		})
		r.copies(2 * time.Second)
		runs := r.runs.Load()
		r.call(func(ctx context.Context, _ *dsm.Pointer) error {
			r.givesUp(ctx, r.server, "Borrower", dsm.Pointer{})
			<-time.After(5 * time.Second)                                                                                                          // virtual
			if _, err := arrays.NewArraysClient(r.server.Client("Beside", rpc.WithPolicy(rpc.PolicyRecover))).Echo(ctx, []byte("x")); err != nil { // the journal is in the ledger
				return err
			}
			if r.runs.Load() == runs+1 {
				return r.kill(ctx)
			}
			return nil
		})
		<-time.After(10 * time.Second) // virtual
		r.direct()
		r.regions(1) // the service's
	})
}

// TestDirectGiveUp_CalleeDies: the callee's program dies when the call has been given up. The call runs again, and returns a
// region, before the caller's execution has ended or after that.
func TestDirectGiveUp_CalleeDies(t *testing.T) {
	for _, stays := range []time.Duration{0, time.Minute} {
		t.Run(fmt.Sprintf("the caller stays for %v", stays), func(t *testing.T) {
			withShelf(t, false, func(r *shelf) {
				over := make(chan struct{})
				r.handle = func(ctx context.Context, _ *dsm.Pointer) error {
					<-time.After(time.Second) // virtual
					if r.runs.Load() == 1 {
						return r.kill(ctx)
					}
					close(over)
					return nil
				}
				p, err := filled(r.Context(), r.client.Memory())
				if err != nil {
					t.Fatal(err)
				}
				var n *rpc.Node
				n = r.borrows(func(ctx context.Context, _ dsm.Pointer) error {
					r.givesUp(ctx, n, "Shelf", dsm.Pointer{})
					<-time.After(stays) // virtual
					return nil
				})
				if err := lendTo(r.Context(), r.client, p); err != nil {
					t.Error(err)
				}
				<-over
				<-time.After(5 * time.Second) // virtual
				if r.runs.Load() != 2 {
					t.Errorf("%d runs of the call, want 2", r.runs.Load())
				}
				r.regions(1) // the client's own
			})
		})
	}
}

// TestDirectGiveUp_Gatekeeper: the Gatekeeper is away for a while when an execution has given a call up. It comes back before
// the execution has ended, after that, and after the call's answer.
func TestDirectGiveUp_Gatekeeper(t *testing.T) {
	for _, state := range []bool{false, true} {
		for _, lends := range []bool{false, true} {
			for away := range 5 {
				t.Run(fmt.Sprintf("state %v, lends %v, away %d", state, lends, away), func(t *testing.T) {
					withShelf(t, state, func(r *shelf) {
						r.copies(2 * time.Second)
						at := func(step int) {
							if step == away {
								r.CrashGatekeeper()
								<-time.After(1500 * time.Millisecond) // virtual
								if err := r.RestartGatekeeper(r.Context()); err != nil {
									t.Error(err)
								}
							}
						}
						kept := 0
						r.call(func(ctx context.Context, keeps *dsm.Pointer) error {
							var p dsm.Pointer
							if lends {
								var err error
								if p, err = fresh(ctx); err != nil {
									return err
								}
								if *keeps = p; state {
									kept = 1
								}
							}
							r.givesUp(ctx, r.server, "Borrower", p)
							at(0)
							if away < 2 {
								<-time.After(4 * time.Second) // virtual: the call is answered
							}
							at(1)
							if away == 2 {
								go at(2)
							}
							return nil
						})
						at(3)
						<-time.After(10 * time.Second) // virtual
						at(4)
						r.direct()
						r.regions(kept)
					})
				})
			}
		}
	}
}

// TestDirectGiveUp_CrashAtEveryPacket: the caller's program dies at each packet from the beginning of an execution on that gives
// a call up, and at some the Gatekeeper does, too. Nothing is left.
func TestDirectGiveUp_CrashAtEveryPacket(t *testing.T) {
	for at, over := 1, false; !over; at += packetStep() {
		var left atomic.Int64
		var struck atomic.Bool
		of := &shelf{state: at%4 > 1, frame: func(r *shelf, _ wire.Frame) {
			if left.Load() > 0 && left.Add(-1) == 0 {
				struck.Store(true)
				_ = r.KillSoon("s1", "app/p/1")
			}
		}}
		withShelves(t, of, mirroredThesis(), func(r *shelf) {
			r.copies(time.Duration(at%3) * time.Second)
			r.call(func(ctx context.Context, _ *dsm.Pointer) error {
				if r.runs.Load() == 1 {
					left.Store(int64(at))
				}
				p := dsm.Pointer{}
				if at%2 == 0 {
					var err error
					if p, err = fresh(ctx); err != nil {
						return err
					}
				}
				short, cancel := context.WithTimeout(ctx, 50*time.Millisecond) // virtual
				defer cancel()
				g, err := arrays.NewArraysClient(r.server.Client("Borrower", rpc.WithPolicy(rpc.PolicyRecover))).EchoRef(short, rpc.GlobalPointer(p), 8)
				gave := err != nil
				if err == nil {
					var q dsm.Pointer
					if q, err = rpc.PointerOf(g); err == nil {
						err = rpc.Memory(ctx).Free(ctx, q)
					}
				}
				if err != nil && (!gave || rpc.CodeOf(err) != rpc.Deadline) {
					return err
				}
				if at%5 == 0 && r.runs.Load() == 1 {
					r.CrashGatekeeper()
					if err := r.RestartGatekeeper(ctx); err != nil {
						return err
					}
				}
				if at%2 == 0 && gave {
					<-time.After(3 * time.Second) // virtual: the call has ended
				}
				if at%2 == 0 {
					return rpc.Memory(ctx).Free(ctx, p)
				}
				return nil
			})
			left.Store(0)
			<-time.After(10 * time.Second) // virtual
			if r.regions(0); t.Failed() {
				t.Fatalf("packet %d", at)
			}
		})
		if over = !struck.Load(); over && at < 30 {
			t.Errorf("only %d packets", at)
		}
	}
}
