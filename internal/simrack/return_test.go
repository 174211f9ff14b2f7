package simrack_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/examples/counter/gen-go/counter"
	"github.com/bifrost-rack/bifrost/examples/counter/tally"
	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
	"github.com/bifrost-rack/bifrost/rpc"
)

// Memory blades that were cut off, and return with their content.

// lender is a Counter that lends what it is lent to a child before it writes. While its
// memory is away it waits.
type lender struct {
	*tally.Counter
	child *counter.FrontRefClient
}

func (l *lender) Add(ctx context.Context, account int32, amounts *rpc.Ref[[]byte]) (int64, error) {
	if _, err := l.child.Add(ctx, account, amounts); err != nil {
		return 0, err
	}
	return l.retry(ctx, account, amounts)
}

func (l *lender) retry(ctx context.Context, account int32, amounts *rpc.Ref[[]byte]) (int64, error) {
	for {
		total, err := l.Counter.Add(ctx, account, amounts)
		if rpc.CodeOf(err) != rpc.Unavailable || ctx.Err() != nil {
			return total, err
		}
		<-time.After(50 * time.Millisecond) // virtual
	}
}

// maker is a lender that lends what it has allocated itself.
type maker struct{ lender }

func (m *maker) Add(ctx context.Context, account int32, amounts *rpc.Ref[[]byte]) (int64, error) {
	mine := rpc.RefOf(make([]byte, 1<<16))
	if _, err := m.child.Add(ctx, account, mine); err != nil {
		return 0, err
	}
	total, err := m.retry(ctx, account, amounts)
	if err == nil {
		err = mine.Free(ctx)
	}
	return total, err
}

// child serves what a lender calls. It only reads, so it has nothing to commit.
type child struct{ called func() }

func (c *child) Add(ctx context.Context, _ int32, amounts *rpc.Ref[[]byte]) (int64, error) {
	_, err := amounts.Load(ctx)
	if c.called != nil {
		c.called()
	}
	return 0, err
}

// TestLateRollback: a rollback that was asked of a memory blade which then failed does
// not reach the blade when it is back, where the next run has written meanwhile.
//
//	counter dies; its child still reads, so its rollback waits
//	link of m1 down ─ child returns ─ rollback is asked ─ m1 has failed ─ the next run begins
//	link of m1 up ─ m1 catches up ─ the next run writes ─ (the rollback comes now) ─ commit
func TestLateRollback(t *testing.T) {
	step := 200 * time.Millisecond
	if testing.Short() { // with the race detector
		step = time.Second
	}
	for after := 3 * time.Second; after < 7*time.Second; after += step {
		t.Run(after.String(), func(t *testing.T) {
			withBank(t, oneMemory(), func(b *bank) {
				server, err := b.Join(b.ctx, "s3", "child")
				b.must(err)
				c := new(child)
				b.must(counter.ExportFront(b.ctx, server, tally.FrontName, c))
				b.wrap = func(c *tally.Counter, node *rpc.Node) counter.CounterRefHandler {
					return &lender{c, counter.OpenFront(node, tally.FrontName)}
				}
				b.deploy("counter")
				to, _ := b.client("c1", tally.CounterName)
				b.add(to, 1)
				back := make(chan struct{})
				c.called = func() {
					c.called = nil
					b.crash("counter/p/1")
					<-time.After(time.Second) // virtual: it is fenced
					b.Host("m1").SetLink(false)
					time.AfterFunc(after, func() {
						b.Host("m1").SetLink(true)
						close(back)
					})
				}
				b.on(&b.entered, func(string) {
					<-back
					<-time.After(3 * time.Second) // virtual: what was asked would have been asked again
				})
				b.add(to, 2)
				b.add(to, 3)
			})
		})
	}
}

// TestReturn_CommitsWhatHasEnded: a memory blade is cut off while an execution has changed it. The
// blade has failed, so the call waits for it, and is answered when the blade has committed.
func TestReturn_CommitsWhatHasEnded(t *testing.T) {
	withBank(t, oneMemory(), func(b *bank) {
		b.deploy("counter")
		to, _ := b.client("c1", tally.CounterName)
		b.add(to, 1)
		b.on(&b.entered, func(string) {
			b.Host("m1").SetLink(false) // neither the outcome nor the commit arrives
			time.AfterFunc(10*time.Second, func() { b.Host("m1").SetLink(true) })
		})
		ref := rpc.RefOf([]byte{1})
		if got, err := to.Add(b.ctx, 3, ref); err != nil || got != 2 {
			t.Errorf("added: %d, %v; want 2", got, err)
		}
		<-time.After(20 * time.Second) // virtual: the blade is back
		b.must(ref.Free(b.ctx))
		if u := b.MemoryServer("m1").Metrics().Undo; u.Executions != 0 || u.Rollbacks != 0 {
			t.Errorf("the blade keeps undo: %+v", u)
		}
		b.add(to, 3)
	})
}

