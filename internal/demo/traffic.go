package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/examples/arrays/service"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/idl/bifrost"
)

// traffic keeps a rack busy until ctx ends: clients on c1 and c2 call the service
// Pipeline on s1, which calls Arrays on s2 and s3 with what it was lent, and
// somebody on s3 tries what nobody granted. Everything takes its time, so that it
// can be watched.
func traffic(ctx context.Context, rack *simrack.Rack) error {
	pipeline, err := rack.Join(ctx, "s1", "pipeline")
	if err != nil {
		return err
	}
	if err := pipeline.Export(ctx, "Pipeline", arrays.NewArraysProcessor(&relay{node: pipeline})); err != nil {
		return err
	}
	for _, blade := range []string{"s2", "s3"} {
		n, err := rack.Join(ctx, blade, "arrays")
		if err != nil {
			return err
		}
		if err := n.Export(ctx, "Arrays", arrays.NewArraysProcessor(&slow{})); err != nil {
			return err
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	for _, c := range []struct{ blade, name string }{{"c1", "ingest"}, {"c1", "report"}, {"c2", "train"}, {"c2", "index"}} {
		g.Go(func() error { return customer(ctx, rack, c.blade, c.name) })
	}
	g.Go(func() error { return burglar(ctx, rack) })
	return g.Wait()
}

// slow is the Arrays service as if it had much to do.
type slow struct{ service.Arrays }

// IncrementRef takes its time.
func (s *slow) IncrementRef(ctx context.Context, p *bifrost.GlobalPointer, n int64, delta int8) (*bifrost.GlobalPointer, error) {
	if err := pause(ctx, 300*time.Millisecond, 1500*time.Millisecond); err != nil {
		return nil, err
	}
	return s.Arrays.IncrementRef(ctx, p, n, delta)
}

// AddRef takes its time.
func (s *slow) AddRef(ctx context.Context, a *bifrost.GlobalPointer, n int64, b *bifrost.GlobalPointer, m int64) (*bifrost.GlobalPointer, error) {
	if err := pause(ctx, 300*time.Millisecond, 2*time.Second); err != nil {
		return nil, err
	}
	return s.Arrays.AddRef(ctx, a, n, b, m)
}

// relay is an Arrays service that has others do its work: it passes on what it was
// lent, and control of what it gets.
type relay struct {
	service.Arrays
	node *rpc.Node
}

// AddRef returns a + 1 + b.
func (r *relay) AddRef(ctx context.Context, a *bifrost.GlobalPointer, n int64, b *bifrost.GlobalPointer, m int64) (*bifrost.GlobalPointer, error) {
	next := arrays.NewArraysClient(r.node.Client("Arrays"))
	more, err := next.IncrementRef(ctx, a, n, 1)
	if err != nil {
		return nil, err
	}
	sum, err := next.AddRef(ctx, more, n, b, m)
	if err != nil {
		return nil, err
	}
	p, err := rpc.PointerOf(more)
	if err != nil {
		return nil, err
	}
	return sum, rpc.Memory(ctx).Free(ctx, p)
}

// customer calls Pipeline again and again with arrays of its own, two calls at a
// time. Now and then it makes a mistake, which the service answers with an exception that the
// IDL declares, and ends; another one takes its place.
func customer(ctx context.Context, rack *simrack.Rack, blade, name string) error {
	for {
		n, err := rack.Join(ctx, blade, name)
		if err != nil {
			return err
		}
		g, working := errgroup.WithContext(ctx)
		for range 2 {
			g.Go(func() error { return orders(working, n, 6+rand.IntN(8)) })
		}
		if err := g.Wait(); err != nil {
			return fmt.Errorf("%s on %s: %w", name, blade, err)
		}
		var mismatch *arrays.LengthMismatch
		if _, err := arrays.NewArraysClient(n.Client("Pipeline")).Add(ctx, []byte{1}, []byte{1, 2}); !errors.As(err, &mismatch) {
			return fmt.Errorf("a sum of arrays of different lengths: %w", err)
		}
		if err := n.Close(ctx); err != nil {
			return err
		}
		if err := pause(ctx, time.Second, 4*time.Second); err != nil {
			return err
		}
	}
}

// orders makes calls one after the other, of all sizes.
func orders(ctx context.Context, n *rpc.Node, count int) error {
	for range count {
		if err := order(ctx, n, 1<<(14+rand.IntN(8))); err != nil {
			return err
		}
		if err := pause(ctx, 0, 1500*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// order is one call of a customer with arrays of size bytes, whose result must be
// right.
func order(ctx context.Context, n *rpc.Node, size int) (err error) {
	memory := n.Memory()
	var mine []dsm.Pointer
	defer func() {
		for _, p := range mine {
			err = errors.Join(err, memory.Free(ctx, p))
		}
	}()
	a, b, want := make([]byte, size), make([]byte, size), make([]byte, size)
	for i := range a {
		a[i], b[i] = byte(i), byte(5*i>>3)
		want[i] = a[i] + 1 + b[i]
	}
	for _, data := range [][]byte{a, b} {
		p, err := memory.Alloc(ctx, uint64(size))
		if err != nil {
			return err
		}
		mine = append(mine, p)
		if _, err := memory.Write(ctx, p, data); err != nil {
			return err
		}
	}
	client := arrays.NewArraysClient(n.Client("Pipeline"))
	result, err := client.AddRef(ctx, rpc.GlobalPointer(mine[0]), int64(size), rpc.GlobalPointer(mine[1]), int64(size))
	if err != nil {
		return err
	}
	p, err := rpc.PointerOf(result)
	if err != nil {
		return err
	}
	mine = append(mine, p)
	got := make([]byte, size)
	if _, err := memory.Read(ctx, p, got); err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		return errors.New("a result is wrong")
	}
	return nil
}

// burglar tries to get at memory that was never lent to it.
func burglar(ctx context.Context, rack *simrack.Rack) error {
	n, err := rack.Join(ctx, "s3", "visitor")
	if err != nil {
		return err
	}
	for {
		if err := pause(ctx, 2*time.Second, 6*time.Second); err != nil {
			return err
		}
		s, err := rack.Gatekeeper().Snapshot(ctx)
		if err != nil {
			return err
		}
		if len(s.Regions) == 0 {
			continue
		}
		p, err := pointerInto(s.Regions[rand.IntN(len(s.Regions))].Region)
		if err != nil {
			return err
		}
		_, err = n.Memory().Write(ctx, p, []byte("mine"))
		if rpc.CodeOf(err) != rpc.PermissionDenied {
			return fmt.Errorf("a write by somebody who holds nothing: %w", err)
		}
	}
}

// pause waits for a time at random, or until ctx ends.
func pause(ctx context.Context, least, most time.Duration) error {
	t := time.NewTimer(least + rand.N(most-least))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// pointerInto returns a pointer to the first byte of a region.
func pointerInto(region string) (dsm.Pointer, error) {
	p, err := netip.ParsePrefix(region)
	return dsmpacket.FromAddr(p.Addr()), err
}
