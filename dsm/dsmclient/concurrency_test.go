package dsmclient_test

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmclient"
	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/memrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
)

// Whoever waits may be the one who reads the network for all: it must not matter
// who that is, nor when it stops waiting.
func TestWaitersReadForEachOther(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRack(t, memrack.Virtual(1, 0), 1)
		c := r.Client(1, 1)
		p, lost := alloc(t, c, 4096), dsmpacket.Make(prefix, 9, dsmpacket.IDOf(0, 1))
		ctx, cancel := context.WithCancel(t.Context())
		var waiting, working sync.WaitGroup
		for i := range 5 { // they read, and will never be answered
			waiting.Go(func() {
				ctx, cancel := context.WithTimeout(ctx, time.Duration(i+1)*3*time.Millisecond)
				defer cancel()
				_, err := c.Write(ctx, lost, make([]byte, 8))
				want(t, err, fault.Deadline, false)
			})
		}
		for i := range 5 {
			working.Go(func() {
				at, b, got := p.Add(int64(i*64)), bytes.Repeat([]byte{byte(i)}, 64), make([]byte, 64)
				for range 200 {
					if n, err := c.Write(t.Context(), at, b); n != 64 || err != nil {
						t.Errorf("write: %d, %v", n, err)
					}
					if n, err := c.Read(t.Context(), at, got); n != 64 || err != nil || !bytes.Equal(b, got) {
						t.Errorf("read: %d, %v, %v", n, err, got)
					}
					<-time.After(100 * time.Microsecond) // virtual: spreads the work over the waits
				}
			})
		}
		working.Wait()
		waiting.Wait()
		cancel()
		if _, err := c.Read(t.Context(), p, make([]byte, 8)); err != nil {
			t.Error(err)
		}
	})
}

// A cancelled operation is settled although nobody waits for anything.
func TestSettledInTheBackground(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newImpairedRack(t, memrack.Virtual(1, 0), 1, wire.Impairment{Delay: time.Millisecond})
		c := r.Client(1, 1)
		p := alloc(t, c, 64)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Millisecond)
		defer cancel()
		_, err := c.Write(ctx, p, make([]byte, 8))
		want(t, err, fault.Deadline, false)
		<-time.After(6 * time.Millisecond) // a round trip and a half, and no timeout
		start := time.Now()
		if err := c.Settle(t.Context(), p); err != nil || time.Since(start) > 0 {
			t.Errorf("settling took %v: %v", time.Since(start), err)
		}
		_, err = c.Alloc(ctx, 64)
		want(t, err, fault.Deadline, false)
		ctx, cancel = context.WithTimeout(t.Context(), time.Microsecond)
		defer cancel()
		_, err = c.Alloc(ctx, 64)
		want(t, err, fault.Deadline, false)
		<-time.After(6500 * time.Microsecond) // a round trip and a half, and no timer
		if used := r.Memories[0].Used(); used != 64 {
			t.Errorf("%d bytes are allocated: the cancelled allocation was not given back", used)
		}
		if done := r.Memories[0].Metrics().Done; done["settle"] != 1 || done["free"] != 1 {
			t.Errorf("%v", done)
		}
	})
}

func TestConcurrentClients(t *testing.T) {
	r := newRack(t, wire.Config{}, 2)
	var running sync.WaitGroup
	for node := range uint64(3) {
		c := r.Client(node+1, 1)
		for worker := range uint64(4) {
			running.Go(func() { shuffle(t, c, node<<4|worker) })
		}
	}
	running.Wait()
}

func TestClose(t *testing.T) {
	r := newRack(t, wire.Config{}, 1)
	c := r.Client(1, 1)
	p, lost := alloc(t, c, 64), dsmpacket.Make(prefix, 9, dsmpacket.IDOf(0, 1))
	var running, allocs sync.WaitGroup
	for range 4 {
		allocs.Add(1)
		running.Go(func() {
			_, err := c.Write(context.Background(), lost, make([]byte, 8))
			want(t, err, fault.Canceled, false)
		})
		running.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
			defer cancel()
			_, err := c.Alloc(ctx, 1<<30)
			want(t, err, fault.NoSpace, true)
			allocs.Done()
			_, err = c.Read(ctx, lost, make([]byte, 1<<20))
			want(t, err, fault.Canceled, false)
		})
	}
	allocs.Wait()
	must(t, c.Close())
	running.Wait()
	must(t, c.Close())
	for _, c := range []*dsmclient.Client{c, c.With(dsmclient.Scope{}, nil)} {
		_, err := c.Read(context.Background(), p, make([]byte, 8))
		want(t, err, fault.Canceled, false)
		want(t, c.Settle(context.Background(), p), fault.Canceled, false)
	}
}

// The header says on whose behalf an operation is, and which one.
func TestScopeOnTheWire(t *testing.T) {
	var mu sync.Mutex
	seen := map[uint64]dsmpacket.Header{} // by request id: one may come again
	r := newRack(t, wire.Config{OnFrame: func(f wire.Frame) {
		p, err := frame.Parse(f.Data)
		if err != nil || f.Stage != wire.Arriving || !f.ToSwitch {
			return
		}
		if u, err := p.UDP(); err == nil {
			if h, _, err := dsmpacket.Parse(u.Payload); err == nil && h.Kind == dsmpacket.Request && dsmpacket.FromAddr(u.Dst.Addr()).Op() != dsmpacket.OpSlots {
				mu.Lock()
				seen[h.Request] = h
				mu.Unlock()
			}
		}
	}}, 1)
	c := r.Client(1, 7)
	scope := dsmclient.Scope{Execution: [16]byte{1, 2, 3}, Branch: 5}
	in, before := c.With(scope, new(memrack.Execution)), alloc(t, c, 64)
	p := alloc(t, in, 1<<18)
	buf := make([]byte, 1<<17) // several datagrams
	if _, err := in.Write(t.Context(), p, buf); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(t.Context(), p, buf[:1]); err != nil {
		t.Fatal(err)
	}
	must(t, in.Free(t.Context(), p))      // sends nothing
	must(t, in.Free(t.Context(), before)) // asks whether it may
	mu.Lock()
	defer mu.Unlock()
	ids := slices.Sorted(maps.Keys(seen))
	for i, want := range []dsmpacket.Header{
		{},
		{Execution: scope.Execution, Branch: 5, Index: 0},
		{Execution: scope.Execution, Branch: 5, Index: 1},
		{Execution: scope.Execution, Branch: 5, Index: 1},
		{Execution: scope.Execution, Branch: 5, Index: 1},
		{},
		{Execution: scope.Execution, Branch: 5, Index: 3},
	} {
		h := seen[ids[i]]
		if h.Execution != want.Execution || h.Branch != want.Branch || h.Index != want.Index || h.Incarnation != 7 {
			t.Errorf("request %d: %+v, want %+v", i+1, h, want)
		}
	}
}
