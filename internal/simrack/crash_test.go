package simrack_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
)

// TestGatekeeperCrashes crashes the Gatekeeper at random moments, for random
// times shorter than three heartbeats, while two programs work over a bad
// network: every result is right, and when all is freed nothing is left.
func TestGatekeeperCrashes(t *testing.T) {
	seeds := []uint64{1, 2, 3, 4, 5, 6}
	if testing.Short() {
		seeds = seeds[:1]
	}
	if *seed != 0 {
		seeds = []uint64{*seed}
	}
	for _, seed := range seeds {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			impair, up, down := bad, time.Second, 500*time.Millisecond
			if seed%2 == 0 { // nothing is lost but by crashes, and all is much faster
				impair, up, down = wire.Impairment{Delay: 20 * time.Microsecond}, 10*time.Millisecond, 10*time.Millisecond
			}
			inVirtualTimeOn(t, new(wal.Disk), seed, impair, func(t *testing.T, ctx context.Context, r *simrack.Rack) {
				export(t, ctx, r, "s2")
				done := make(chan struct{})
				var crashes sync.WaitGroup
				crashes.Go(func() { crashNowAndThen(t, ctx, r, rand.New(rand.NewPCG(seed, 7)), up, down, done) })
				var wg sync.WaitGroup
				for program := range 2 {
					wg.Go(func() { runWorkloads(t, ctx, r, program) })
				}
				wg.Wait()
				close(done)
				crashes.Wait()
				nothingLeft(t, ctx, r)
			})
		})
	}
}

// crashNowAndThen crashes the Gatekeeper after a time of at most up, and restarts
// it after one of at most down, until done; at least a few times.
func crashNowAndThen(t *testing.T, ctx context.Context, r *simrack.Rack, rng *rand.Rand, up, down time.Duration, done <-chan struct{}) {
	atMost := func(d time.Duration) <-chan time.Time { return time.After(time.Duration(rng.Int64N(int64(d)))) }
	for n := 0; ; n++ {
		select {
		case <-done:
			t.Logf("%d crashes", n)
			if n < 3 {
				t.Error("too few to show anything")
			}
			return
		case <-atMost(up):
		}
		r.CrashGatekeeper()
		<-atMost(down)
		if err := r.RestartGatekeeper(ctx); err != nil {
			t.Error(err)
			return
		}
	}
}
