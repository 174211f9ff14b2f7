package simrack_test

import (
	"context"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/examples/counter/gen-go/counter"
	"github.com/bifrost-rack/bifrost/examples/counter/tally"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/simrack"
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
	for {
		total, err := l.Counter.Add(ctx, account, amounts)
		if rpc.CodeOf(err) != rpc.Unavailable || ctx.Err() != nil {
			return total, err
		}
		<-time.After(50 * time.Millisecond) // virtual
	}
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
	for after := 3 * time.Second; after < 7*time.Second; after += 200 * time.Millisecond {
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

// oneMemory is a rack whose regions are all on one memory blade.
func oneMemory() []simrack.Blade {
	return []simrack.Blade{
		{Name: "c1", Kind: control.Compute}, {Name: "s1", Kind: control.Compute}, {Name: "s2", Kind: control.Compute},
		{Name: "s3", Kind: control.Compute}, {Name: "m1", Kind: control.Memory},
	}
}
