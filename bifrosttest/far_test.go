package bifrosttest_test

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/bifrosttest"
	"github.com/bifrost-rack/bifrost/examples/counter/gen-go/counter"
	"github.com/bifrost-rack/bifrost/examples/counter/tally"
	"github.com/bifrost-rack/bifrost/rpc"
)

// far are contexts that end later than a time.Duration can say.
func far(t *testing.T, from context.Context, f func(ctx context.Context)) {
	t.Helper()
	for _, at := range []time.Time{time.Now().Add(math.MaxInt64), time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)} {
		ctx, cancel := context.WithDeadline(from, at)
		f(ctx)
		cancel()
	}
}

// TestFar: deadlines and times that are as long as there are do not come at once.
func TestFar(t *testing.T) {
	bifrosttest.Run(t, bifrosttest.Config{Seed: 3, Programs: programs}, func(t *testing.T, r *bifrosttest.Rack) {
		r.DeployText(app)
		done := make(chan struct{})
		did := make(chan map[string]int)
		go func() { did <- r.Trouble(math.MaxInt, done) }()
		to, want := counter.OpenCounter(r.Client(), tally.CounterName), int64(0)
		far(t, t.Context(), func(ctx context.Context) {
			want++
			if total, err := to.Add(ctx, 0, rpc.RefOf([]byte{1})); err != nil || total != want {
				t.Errorf("total %d, %v; want %d", total, err, want)
			}
		})
		time.AfterFunc(time.Minute, func() { close(done) })
		if did := <-did; len(did) > 0 {
			t.Errorf("trouble in the first minute: %v", did)
		}
	})
}

// TestFar_Live: the same for a rack in real time.
func TestFar_Live(t *testing.T) {
	far(t, t.Context(), func(ctx context.Context) {
		rack, err := bifrosttest.Start(ctx, bifrosttest.Config{})
		if err != nil {
			t.Fatal(err)
		}
		server, err := rpc.Join(rack.On(ctx, "s1"), rpc.WithName("counter"))
		if err != nil {
			t.Fatal(err)
		}
		client, err := rpc.Join(rack.On(ctx, bifrosttest.ClientBlade), rpc.WithName("client"))
		if err != nil {
			t.Fatal(err)
		}
		if err := counter.ExportCounter(ctx, server, tally.CounterName, &tally.Counter{}); err != nil {
			t.Fatal(err)
		}
		if total, err := counter.OpenCounter(client, tally.CounterName).Add(ctx, 0, rpc.RefOf([]byte{1})); err != nil || total != 1 {
			t.Errorf("total %d, %v", total, err)
		}
		for _, n := range []*rpc.Node{client, server} {
			if err := n.Close(ctx); err != nil {
				t.Error(err)
			}
		}
		if err := rack.Close(); err != nil {
			t.Error(err)
		}
	})
}
