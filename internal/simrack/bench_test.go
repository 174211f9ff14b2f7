package simrack_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/examples/arrays/service"
	"github.com/bifrost-rack/bifrost/examples/arrays/workload"
	"github.com/bifrost-rack/bifrost/internal/simrack"
)

// BenchmarkAdd is the whole of add arrays by reference on the virtual wire in
// real time: three allocations, a held call, and three frees.
func BenchmarkAdd(b *testing.B) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	r, err := simrack.Start(ctx, simrack.Config{})
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	server, err := r.Join(ctx, "s2", "server")
	if err != nil {
		b.Fatal(err)
	}
	if err := server.Export(ctx, "Arrays", arrays.NewArraysProcessor(service.Arrays{})); err != nil {
		b.Fatal(err)
	}
	client, err := r.Join(ctx, "c1", "client")
	if err != nil {
		b.Fatal(err)
	}
	c := workload.New(client)
	for _, size := range []int{64, 65536} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			for b.Loop() {
				if err := c.Run(ctx, "add", size, 1, true); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
