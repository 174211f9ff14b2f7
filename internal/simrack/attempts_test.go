package simrack_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/gatekeeper/trace"
	"github.com/bifrost-rack/bifrost/rpc"
)

// TestKillingCall: a call ends its service's program each time that it runs, before it has written anything or after that. It is given up
// after as many failures as may be, whether the service has state or not, and the service goes on.
func TestKillingCall(t *testing.T) {
	for _, state := range []bool{false, true} {
		for _, writes := range []bool{false, true} {
			t.Run(fmt.Sprintf("state %v, writes %v", state, writes), func(t *testing.T) {
				withShelf(t, state, func(r *shelf) {
					r.handle = func(ctx context.Context, _ *dsm.Pointer) error {
						if writes {
							if _, err := rpc.Effect(ctx, "key", func(context.Context) ([]byte, error) { return nil, nil }); err != nil {
								return err
							}
						}
						return r.kill(ctx)
					}
					ctx, cancel := context.WithTimeout(r.Context(), time.Hour) // virtual
					defer cancel()
					_, err := arrays.NewArraysClient(r.client.Client("Shelf", rpc.WithPolicy(rpc.PolicyRecover))).Echo(ctx, []byte("x"))
					if rpc.CodeOf(err) != rpc.Unavailable || !strings.Contains(err.Error(), "has ended 16 times") {
						t.Errorf("got %v", err)
					}
					want := int64(rpc.DefaultFailures)
					if !writes {
						want++ // of the first run nothing is known
					}
					if n := r.runs.Load(); n != want {
						t.Errorf("%d runs, want %d", n, want)
					}
					r.call(func(context.Context, *dsm.Pointer) error { return nil })
				})
			})
		}
	}
}

// TestKillingCall_Bound: an operator says after how many failures calls of a service are given up. It is given up then, the
// Gatekeeper counts that, and tells who subscribes to its events.
func TestKillingCall_Bound(t *testing.T) {
	withShelf(t, false, func(r *shelf) {
		ctx, cancel := context.WithTimeout(r.Context(), time.Hour) // virtual
		defer cancel()
		const most = 3
		r.must(r.Gatekeeper().SetPolicy(ctx, "Shelf", "echo", resources.Word{MaxFailures: new(most)}))
		<-time.After(3 * time.Second) // virtual: the blades are told with a heartbeat
		events := r.Gatekeeper().Subscribe(ctx)
		r.handle = func(ctx context.Context, _ *dsm.Pointer) error { return r.kill(ctx) }
		_, err := arrays.NewArraysClient(r.client.Client("Shelf", rpc.WithPolicy(rpc.PolicyRecover))).Echo(ctx, []byte("x"))
		if rpc.CodeOf(err) != rpc.Unavailable || !strings.Contains(err.Error(), "has ended 3 times") {
			t.Errorf("got %v", err)
		}
		for e := range events {
			if e.Kind == gatekeeper.CallGivenUp {
				if e.Service != "Shelf" || e.Method != "echo" || !strings.Contains(e.Message, "ended 3 times") || e.Node != r.client.Address() {
					t.Errorf("the event says %+v", e)
				}
				tree, _, err := r.Gatekeeper().Timeline(ctx, callID(t, e.Call), 1)
				again := func(s trace.Step) bool {
					return s.Kind == trace.Replayed && s.Attempt > 0 && s.Blade != "" && s.Why == "killed"
				}
				if err != nil || !strings.Contains(tree[0].Details.Text, "has ended 3 times") || !slices.ContainsFunc(tree[0].Steps, again) ||
					tree[0].Steps[len(tree[0].Steps)-1].Attempt != most {
					t.Errorf("the timeline is %+v, %v", tree, err)
				}
				break
			}
		}
		s, err := r.Gatekeeper().Snapshot(ctx)
		if r.must(err); s.Counters.GivenUp != 1 {
			t.Errorf("%d calls are counted as given up", s.Counters.GivenUp)
		}
		p, err := r.Gatekeeper().Policy(ctx, "Shelf", "echo")
		if r.must(err); p.MaxFailures != most || p.FailuresOrigin != resources.Operator || p.Origin == resources.Operator {
			t.Errorf("the policy is %+v", p)
		}
	})
}

// TestBesideKillingCall: calls that run beside one which ends their program again and again come to their end. Only that one is given
// up.
func TestBesideKillingCall(t *testing.T) {
	for _, after := range []time.Duration{0, 5 * time.Second} {
		t.Run(fmt.Sprintf("after %v", after), func(t *testing.T) {
			withShelf(t, false, func(r *shelf) {
				const calls = 4
				r.handle = func(ctx context.Context, _ *dsm.Pointer) error {
					if ctx.Value(echoed{}) == "killer" {
						<-time.After(after) // virtual
						return r.kill(ctx)
					}
					select {
					case <-time.After(30 * time.Second): // virtual
						return nil
					case <-ctx.Done():
						return ctx.Err()
					}
				}
				echo := func(data string) error {
					ctx, cancel := context.WithTimeout(r.Context(), time.Hour) // virtual
					defer cancel()
					_, err := arrays.NewArraysClient(r.client.Client("Shelf", rpc.WithPolicy(rpc.PolicyRecover))).Echo(ctx, []byte(data))
					return err
				}
				done := make(chan error, calls)
				for range calls {
					go func() { done <- echo("beside") }()
				}
				if err := echo("killer"); rpc.CodeOf(err) != rpc.Unavailable || !strings.Contains(err.Error(), "has ended 16 times") {
					t.Errorf("got %v", err)
				}
				for range calls {
					if err := <-done; err != nil {
						t.Error(err)
					}
				}
			})
		})
	}
}

// TestMachinesFail: a call is not given up since the machines fail under it that execute it, however often they do.
func TestMachinesFail(t *testing.T) {
	for _, state := range []bool{false, true} {
		t.Run(fmt.Sprintf("state %v", state), func(t *testing.T) {
			withShelf(t, state, func(r *shelf) {
				const failures = rpc.DefaultFailures + 4
				r.handle = func(ctx context.Context, _ *dsm.Pointer) error {
					if _, err := rpc.Effect(ctx, "key", func(context.Context) ([]byte, error) { return nil, nil }); err != nil {
						return err
					}
					if r.runs.Load() <= failures {
						r.tie.Crash("a machine below the node has failed")
						<-ctx.Done()
						return ctx.Err()
					}
					return nil
				}
				ctx, cancel := context.WithTimeout(r.Context(), time.Hour) // virtual
				defer cancel()
				if _, err := arrays.NewArraysClient(r.client.Client("Shelf", rpc.WithPolicy(rpc.PolicyRecover))).Echo(ctx, []byte("x")); err != nil {
					t.Error(err)
				}
				if n := r.runs.Load(); n != failures+1 {
					t.Errorf("%d runs, want %d", n, failures+1)
				}
			})
		})
	}
}
