package simrack_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/rpc"
)

// TestSlots_Many: a node has more calls out to another one than it may have slots for these. A client's wait until they have some. Those of a handler
// fail as overloaded after a second, before they have begun, since handlers that call each other might wait for each other's slots.
func TestSlots_Many(t *testing.T) {
	const calls, slots = 600, 512 // half of those that a node may have
	inVirtualTimeWith(t, simrack.Config{Schedule: &wire.Schedule{Seed: 1}}, func(t *testing.T, ctx context.Context, r *simrack.Rack) {
		nodes := joinAll(t, ctx, r, "c1", "s1", "s2")
		client, front, back := nodes[0], nodes[1], nodes[2]
		slow := pinger(func(context.Context) error {
			<-time.After(10 * time.Second) // virtual
			return nil
		})
		none := rpc.WithPolicy(rpc.PolicyNone)
		var overloaded, begun int
		many := pinger(func(ctx context.Context) error {
			var mu sync.Mutex
			var all []*rpc.Branch
			for range calls {
				all = append(all, rpc.Go(ctx, func(ctx context.Context) error {
					err := arrays.NewPingClient(front.Client("Slow", none)).Ping(ctx)
					mu.Lock()
					defer mu.Unlock()
					var coded *rpc.Error
					switch {
					case err == nil:
						begun++
					case errors.As(err, &coded) && coded.Code == rpc.Overloaded && coded.NeverBegan:
						overloaded++
					default:
						t.Error(err)
					}
					return nil
				}))
			}
			for _, b := range all {
				if err := b.Wait(); err != nil {
					return err
				}
			}
			return nil
		})
		for _, err := range []error{
			back.Export(ctx, "Slow", arrays.NewPingProcessor(slow), rpc.WithWorkers(calls)), front.Export(ctx, "Many", arrays.NewPingProcessor(many)),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		began := time.Now()
		var all sync.WaitGroup
		for range calls {
			all.Go(func() {
				if err := arrays.NewPingClient(client.Client("Slow", none)).Ping(ctx); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if took := time.Since(began); took < 20*time.Second || took > 21*time.Second {
			t.Errorf("%d calls took %s, with %d slots", calls, took, slots)
		}
		if err := arrays.NewPingClient(client.Client("Many", none)).Ping(ctx); err != nil {
			t.Fatal(err)
		}
		if begun != slots || overloaded != calls-slots {
			t.Errorf("of a handler's %d calls %d have begun, and %d found no slot", calls, begun, overloaded)
		}
		if n := client.Stats().Waited; n < calls-slots {
			t.Errorf("%d calls have waited", n)
		}
	})
}