// TestRerunFindsItsRegions: an execution has lent what it had allocated, and is run again
// while the memory blade that has the region is away, or takes no allocations. The next
// run lends the same region, although there is another blade to allocate on.
func TestRerunFindsItsRegions(t *testing.T) {
	for name, away := range map[string]func(b *bank){
		"cut off for some time": func(b *bank) {
			b.Host("m1").SetLink(false)
			time.AfterFunc(10*time.Second, func() { b.Host("m1").SetLink(true) })
			<-time.After(5 * time.Second) // virtual: it has failed
		},
		"draining": func(b *bank) { b.must(b.Gatekeeper().Drain(b.ctx, "m1", "test")) },
	} {
		t.Run(name, func(t *testing.T) {
			withBank(t, twoMemories(), func(b *bank) {
				server, err := b.Join(b.ctx, "s3", "child")
				b.must(err)
				c := new(child)
				b.must(counter.ExportFront(b.ctx, server, tally.FrontName, c))
				b.wrap = func(c *tally.Counter, node *rpc.Node) counter.CounterRefHandler {
					return &maker{lender{c, counter.OpenFront(node, tally.FrontName)}}
				}
				b.deploy("counter")
				to, _ := b.client("c1", tally.CounterName)
				b.add(to, 1)
				c.called = func() {
					c.called = nil
					b.crash("counter/p/1")
					away(b)
				}
				b.add(to, 2)
				b.add(to, 3)
			})
		})
	}
}

// TestRerunWaitsForReaders: an execution has lent what it had allocated to a call of policy
// none, and is run again while that call still reads. The next run gets the same region, and
// may free it.
func TestRerunWaitsForReaders(t *testing.T) {
	withBank(t, oneMemory(), func(b *bank) {
		server, err := b.Join(b.ctx, "s3", "child")
		b.must(err)
		c := new(child)
		b.must(counter.ExportFront(b.ctx, server, tally.FrontName, c))
		b.wrap = func(c *tally.Counter, node *rpc.Node) counter.CounterRefHandler {
			return &maker{lender{c, counter.OpenFront(node, tally.FrontName, rpc.WithPolicy(rpc.PolicyNone))}}
		}
		b.deploy("counter")
		to, _ := b.client("c1", tally.CounterName)
		b.add(to, 1)
		c.called = func() {
			c.called = nil
			b.crash("counter/p/1")
			<-time.After(3 * time.Second) // virtual: the next run could have begun
		}
		b.add(to, 2)
	})
}

// withTwoSingles runs f on a rack whose pair has the ledgers, and too little room for a region of 2 MiB:
// that is on m3, or on m4, which drains.
func withTwoSingles(t *testing.T, f func(r *shelf)) {
	t.Helper()
	blades := append(simrack.Thesis(), simrack.Blade{Name: "m4", Kind: control.Memory})
	for i := range blades {
		blades[i].Capacity = 1 << 20
		if blades[i].Name == "m3" || blades[i].Name == "m4" {
			blades[i].Capacity = 8 << 20
		}
	}
	withShelves(t, new(shelf), blades, func(r *shelf) {
		if err := r.Gatekeeper().Drain(r.Context(), "m4", "test"); err != nil {
			t.Fatal(err)
		}
		<-time.After(2 * time.Second) // virtual: everybody knows that
		f(r)
	})
}

// TestRerunFindsItsRegions_Away: an execution is run again, and the memory blade that has its region is
// cut off before the execution allocates. The next run waits for the blade, and gets the same region,
// though another blade has room.
func TestRerunFindsItsRegions_Away(t *testing.T) {
	withTwoSingles(t, func(r *shelf) {
		m3, first := r.Host("m3"), dsm.Pointer{}
		r.call(func(ctx context.Context, _ *dsm.Pointer) error {
			run := r.runs.Load()
			if run == 2 {
				m3.SetLink(false)
				time.AfterFunc(10*time.Second, func() { m3.SetLink(true) })
				<-time.After(5 * time.Second) // virtual: it has failed
			}
			mine, err := rpc.Memory(ctx).Alloc(ctx, 2<<20)
			switch {
			case err != nil:
				return err
			case run == 1:
				first = mine
				if err := r.Gatekeeper().ReturnToService(ctx, "m4"); err != nil {
					t.Error(err)
				}
				return r.kill(ctx)
			case mine != first:
				t.Errorf("run %d gets %s, the first one got %s", run, mine, first)
			}
			return nil
		})
		r.regions(0)
	})
}

