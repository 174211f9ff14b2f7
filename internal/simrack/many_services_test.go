package simrack_test

import (
	"context"
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/examples/arrays/service"
	"github.com/bifrost-rack/bifrost/gatekeeper/log"
	"github.com/bifrost-rack/bifrost/internal/simrack"
)

var services = flag.Int("services", 0, "how many services TestManyServices exports, to measure it; 0 leaves it out")

// TestManyServices measures what exports cost: run with -services 4000 -v, and again
// with twice as many.
func TestManyServices(t *testing.T) {
	if *services == 0 {
		t.Skip("to be run by hand, with -services")
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, err := simrack.Start(ctx, simrack.Config{Disk: &log.Disk{}})
	if err != nil {
		t.Fatal(err)
	}
	n, err := r.Join(ctx, "s1", "server")
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for i := range *services {
		if err := n.Export(ctx, fmt.Sprintf("Service%d", i), arrays.NewPingProcessor(service.Ping{})); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d services in %s", *services, time.Since(began).Round(time.Millisecond))
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}
