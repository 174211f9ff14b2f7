package dsmclient_test

import (
	"bytes"
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmclient"
	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/memrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
)

// keeping is a client that keeps freed regions.
func (r *rack) keeping() *dsmclient.Client {
	return r.ClientWith(1, dsmclient.Config{Incarnation: 1, Keep: true})
}

// allocated is how many regions the memory blades have made.
func (r *rack) allocated() (n uint64) {
	for _, s := range r.Memories {
		n += s.Metrics().Done[dsmpacket.OpAlloc.String()]
	}
	return n
}

// used is how many bytes the memory blades have given out.
func (r *rack) used() (n uint64) {
	for _, s := range r.Memories {
		n += s.Used()
	}
	return n
}

// kept makes a region that has been used before, full of what was there.
func kept(t *testing.T, c *dsmclient.Client, size int) dsmclient.Pointer {
	t.Helper()
	ctx := context.Background()
	var p dsmclient.Pointer
	var err error
	for range 8 {
		p, err = c.Alloc(ctx, uint64(size))
		must(t, err)
		_, err = c.Write(ctx, p, bytes.Repeat([]byte{0xaa}, size))
		must(t, err)
		must(t, c.Free(ctx, p))
	}
	if _, err := c.Read(ctx, p, make([]byte, 1)); fault.CodeOf(err) != fault.PermissionDenied {
		t.Errorf("read of what was freed: %v", err)
	}
	if err := c.Lend(ctx, p); fault.CodeOf(err) != fault.PermissionDenied {
		t.Errorf("passing on what was freed: %v", err)
	}
	if err := c.Free(ctx, p.Add(1)); fault.CodeOf(err) != fault.PermissionDenied {
		t.Errorf("freeing what was freed: %v", err)
	}
	q, err := c.Alloc(ctx, uint64(size))
	must(t, err)
	if p != q {
		t.Fatalf("got %s, want %s again", q, p)
	}
	return p
}

// TestKeptRegionsAreZero does all kinds of things with regions and holds what they read
// against a model, in which a new region is zero.
func TestKeptRegionsAreZero(t *testing.T) {
	for seed := range uint64(8) {
		r := newRack(t, wire.Config{}, 3)
		c, rng, ctx := r.keeping(), rand.New(rand.NewPCG(seed, 1)), context.Background()
		model, allocs := map[dsmclient.Pointer][]byte{}, uint64(0)
		for range 600 {
			size := 4096 - rng.IntN(1500)
			p, err := c.Alloc(ctx, uint64(size))
			must(t, err)
			allocs++
			if model[p] != nil {
				t.Fatalf("%s is given out twice", p)
			}
			model[p] = make([]byte, size)
			for range rng.IntN(4) {
				from := rng.IntN(size)
				to := from + rng.IntN(size-from) + 1
				if rng.IntN(3) == 0 {
					from, to = 0, size
				}
				if rng.IntN(3) == 0 {
					got := make([]byte, to-from)
					_, err := c.Read(ctx, p.Add(int64(from)), got)
					must(t, err)
					if !bytes.Equal(got, model[p][from:to]) {
						t.Fatalf("seed %d: %d..%d is not what was written", seed, from, to)
					}
					continue
				}
				b := fill(to-from, rng.Uint64())
				_, err := c.Write(ctx, p.Add(int64(from)), b)
				must(t, err)
				copy(model[p][from:to], b)
			}
			must(t, c.Lend(ctx, p))
			got := make([]byte, size)
			_, err = c.Read(ctx, p, got)
			must(t, err)
			if !bytes.Equal(got, model[p]) {
				t.Fatalf("seed %d: what is lent is not what was written", seed)
			}
			c.Returned(p)
			for p := range model {
				if len(model) < 3 || rng.IntN(2) == 0 {
					break
				}
				must(t, c.Free(ctx, p))
				delete(model, p)
			}
		}
		if n := r.allocated(); n > allocs/4 {
			t.Errorf("%d of %d regions are new", n, allocs)
		}
	}
}

// TestNobodySeesWhatWasThere: while one writes over what an earlier user has left,
// others see zeros or what it writes.
func TestNobodySeesWhatWasThere(t *testing.T) {
	const size = 1 << 20
	r := newRack(t, wire.Config{}, 1)
	c, ctx := r.keeping(), context.Background()
	p := kept(t, c, size)
	var all sync.WaitGroup
	all.Go(func() {
		if _, err := c.Write(ctx, p, bytes.Repeat([]byte{1}, size)); err != nil {
			t.Error(err)
		}
	})
	for i := range int64(8) {
		all.Go(func() {
			b := make([]byte, 4096)
			if _, err := c.Read(ctx, p.Add(i*size/8), b); err != nil {
				t.Error(err)
			}
			if bytes.IndexByte(b, 0xaa) >= 0 {
				t.Error("an earlier user's bytes are seen")
			}
		})
	}
	all.Wait()
}

// TestCancelledWriteOverKept: a write that did not come to its end has not covered what
// was there.
func TestCancelledWriteOverKept(t *testing.T) {
	const size = 1 << 20
	r := newRack(t, wire.Config{}, 1)
	c := r.keeping()
	p := kept(t, c, size)
	ctx, cancel := context.WithCancel(context.Background())
	r.Deny(func(_, to dsmpacket.Pointer) bool {
		if to.Op() == dsmpacket.OpWrite && to.Offset() > p.Offset()+size/2 {
			cancel()
			return true
		}
		return false
	})
	if n, err := c.Write(ctx, p, bytes.Repeat([]byte{1}, size)); err == nil || n == size {
		t.Fatalf("wrote %d bytes: %v", n, err)
	}
	r.Deny(func(_, _ dsmpacket.Pointer) bool { return false })
	b := make([]byte, size)
	_, err := c.Read(context.Background(), p, b)
	must(t, err)
	if bytes.IndexByte(b, 0xaa) >= 0 {
		t.Error("an earlier user's bytes are seen")
	}
}

