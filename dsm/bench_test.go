package dsm_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/internal/wire"
)

// Over the virtual wire and a router without protection: what the client, the
// server and the wire cost.
func BenchmarkWire(b *testing.B) {
	r := newRack(b, wire.Config{}, 1)
	benchmark(b, r.client(1, 1))
}

// benchmark measures reads and writes of several sizes.
func benchmark(b *testing.B, c *dsm.Client) {
	ctx := context.Background()
	limited, cancel := context.WithTimeout(ctx, time.Hour)
	defer cancel()
	for _, size := range []int{8, 4 << 10, 64 << 10, 2 << 20} {
		p, err := c.Alloc(ctx, uint64(size))
		if err != nil {
			b.Fatal(err)
		}
		buf := make([]byte, size)
		run := func(name string, op func(context.Context, dsm.Pointer, []byte) (int, error)) {
			b.Run(fmt.Sprintf("%s/%d", name, size), func(b *testing.B) {
				b.SetBytes(int64(size))
				b.ReportAllocs()
				for b.Loop() {
					if _, err := op(ctx, p, buf); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
		run("write", c.Write)
		run("read", c.Read)
		run("readWithDeadline", func(_ context.Context, p dsm.Pointer, b []byte) (int, error) { return c.Read(limited, p, b) })
		if err := c.Free(ctx, p); err != nil {
			b.Fatal(err)
		}
	}
}
