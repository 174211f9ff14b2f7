package rpc_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/internal/testrack"
	"github.com/bifrost-rack/bifrost/rpc/internal/testsvc"
)

// bad is what a network may do: 5 % of the packets lost, doubled, overtaken, or
// late by up to five seconds.
var bad = wire.Impairment{
	Delay: 10 * time.Microsecond, Jitter: 20 * time.Microsecond,
	Loss: 0.05, Duplicate: 0.05, Reorder: 0.05, Late: 0.05,
}

// virtual runs f in virtual time with a server and a client on a bad network.
func virtual(t *testing.T, seed uint64, opts []rpc.ExportOption, f func(t *testing.T, p *pair)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		r := testrack.New(t, wire.Config{Schedule: &wire.Schedule{Seed: seed, Quiesce: synctest.Wait}})
		p := &pair{rack: r, handler: &testsvc.Handler{}}
		p.server = serve(t, r, p.handler, opts...)
		p.caller = joinNode(t, r, "client")
		p.client = p.newClient()
		for _, host := range []string{"server", "client"} {
			r.Net.Host(host).Impair(bad, bad)
		}
		f(t, p)
	})
}

// Every call is run once and answered right, whatever the network does to it.
func TestBadNetwork(t *testing.T) {
	for _, callers := range []int{1, 16, 256} {
		t.Run(fmt.Sprint("callers=", callers), func(t *testing.T) {
			virtual(t, uint64(callers), nil, func(t *testing.T, p *pair) {
				const total = 2048
				var wg sync.WaitGroup
				for i := range callers {
					wg.Go(func() {
						c := p.newClient()
						for n := i; n < total; n += callers {
							if got, err := c.Count(t.Context(), int64(n)); got != 1 || err != nil {
								t.Errorf("call %d: run %d times, %v", n, got, err)
							}
						}
					})
				}
				wg.Wait()
				if n := len(p.handler.Counts()); n != total {
					t.Errorf("%d of %d calls were run", n, total)
				}
				if s := p.caller.Stats(); s.Resent == 0 || p.server.Stats().Duplicates == 0 {
					t.Errorf("the network was good: %+v", s)
				}
			})
		})
	}
}

// One-ways arrive, once.
func TestOnewayOnBadNetwork(t *testing.T) {
	virtual(t, 1, nil, func(t *testing.T, p *pair) {
		const total = 500
		for n := range int64(total) {
			if err := p.client.Note(t.Context(), n); err != nil {
				t.Fatal(err)
			}
		}
		closeNode(t, p.caller)
		closeNode(t, p.server)
		notes := p.handler.Notes()
		for n := range int64(total) {
			if notes[n] != 1 {
				t.Errorf("one-way %d was run %d times", n, notes[n])
			}
		}
	})
}

// With deadlines a call may fail; it is run at most once, and not after the
// callee has heard of a later one.
func TestDeadlinesOnBadNetwork(t *testing.T) {
	virtual(t, 7, nil, func(t *testing.T, p *pair) {
		var late, served int
		for n := range int64(500) {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
			_, err := p.client.Count(ctx, n)
			cancel()
			switch rpc.CodeOf(err) {
			case rpc.OK:
				served++
			case rpc.Deadline:
				late++
			default:
				t.Fatalf("call %d: %v", n, err)
			}
		}
		pass(time.Minute) // the last late packet arrives
		for n, times := range p.handler.Counts() {
			if times != 1 {
				t.Errorf("call %d was run %d times", n, times)
			}
		}
		if late == 0 || served < 300 {
			t.Errorf("%d answered, %d late", served, late)
		}
	})
}

// A stateful service runs one call at a time.
func TestStatefulRunsOneAtATime(t *testing.T) {
	virtual(t, 3, []rpc.ExportOption{rpc.WithState(noState{})}, func(t *testing.T, p *pair) {
		var running, most atomic.Int32
		p.handler.Gate = func(context.Context, int64) error {
			if n := running.Add(1); n > most.Load() {
				most.Store(n)
			}
			pass(3 * time.Millisecond)
			running.Add(-1)
			return nil
		}
		var wg sync.WaitGroup
		for i := range int64(20) {
			wg.Go(func() {
				if _, err := p.newClient().Count(t.Context(), i); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if most.Load() != 1 {
			t.Errorf("%d calls ran at once", most.Load())
		}
	})
}

// A callee that is away for a while answers when it is back; the caller does not
// flood the network meanwhile.
func TestCalleeAway(t *testing.T) {
	virtual(t, 4, nil, func(t *testing.T, p *pair) {
		p.rack.Net.Host("server").SetLink(false)
		time.AfterFunc(time.Minute, func() { p.rack.Net.Host("server").SetLink(true) })
		start := time.Now()
		if _, err := p.client.Add(t.Context(), 1, 1); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(start); d < time.Minute || d > 2*time.Minute {
			t.Errorf("answered after %v", d)
		}
		if n := p.caller.Stats().Resent; n < 50 || n > 150 {
			t.Errorf("sent again %d times in a minute", n)
		}
	})
}

// pass lets virtual time pass: a handler works, packets arrive.
func pass(d time.Duration) { <-time.After(d) }
