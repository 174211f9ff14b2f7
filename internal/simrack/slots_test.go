package simrack_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
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
		many := &fanOut{to: front, calls: calls}
		for _, err := range []error{
			back.Export(ctx, "Slow", arrays.NewPingProcessor(slow), rpc.WithWorkers(calls)), front.Export(ctx, "Many", arrays.NewPingProcessor(many.handler())),
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
		if many.begun != slots || many.overloaded != calls-slots || many.err != nil {
			t.Errorf("of a handler's %d calls %d have begun, and %d found no slot, %v", calls, many.begun, many.overloaded, many.err)
		}
		if n := client.Stats().Waited; n < calls-slots {
			t.Errorf("%d calls have waited", n)
		}
	})
}

// TestSlots_Away: while the Gatekeeper is away a handler's calls wait for it that find no slot: the node may get more.
func TestSlots_Away(t *testing.T) {
	const calls, away = 40, 5 * time.Second
	inVirtualTimeWith(t, simrack.Config{Schedule: &wire.Schedule{Seed: 1}, Disk: new(wal.Disk)}, func(t *testing.T, ctx context.Context, r *simrack.Rack) {
		nodes := joinAll(t, ctx, r, "c1", "s1", "s2")
		client, front, back := nodes[0], nodes[1], nodes[2]
		slow := pinger(func(context.Context) error {
			<-time.After(20 * time.Second) // virtual
			return nil
		})
		many := &fanOut{to: front, calls: calls}
		for _, err := range []error{
			back.Export(ctx, "Slow", arrays.NewPingProcessor(slow), rpc.WithWorkers(calls)), front.Export(ctx, "Many", arrays.NewPingProcessor(many.handler())),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		r.CrashGatekeeper()
		var done sync.WaitGroup
		done.Go(func() {
			if err := arrays.NewPingClient(client.Client("Many", rpc.WithPolicy(rpc.PolicyNone))).Ping(ctx); err != nil {
				t.Error(err)
			}
		})
		<-time.After(away) // virtual
		if err := r.RestartGatekeeper(ctx); err != nil {
			t.Fatal(err)
		}
		if done.Wait(); many.begun != calls || many.overloaded != 0 || many.err != nil {
			t.Errorf("of %d calls %d have begun, and %d found no slot, %v", calls, many.begun, many.overloaded, many.err)
		}
	})
}

// fanOut has a handler that makes many calls of Slow at once.
type fanOut struct {
	to    *rpc.Node
	calls int

	mu                sync.Mutex
	begun, overloaded int
	err               error // any other
}

func (f *fanOut) handler() pinger {
	return func(ctx context.Context) error {
		var all []*rpc.Branch
		for range f.calls {
			all = append(all, rpc.Go(ctx, func(ctx context.Context) error {
				f.count(arrays.NewPingClient(f.to.Client("Slow", rpc.WithPolicy(rpc.PolicyNone))).Ping(ctx))
				return nil
			}))
		}
		for _, b := range all {
			if err := b.Wait(); err != nil {
				return err
			}
		}
		return nil
	}
}

func (f *fanOut) count(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var coded *rpc.Error
	switch {
	case err == nil:
		f.begun++
	case errors.As(err, &coded) && coded.Code == rpc.Overloaded && coded.NeverBegan:
		f.overloaded++
	default:
		f.err = err
	}
}
