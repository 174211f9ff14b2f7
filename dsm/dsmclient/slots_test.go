package dsmclient_test

import (
	"context"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmclient"
	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/memrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
)

// level checks that copies of a machine have the same regions, and how many.
func level(t *testing.T, r *rack, n int) {
	t.Helper()
	for i, s := range r.Copies(1) {
		list, err := s.Regions(control.Regions{})
		must(t, err)
		if len(list.Regions) != n {
			t.Errorf("copy %d has %d regions, want %d", i, len(list.Regions), n)
		}
	}
}

// A region that one copy makes, and the other one has no room for, is freed. However often that happens, the slots stay good: when there is room, the
// copies make regions in all of them again.
func TestAlloc_OneCopyFull(t *testing.T) {
	for _, small := range []int{0, 1} {
		judgedPair(t, small, func(t *testing.T, r *rack) {
			c, ctx := r.Client(1, 1), context.Background()
			all := alloc(t, c, 1<<16) // all that the small one has
			for range 64 * (dsmpacket.MostAhead + 2) {
				_, err := c.Alloc(ctx, 64)
				want(t, err, fault.NoSpace, true)
				<-time.After(20 * time.Millisecond)
			}
			level(t, r, 1)
			must(t, c.Free(ctx, all))
			<-time.After(2 * time.Second)
			var made []dsmclient.Pointer
			for range 64 {
				made = append(made, alloc(t, c, 64))
			}
			level(t, r, 64)
			must(t, c.FreeOwed(ctx, made...))
			level(t, r, 0)
		})
	}
}

// What one copy takes is too new for another one, which has not seen the slot's former generations. The other one learns them.
func TestAlloc_TooNew(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newImpairedRack(t, memrack.Virtual(1, 1500), 1, wire.Impairment{})
		defer r.Close()
		r.Rights()
		first, ctx := r.Client(1, 1), context.Background()
		for range 2 * dsmpacket.MostAhead {
			var all []dsmclient.Pointer
			for range 64 {
				all = append(all, alloc(t, first, 64))
			}
			must(t, first.FreeOwed(ctx, all...))
			<-time.After(2 * time.Second)
		}
		must(t, first.Close())
		r.Mirror(1, r.Capacity)
		c := r.Client(1, 2)
		for made := 0; made < 64; {
			switch _, err := c.Alloc(ctx, 64); fault.CodeOf(err) {
			case fault.OK:
				made++
			case fault.NoSpace:
				<-time.After(time.Second)
			default:
				t.Fatal(err)
			}
		}
		level(t, r, 64)
	})
}

// judgedPair is a rack whose machine has two copies, of which one is small.
func judgedPair(t *testing.T, small int, f func(t *testing.T, r *rack)) {
	t.Helper()
	judgedSizes(t, [2]uint64{1 << 20 >> (4 * (1 - small)), 1 << 20 >> (4 * small)}, f)
}

func judgedSizes(t *testing.T, sizes [2]uint64, f func(t *testing.T, r *rack)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		r := newImpairedRack(t, memrack.Virtual(1, 1500), 0, wire.Impairment{})
		defer r.Close()
		r.Capacity = sizes[0]
		r.AddMemory()
		r.Mirror(1, sizes[1])
		r.Rights()
		f(t, r)
	})
}
