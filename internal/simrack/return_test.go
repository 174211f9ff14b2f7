package simrack_test

import (
	"context"
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

// TestReturn_CommitsWhatHasEnded: a memory blade is cut off when it is asked to commit
// an execution. It has failed, so the call goes on without it. When the blade is back, it
// commits what has ended before it serves the next call.
func TestReturn_CommitsWhatHasEnded(t *testing.T) {
	withBank(t, oneMemory(), func(b *bank) {
		b.deploy("counter")
		to, _ := b.client("c1", tally.CounterName)
		b.add(to, 1)
		b.on(&b.entered, func(string) {
			b.Host("m1").SetLink(false) // the answer is logged, and the commit does not arrive
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

// TestRerunFindsTheLatestRegion: the answer to an allocation is lost with its execution's
// node, and the next run allocates on another memory blade, as that one is away, and lends
// what it got. The run after that has both blades, and lends the same region again, not
// the first one.
func TestRerunFindsTheLatestRegion(t *testing.T) {
	withBank(t, twoMemories(), func(b *bank) {
		server, err := b.Join(b.ctx, "s3", "child")
		b.must(err)
		c := new(child)
		b.must(counter.ExportFront(b.ctx, server, tally.FrontName, c))
		first := func() {}
		b.wrap = func(c *tally.Counter, node *rpc.Node) counter.CounterRefHandler {
			m := &maker{lender{c, counter.OpenFront(node, tally.FrontName)}}
			return beginner{m, func() { first() }}
		}
		b.must(b.Gatekeeper().Drain(b.ctx, "m2", "test"))
		<-time.After(2 * time.Second) // virtual: everybody knows that
		b.deploy("counter")
		to, _ := b.client("c1", tally.CounterName)
		b.add(to, 1)
		first = func() {
			first = func() {}
			b.Host("m1").Impair(wire.Impairment{Loss: 1}, wire.Impairment{}) // it allocates, and nobody hears of it
			time.AfterFunc(time.Second, func() {
				b.Host("m1").SetLink(false)
				b.crash("counter/p/1")
				b.must(b.Gatekeeper().ReturnToService(b.ctx, "m2"))
			})
		}
		lent := 0
		c.called = func() {
			if lent++; lent > 1 {
				t.Error("another region was lent")
			}
			b.Host("m1").Impair(wire.Impairment{}, wire.Impairment{})
			b.Host("m1").SetLink(true)
			<-time.After(10 * time.Second) // virtual: it is back
			b.crash("counter/p/1")
			c.called = nil
		}
		b.add(to, 2)
		b.add(to, 3)
	})
}

// beginner is a handler that says when it begins.
type beginner struct {
	counter.CounterRefHandler
	begins func()
}

func (b beginner) Add(ctx context.Context, account int32, amounts *rpc.Ref[[]byte]) (int64, error) {
	b.begins()
	return b.CounterRefHandler.Add(ctx, account, amounts)
}

// TestClockSetBack: a memory blade boots again, and its clock is behind that of its former
// boot. It hands out none of the addresses that the former boot has handed out.
func TestClockSetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
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
		node, err := r.Join(ctx, "c1", "client")
		must(err)
		had := map[dsm.Pointer]int{}
		for boot := range 4 {
			for range 100 {
				p, err := node.Memory().Alloc(ctx, 1<<16)
				must(err)
				if o, again := had[p]; again && o != boot {
					t.Fatalf("boot %d hands out %s, as boot %d did", boot, p, o)
				}
				had[p] = boot
				must(node.Memory().Free(ctx, p))
			}
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
