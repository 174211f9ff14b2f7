package simrack_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/examples/arrays/service"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/rpc"
)

// TestCloseLosesNoCall: while a server of two closes, no call fails, whatever its policy:
// the rack sends new ones to the other, and what has reached it is answered.
func TestCloseLosesNoCall(t *testing.T) {
	slow := wire.Impairment{Delay: 200 * time.Microsecond}
	cfg := simrack.Config{Schedule: &wire.Schedule{Seed: 1}, Impair: slow, ShareExports: true}
	inVirtualTimeWith(t, cfg, func(t *testing.T, ctx context.Context, r *simrack.Rack) {
		join := func(blade string) *rpc.Node {
			n, err := r.Join(ctx, blade, blade)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		client, one, other := join("c1"), join("s1"), join("s2")
		for _, n := range []*rpc.Node{one, other} {
			if err := n.Export(ctx, "Ping", arrays.NewPingProcessor(service.Ping{})); err != nil {
				t.Fatal(err)
			}
		}
		var callers sync.WaitGroup
		var closed, over atomic.Bool
		var calls atomic.Int64
		for _, policy := range []rpc.Policy{rpc.PolicyNone, rpc.PolicyRecover} {
			for range 4 {
				callers.Go(func() {
					for !over.Load() {
						if err := arrays.NewPingClient(client.Client("Ping", rpc.WithPolicy(policy))).Ping(ctx); err != nil {
							t.Errorf("policy %s: %v", policy, err)
							return
						}
						calls.Add(1)
						if closed.Load() {
							<-time.After(20 * time.Millisecond) // virtual
						}
					}
				})
			}
		}
		const around = 20 * time.Millisecond // virtual: fifty round trips
		<-time.After(around)
		before := calls.Load()
		time.AfterFunc(around, func() { closed.Store(true) }) // a node takes its time to close, and what it refuses it refuses at first
		if err := one.Close(ctx); err != nil {
			t.Error(err)
		}
		during := calls.Load() - before
		<-time.After(around)
		over.Store(true)
		callers.Wait()
		if before == 0 || during == 0 {
			t.Errorf("%d calls before, %d while it closed", before, during)
		}
	})
}

// TestClose_CalleeAway: a client that closes does not wait for the nodes that it has called. They may be away for long.
func TestClose_CalleeAway(t *testing.T) {
	r := &registers{nodes: map[string]*rpc.Node{}}
	withRack(t, "", r, func(ctx context.Context, r *registers) {
		n := r.client(ctx, t)
		if v, err := echo(ctx, n, "R", ""); err != nil || v != 1 {
			t.Fatalf("%d, %v", v, err)
		}
		for _, b := range []string{"s1", "s2"} {
			if err := r.CrashBlade(b); err != nil {
				t.Fatal(err)
			}
		}
		<-time.After(10 * time.Second) // virtual: the client has told them what to forget, in vain
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if err := n.Close(short); err != nil {
			t.Error(err)
		}
	})
}