// TestExecutionsKeepNothing: what an execution does with regions goes to the memory
// blade, which may have to take it back.
func TestExecutionsKeepNothing(t *testing.T) {
	r := newRack(t, wire.Config{}, 1)
	c, ctx := r.keeping(), context.Background()
	p := kept(t, c, 4096)
	execution := &memrack.Execution{ID: [16]byte{1}}
	e := c.With(dsmclient.Scope{Execution: execution.ID}, execution)
	_, err := e.Read(ctx, p, make([]byte, 1)) // of its node's own region
	must(t, err)
	must(t, c.Free(ctx, p)) // is not kept any more
	if err := e.Free(ctx, p); fault.CodeOf(err) != fault.NotFound {
		t.Errorf("the execution's free: %v", err)
	}
	for range 4 {
		p, err := e.Alloc(ctx, 4096)
		must(t, err)
		must(t, e.Free(ctx, p))
	}
	must(t, c.Free(ctx, kept(t, c, 64)))
	p = kept(t, c, 64)
	must(t, c.Free(ctx, p))
	if err := e.Free(ctx, p); fault.CodeOf(err) != fault.PermissionDenied {
		t.Errorf("the execution's free of what was freed: %v", err)
	}
	if n := r.used(); n != 4*4096+64 {
		t.Errorf("%d bytes are in use, want all that the execution has allocated", n)
	}
	r.Commit(c, 1, execution)
	if n := r.used(); n != 64 {
		t.Errorf("%d bytes are in use, want those that wait to be used again", n)
	}
}

// TestBeyondKept: what reaches beyond a region's end is refused as ever, and leaves no
// trace.
func TestBeyondKept(t *testing.T) {
	r := newRack(t, wire.Config{}, 1)
	c, ctx := r.keeping(), context.Background()
	p := kept(t, c, 4096)
	if _, err := c.Write(ctx, p.Add(4000), make([]byte, 200)); fault.CodeOf(err) != fault.BadRequest {
		t.Errorf("write across the end: %v", err)
	}
	must(t, c.Free(ctx, p))
	q, err := c.Alloc(ctx, 4096)
	must(t, err)
	b := []byte{1}
	_, err = c.Read(ctx, q, b)
	must(t, err)
	if p != q || b[0] != 0 {
		t.Errorf("%s holds %d, want 0 in %s", q, b[0], p)
	}
}

// TestKeptRegionsAreGivenBack after a while, and when memory is short.
func TestKeptRegionsAreGivenBack(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRack(t, memrack.Virtual(1, 1500), 1)
		c := r.keeping()
		kept(t, c, 4096)
		must(t, c.Free(t.Context(), kept(t, c, 64)))
		<-time.After(time.Minute)
		if n := r.used(); n != 4096 {
			t.Errorf("%d bytes are in use, want those of the one region that was not freed", n)
		}
	})
}

func TestKeptRegionsAreNoObstacle(t *testing.T) {
	r := newRack(t, wire.Config{}, 1)
	c, ctx := r.keeping(), context.Background()
	must(t, c.Free(ctx, kept(t, c, 1<<20)))
	all, err := c.Alloc(ctx, r.Capacity)
	must(t, err)
	must(t, c.Free(ctx, all))
}

// TestAllocatedAhead: a node whose regions go to others has the next ones in store, new
// ones each time.
func TestAllocatedAhead(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRack(t, memrack.Virtual(1, 1500), 3)
		c, ctx := r.keeping(), t.Context()
		had := map[dsmclient.Pointer]bool{}
		for range 200 {
			p, err := c.Alloc(ctx, 4096)
			must(t, err)
			if had[p] {
				t.Fatalf("%s is given out twice", p)
			}
			had[p] = true
			got := make([]byte, 4096)
			_, err = c.Read(ctx, p, got)
			must(t, err)
			if !bytes.Equal(got, make([]byte, 4096)) {
				t.Fatal("it is not zero")
			}
			_, err = c.Write(ctx, p, fill(4096, 1))
			must(t, err)
			must(t, c.HandOver(ctx, p))
			c.Gave(p)
		}
		if n := r.allocated(); n <= 200 {
			t.Errorf("%d regions made for 200: none ahead", n)
		}
	})
}

// TestFreedLater: what an answer has brought is freed though nobody waits for it.
func TestFreedLater(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRack(t, memrack.Virtual(1, 1500), 3)
		c, ctx := r.keeping(), t.Context()
		for range 100 {
			p, err := c.Alloc(ctx, 4096)
			must(t, err)
			must(t, c.HandOver(ctx, p)) // as if another node had
			c.Gave(p)
			c.Gained(p)
			must(t, c.Free(ctx, p))
			if c.Free(ctx, p) == nil {
				t.Error("it is freed twice")
			}
		}
		<-time.After(time.Minute)
		if n := r.used(); n != 0 {
			t.Errorf("%d bytes are in use", n)
		}
	})
}
