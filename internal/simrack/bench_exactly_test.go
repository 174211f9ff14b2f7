package simrack_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/examples/arrays/service"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/idl/bifrost"
)

// BenchmarkPolicy is what a call costs with recovery on, against policy none: by
// value, which policy none does not hold at all, and with a lent and a returned
// region, which is held in any case. On the virtual wire the switch costs little, so
// the ratio is at its worst.
func BenchmarkPolicy(b *testing.B) {
	for _, logged := range []bool{false, true} {
		ctx, cancel := context.WithCancel(context.Background())
		cfg := simrack.Config{}
		if logged {
			cfg.Disk = new(wal.Disk)
		}
		r, err := simrack.Start(ctx, cfg)
		if err != nil {
			b.Fatal(err)
		}
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
		for _, p := range []rpc.Policy{rpc.PolicyNone, rpc.PolicyRecover} {
			c := arrays.NewArraysClient(client.Client("Arrays", rpc.WithPolicy(p)))
			b.Run(fmt.Sprintf("log=%v/value/%s", logged, p), func(b *testing.B) {
				for b.Loop() {
					if _, err := c.Echo(ctx, []byte("x")); err != nil {
						b.Fatal(err)
					}
				}
			})
			b.Run(fmt.Sprintf("log=%v/reference/%s", logged, p), func(b *testing.B) { benchReference(ctx, b, client, c) })
		}
		if err := r.Close(); err != nil {
			b.Error(err)
		}
		cancel()
	}
}

// benchReference lends one region, gets another, and frees that.
func benchReference(ctx context.Context, b *testing.B, client *rpc.Node, c *arrays.ArraysClient) {
	lent, err := client.Memory().Alloc(ctx, 64)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		got, err := c.IncrementRef(ctx, &bifrost.GlobalPointer{Address: lent[:]}, 64, 1)
		if err != nil {
			b.Fatal(err)
		}
		if err := client.Memory().Free(ctx, dsm.Pointer(got.Address)); err != nil {
			b.Fatal(err)
		}
	}
	if err := client.Memory().Free(ctx, lent); err != nil {
		b.Fatal(err)
	}
}