// TestRerunFindsUnheardRegion: the answer to an allocation is lost with its execution's
// node, and the memory blade is away when the node is back. The next run waits for the blade, and
// gets the region that the first one never heard of, though another blade has room.
func TestRerunFindsUnheardRegion(t *testing.T) {
	withTwoSingles(t, func(r *shelf) {
		m3 := r.Host("m3")
		r.call(func(ctx context.Context, _ *dsm.Pointer) error {
			run := r.runs.Load()
			if _, err := rpc.Memory(ctx).Alloc(ctx, 1<<30); rpc.CodeOf(err) != rpc.NoSpace { // so that the node has slots on the machine
				t.Errorf("run %d has all of the memory: %v", run, err)
			}
			if run == 1 {
				m3.Impair(wire.Impairment{Loss: 1}, wire.Impairment{}) // it allocates, and nobody hears of it
				time.AfterFunc(time.Second, func() {
					m3.SetLink(false)
					if err := errors.Join(r.KillSoon("s1", "app/p/1"), r.Gatekeeper().ReturnToService(r.Context(), "m4")); err != nil {
						t.Error(err)
					}
				})
				time.AfterFunc(10*time.Second, func() {
					m3.Impair(wire.Impairment{}, wire.Impairment{})
					m3.SetLink(true)
				})
			}
			mine, err := rpc.Memory(ctx).Alloc(ctx, 2<<20)
			if used := r.MemoryServer("m4").Used(); err == nil && (run != 2 || used != 0) {
				t.Errorf("run %d gets %s, and m4 has %d bytes", run, mine, used)
			}
			return err
		})
		r.regions(0)
		<-time.After(5 * time.Second) // virtual
		for _, m := range []string{"m3", "m4"} {
			if used := r.MemoryServer(m).Used(); used != 0 {
				t.Errorf("%s still has %d bytes", m, used)
			}
		}
	})
}

// TestClockSetBack: a memory blade boots again, and its clock is behind that of its former
// boot. It hands out none of the addresses that the former boot has handed out.
func TestClockSetBack(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		var back atomic.Int64 // by how much the clock is wrong
		r, err := simrack.Start(ctx, simrack.Config{
			Blades: oneMemory(), Disk: new(wal.Disk), Schedule: &wire.Schedule{Seed: 1, Quiesce: synctest.Wait},
			Clock: func() time.Time { return time.Now().Add(-time.Duration(back.Load())) },
		})
		must(err)
		events := r.Gatekeeper().Subscribe(ctx)
		had := map[dsm.Pointer]int{}
		for boot := range 4 {
			node, err := r.Join(ctx, "c1", fmt.Sprint("client", boot)) // it asks the machine which generations there were
			must(err)
			for range 100 {
				p, err := node.Memory().Alloc(ctx, 1<<16)
				must(err)
				if o, again := had[p]; again && o != boot {
					t.Fatalf("boot %d hands out %s, as boot %d did", boot, p, o)
				}
				had[p] = boot
				must(node.Memory().Free(ctx, p))
			}
			must(node.Close(ctx))
			back.Add(int64(time.Hour))
			must(r.CrashBlade("m1"))
			<-time.After(5 * time.Second) // virtual: it has failed
			must(r.BootBlade("m1"))
			for e := range events {
				if e.Kind == gatekeeper.BladeUp && e.Blade == "m1" {
					break
				}
			}
			<-time.After(2 * time.Second) // virtual: the client's blade has heard of it
		}
		must(r.Close())
	})
}

// oneMemory is a rack whose regions are all on one memory blade.
func oneMemory() []simrack.Blade {
	return []simrack.Blade{
		{Name: "c1", Kind: control.Compute}, {Name: "s1", Kind: control.Compute}, {Name: "s2", Kind: control.Compute},
		{Name: "s3", Kind: control.Compute}, {Name: "m1", Kind: control.Memory},
	}
}
