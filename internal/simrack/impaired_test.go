package simrack_test

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/examples/arrays/service"
	"github.com/bifrost-rack/bifrost/examples/arrays/workload"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
)

var seed = flag.Uint64("seed", 0, "run only this seed (0: a few)")

// bad is a network at its worst: one packet in five suffers something.
var bad = wire.Impairment{
	Delay: 20 * time.Microsecond, Jitter: 20 * time.Microsecond,
	Loss: 0.05, Duplicate: 0.05, Reorder: 0.05, Late: 0.05,
}

// inVirtualTime runs f on a rack of its own in a bubble.
func inVirtualTime(t *testing.T, seed uint64, impair wire.Impairment, f func(t *testing.T, ctx context.Context, r *simrack.Rack)) {
	t.Helper()
	inVirtualTimeOn(t, nil, seed, impair, f)
}

// inVirtualTimeOn is that with a log on a disk.
func inVirtualTimeOn(t *testing.T, disk *wal.Disk, seed uint64, impair wire.Impairment, f func(t *testing.T, ctx context.Context, r *simrack.Rack)) {
	t.Helper()
	inVirtualTimeWith(t, simrack.Config{Schedule: &wire.Schedule{Seed: seed}, Impair: impair, Disk: disk}, f)
}

// inVirtualTimeWith is that with any configuration, whose schedule needs a seed only.
func inVirtualTimeWith(t *testing.T, cfg simrack.Config, f func(t *testing.T, ctx context.Context, r *simrack.Rack)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		cfg.Schedule.Quiesce, cfg.Log = synctest.Wait, slog.New(slog.NewTextHandler(t.Output(), nil))
		r, err := simrack.Start(ctx, cfg)
		if err != nil {
			t.Fatal(err)
		}
		f(t, ctx, r)
		keepAssumptions(t, ctx, r)
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
}

// export makes a node on a blade that serves Ping and Arrays.
func export(t *testing.T, ctx context.Context, r *simrack.Rack, blade string) {
	t.Helper()
	n, err := r.Join(ctx, blade, "server")
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Export(ctx, "Ping", arrays.NewPingProcessor(service.Ping{})); err != nil {
		t.Fatal(err)
	}
	if err := n.Export(ctx, "Arrays", arrays.NewArraysProcessor(service.Arrays{})); err != nil {
		t.Fatal(err)
	}
}

// TestBadNetworkChangesNoResult: packets lost, duplicated, reordered and late by
// seconds, each 5 %, and two programs on one blade: every result is right, and
// when all is freed nothing is left.
func TestBadNetworkChangesNoResult(t *testing.T) {
	seeds := []uint64{1, 2, 3, 4}
	if testing.Short() {
		seeds = seeds[:1]
	}
	if *seed != 0 {
		seeds = []uint64{*seed}
	}
	for _, seed := range seeds {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			inVirtualTime(t, seed, bad, func(t *testing.T, ctx context.Context, r *simrack.Rack) {
				export(t, ctx, r, "s2")
				var wg sync.WaitGroup
				for program := range 2 {
					wg.Go(func() { runWorkloads(t, ctx, r, program) })
				}
				wg.Wait()
				nothingLeft(t, ctx, r)
			})
		})
	}
}

// largestByValue are the bytes of an array of which two fit a packet.
const largestByValue = 1 << 14

// runWorkloads is one program on c1.
func runWorkloads(t *testing.T, ctx context.Context, r *simrack.Rack, program int) {
	n, err := r.Join(ctx, "c1", fmt.Sprint("client", program))
	if err != nil {
		t.Error(err)
		return
	}
	c := workload.New(n)
	sizes := 11 // up to 1 MiB, which are many packets
	if testing.Short() {
		sizes = 8
	}
	for i := range sizes {
		for _, name := range workload.Names {
			for _, byReference := range []bool{false, true} {
				size := 1 << (2 * i)
				if size > largestByValue && !byReference {
					continue
				}
				if err := c.Run(ctx, name, size, byte(program*7+i), byReference); err != nil {
					t.Error(err)
					return
				}
			}
		}
	}
	if err := n.Close(ctx); err != nil {
		t.Error(err)
	}
}

// nothingLeft waits for the last packets that are late, and finds no region and
// no call in the Gatekeeper.
func nothingLeft(t *testing.T, ctx context.Context, r *simrack.Rack) {
	t.Helper()
	<-time.After(time.Minute) // virtual: whatever was under way has arrived
	s, err := r.Gatekeeper().Snapshot(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Regions) != 0 || len(s.Calls) != 0 {
		t.Errorf("left behind: regions %+v, calls %+v", s.Regions, s.Calls)
	}
}
