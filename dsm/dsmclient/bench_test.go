package dsmclient_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmclient"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/memrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
)

// Over the virtual wire and a router without protection: what the client, the
// server and the wire cost.
func BenchmarkWire(b *testing.B) {
	r := newRack(b, wire.Config{}, 1)
	benchmark(b, r.Client(1, 1))
}

// BenchmarkAlloc is an allocation and a free, over the virtual wire.
func BenchmarkAlloc(b *testing.B) {
	c, ctx := newRack(b, wire.Config{}, 1).Client(1, 1), context.Background()
	b.ReportAllocs()
	for b.Loop() {
		p, err := c.Alloc(ctx, 4096)
		must(b, err)
		must(b, c.Free(ctx, p))
	}
}

// What undo costs an execution's writes: medians of writes done in turn, so that
// a busy machine does to all of them the same. "again" is where the execution
// has written before; before "first", it has been committed.
func BenchmarkUndo(b *testing.B) {
	r := newRack(b, wire.Config{}, 1)
	r.KeepUndo()
	benchmarkUndo(b, r.Client(1, 1))
}

func benchmarkUndo(b *testing.B, c *dsmclient.Client) {
	for _, size := range []int{8, 4 << 10, 64 << 10, 2 << 20} {
		b.Run(strconv.Itoa(size), func(b *testing.B) {
			plain, again, first := newTimed(b, c, size, 0), newTimed(b, c, size, 1), newTimed(b, c, size, 2)
			commit := func(n byte) {
				must(b, c.Commit(context.Background(), 1, control.Run{Execution: control.ExecutionID{n}, Incarnation: 1}))
			}
			again.write(b)
			b.ResetTimer()
			for range b.N {
				plain.write(b)
				again.write(b)
				first.write(b)
				commit(2)
			}
			b.StopTimer()
			off := plain.median()
			b.ReportMetric(0, "ns/op") // of three writes: says nothing
			b.ReportMetric(float64(off.Nanoseconds()), "off-ns")
			b.ReportMetric(float64(again.median())/float64(off), "again/off")
			b.ReportMetric(float64(first.median())/float64(off), "first/off")
			commit(1)
			for _, t := range []*timed{plain, again, first} {
				must(b, c.Free(context.Background(), t.at))
			}
		})
	}
}

// timed is writes to a region of their own on behalf of an execution, 0 for none.
type timed struct {
	client *dsmclient.Client
	at     dsmclient.Pointer
	buf    []byte
	took   []time.Duration
}

func newTimed(b *testing.B, c *dsmclient.Client, size int, execution byte) *timed {
	t := &timed{buf: make([]byte, size)}
	var err error
	t.at, err = c.Alloc(context.Background(), uint64(size))
	must(b, err)
	_, err = c.Write(context.Background(), t.at, t.buf) // so that there is something to keep
	must(b, err)
	t.client = c.With(dsmclient.Scope{Execution: [16]byte{execution}}, new(memrack.Execution))
	return t
}

func (t *timed) write(b *testing.B) {
	start := time.Now()
	if _, err := t.client.Write(context.Background(), t.at, t.buf); err != nil {
		b.Fatal(err)
	}
	t.took = append(t.took, time.Since(start))
}

func (t *timed) median() time.Duration {
	slices.Sort(t.took)
	return t.took[len(t.took)/2]
}

// benchmark measures reads and writes of several sizes.
func benchmark(b *testing.B, c *dsmclient.Client) {
	ctx := context.Background()
	limited, cancel := context.WithTimeout(ctx, time.Hour)
	defer cancel()
	for _, size := range []int{8, 4 << 10, 64 << 10, 2 << 20} {
		p, err := c.Alloc(ctx, uint64(size))
		if err != nil {
			b.Fatal(err)
		}
		buf := make([]byte, size)
		run := func(name string, op func(context.Context, dsmclient.Pointer, []byte) (int, error)) {
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
		run("readWithDeadline", func(_ context.Context, p dsmclient.Pointer, b []byte) (int, error) { return c.Read(limited, p, b) })
		if err := c.Free(ctx, p); err != nil {
			b.Fatal(err)
		}
	}
}
