package simrack_test

import (
	"context"
	"flag"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/examples/arrays/service"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/rpc"
)

var services = flag.Int("services", 400, "how many services TestManyServices exports")

// TestManyServices exports many services. An export costs no more for
// those that are there already: the last quarter of the exports allocates as much as the
// first one. A service that nobody has called keeps one buffer for a datagram (64 KiB).
func TestManyServices(t *testing.T) {
	const quarters = 4
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, err := simrack.Start(ctx, simrack.Config{Disk: &wal.Disk{}})
	if err != nil {
		t.Fatal(err)
	}
	var nodes [quarters]*rpc.Node // each exports a quarter: a program may have 1,024 names
	for i := range nodes {
		if nodes[i], err = r.Join(ctx, "s1", fmt.Sprint("server", i)); err != nil {
			t.Fatal(err)
		}
	}
	var cost [quarters]uint64 // bytes allocated in each quarter, garbage included
	before := memory()
	began, last := time.Now(), before
	for quarter := range cost {
		for i := range *services / quarters {
			if err := nodes[quarter].Export(ctx, fmt.Sprintf("Service%d.%d", quarter, i), arrays.NewPingProcessor(service.Ping{})); err != nil {
				t.Fatal(err)
			}
		}
		now := memory()
		cost[quarter], last = now.TotalAlloc-last.TotalAlloc, now
	}
	kept := int64(last.HeapAlloc-before.HeapAlloc) / int64(*services)
	t.Logf("%d services in %s; each quarter allocates %d KiB; a service keeps %d bytes",
		*services, time.Since(began).Round(time.Millisecond), [quarters]uint64{cost[0] >> 10, cost[1] >> 10, cost[2] >> 10, cost[3] >> 10}, kept)
	if cost[quarters-1] > 2*cost[0] {
		t.Errorf("the last quarter of the exports allocates %d bytes, the first one %d", cost[quarters-1], cost[0])
	}
	if kept > 100<<10 {
		t.Errorf("a service keeps %d bytes", kept)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// memory is what the process has allocated, after a garbage collection.
func memory() (m runtime.MemStats) {
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m
}
