package workload_test

import (
	"testing"

	"github.com/bifrost-rack/bifrost/bifrosttest"
	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/examples/arrays/service"
	"github.com/bifrost-rack/bifrost/examples/arrays/workload"
)

// TestWorkloads runs each workload by value and by reference, over a network that loses,
// doubles and reorders packets. Each checks its own result. Nothing is left in memory.
func TestWorkloads(t *testing.T) {
	bifrosttest.Run(t, bifrosttest.Config{Seed: 1, Network: bifrosttest.Bad}, func(t *testing.T, r *bifrosttest.Rack) {
		server := r.Node("s1", "arrays")
		if err := server.Export(r.Context(), "Ping", arrays.NewPingProcessor(service.Ping{})); err != nil {
			t.Fatal(err)
		}
		if err := server.Export(r.Context(), "Arrays", arrays.NewArraysProcessor(service.Arrays{})); err != nil {
			t.Fatal(err)
		}
		c := workload.New(r.Client())
		for _, name := range workload.Names {
			for _, size := range []int{1, 1000, 100_000} {
				for _, byReference := range []bool{false, true} {
					if err := c.Run(r.Context(), name, size, 7, byReference); err != nil {
						t.Errorf("%s of %d bytes, by reference %t: %v", name, size, byReference, err)
					}
				}
			}
		}
		if n := r.Regions(); n != 0 {
			t.Errorf("%d regions are left", n)
		}
	})
}
