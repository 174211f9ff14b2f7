package simrack_test

import (
	"context"
	"errors"
	"flag"
	"os"
	"runtime"
	"runtime/pprof"
	"sync"
	"testing"

	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/examples/arrays/service"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/rpc"
)

var (
	growthCalls   = flag.Int("growth.calls", 4000, "how many calls each quarter of TestNothingGrows makes")
	growthProfile = flag.String("growth.profile", "", "write heap profiles of TestNothingGrows to files that begin with this `prefix`")
)

// growthSlack is how many bytes the heap of the whole rack may differ between two
// moments of rest: the simulated disk drops what was deleted now and then.
const growthSlack = 3 << 20

// TestNothingGrows: what exactly-once calls leave behind in all programs of the rack
// together does not grow with their number, once the timelines of the latest calls
// (trace.DefaultCalls) are full.
func TestNothingGrows(t *testing.T) {
	if testing.Short() {
		t.Skip("makes 16,000 calls")
	}
	ctx := t.Context()
	r, err := simrack.Start(ctx, simrack.Config{Disk: new(wal.Disk)})
	if err != nil {
		t.Fatal(err)
	}
	server, err := r.Join(ctx, "s1", "server")
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Export(ctx, "Arrays", arrays.NewArraysProcessor(service.Arrays{})); err != nil {
		t.Fatal(err)
	}
	client, err := r.Join(ctx, "c1", "client")
	if err != nil {
		t.Fatal(err)
	}
	var live [4]uint64
	var records, goroutines [4]int
	for i := range live {
		callMany(t, client, *growthCalls/64)
		live[i], records[i], goroutines[i] = liveHeap(t, i), r.Log().Stats().Records, runtime.NumGoroutine()
		t.Logf("%d calls: %d KiB live, %d goroutines, %d records", (i+1)*(*growthCalls), live[i]>>10, goroutines[i], records[i])
	}
	if live[3] > live[2]+growthSlack || goroutines[3] > goroutines[0]+8 || records[3] > records[0]+64 {
		t.Errorf("something grows: heap %v, goroutines %v, records %v", live, goroutines, records)
	}
	if err := errors.Join(client.Close(ctx), server.Close(ctx), r.Close()); err != nil {
		t.Error(err)
	}
}

// callMany has 64 callers make calls at the same time.
func callMany(t *testing.T, client *rpc.Node, each int) {
	var all sync.WaitGroup
	data := make([]byte, 256)
	for range 64 {
		all.Go(func() {
			for range each {
				if _, err := arrays.NewArraysClient(client.Client("Arrays")).Echo(context.Background(), data); err != nil {
					t.Errorf("not answered: %v", err)
					return
				}
			}
		})
	}
	all.Wait()
}

// liveHeap is how many bytes are in use.
func liveHeap(t *testing.T, step int) uint64 {
	runtime.GC() // once more below: what finalizers and pools have let go
	m := memory()
	if *growthProfile != "" {
		f, err := os.Create(*growthProfile + string(rune('0'+step)))
		if err == nil {
			err = errors.Join(pprof.WriteHeapProfile(f), f.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return m.HeapAlloc
}
