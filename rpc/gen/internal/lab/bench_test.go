package lab_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/gen/internal/lab/gen-go/byhand"
	"github.com/bifrost-rack/bifrost/rpc/gen/internal/lab/gen-go/labtest/lab"
	"github.com/bifrost-rack/bifrost/rpc/idl/bifrost"
)

// byHand does what develop does, with the memory's client.
type byHand struct{}

func (byHand) Develop(ctx context.Context, raw *bifrost.GlobalPointer, length int64) (*bifrost.GlobalPointer, error) {
	p, err := rpc.PointerOf(raw)
	if err != nil {
		return nil, err
	}
	memory := rpc.Memory(ctx)
	b := make([]byte, length)
	if _, err := memory.Read(ctx, p, b); err != nil {
		return nil, err
	}
	result, err := memory.Alloc(ctx, uint64(length))
	if err != nil {
		return nil, err
	}
	if _, err := memory.Write(ctx, result, inverted(b)); err != nil {
		return nil, err
	}
	return rpc.GlobalPointer(result), nil
}

func developByHand(ctx context.Context, node *rpc.Node, c *byhand.DarkroomClient, film []byte) ([]byte, error) {
	memory := node.Memory()
	p, err := memory.Alloc(ctx, uint64(len(film)))
	if err != nil {
		return nil, err
	}
	if _, err := memory.Write(ctx, p, film); err != nil {
		return nil, err
	}
	w, err := c.Develop(ctx, rpc.GlobalPointer(p), int64(len(film)))
	if err != nil {
		return nil, err
	}
	result, err := rpc.PointerOf(w)
	if err != nil {
		return nil, err
	}
	b := make([]byte, len(film))
	if _, err := memory.Read(ctx, result, b); err != nil {
		return nil, err
	}
	if err := memory.Free(ctx, result); err != nil {
		return nil, err
	}
	return b, memory.Free(ctx, p)
}

// BenchmarkStub compares a generated stub with the same work by hand: allocate,
// write, call, read, allocate, write, return, read, free, free. The two take turns,
// so that both see the same machine, and the medians' ratio is what counts.
func BenchmarkStub(b *testing.B) {
	ctx := context.Background()
	node := benchRack(b)
	stub := lab.LabValues(lab.OpenLab(node, "Lab"))
	hand := byhand.NewDarkroomClient(node.Client("Darkroom"))
	for _, size := range []int{1 << 10, 64 << 10, 1 << 20} {
		data := make([]byte, size)
		for i := range data {
			data[i] = 1 + byte(i)%100
		}
		ways := []func() ([]byte, error){
			func() ([]byte, error) { return developByHand(ctx, node, hand, data) },
			func() ([]byte, error) { return stub.Develop(ctx, data, 1) },
		}
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			var took [2][]time.Duration
			for b.Loop() {
				for i, way := range ways {
					start := time.Now()
					if got, err := way(); err != nil || len(got) != size {
						b.Fatal(len(got), err)
					}
					took[i] = append(took[i], time.Since(start))
				}
			}
			byHand, byStub := median(took[0]), median(took[1])
			b.ReportMetric(float64(byHand.Microseconds()), "hand-µs")
			b.ReportMetric(float64(byStub.Microseconds()), "stub-µs")
			b.ReportMetric(float64(byStub)/float64(byHand), "stub/hand")
		})
	}
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

// benchRack serves both on a rack and returns a caller.
func benchRack(b *testing.B) *rpc.Node {
	ctx := context.Background()
	rack, err := simrack.Start(ctx, simrack.Config{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = rack.Close() })
	var nodes []*rpc.Node
	for _, blade := range []string{"c1", "s1"} {
		n, err := rack.Join(ctx, blade, blade)
		if err != nil {
			b.Fatal(err)
		}
		nodes = append(nodes, n)
	}
	if err := lab.ExportLab(ctx, nodes[1], "Lab", newHandler()); err != nil {
		b.Fatal(err)
	}
	if err := nodes[1].Export(ctx, "Darkroom", byhand.NewDarkroomProcessor(byHand{})); err != nil {
		b.Fatal(err)
	}
	return nodes[0]
}
