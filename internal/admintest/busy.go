// Package admintest is what tests of the admin API stand on: a rack at work, a
// Gatekeeper that has stopped, and requests over HTTP.
package admintest

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/examples/arrays/service"
	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/idl/bifrost"
)

// Busy is a rack in the middle of its work, at rest: c1 controls two regions and
// calls s2 with both, whose handler waits and has called s1 with one of them.
// s1's attempts to write were denied. The Gatekeeper has heard of both calls from their callees.
type Busy struct {
	*simrack.Rack
	T                      testing.TB
	Ctx                    context.Context // ends after a minute
	Caller, Callee, Nested *rpc.Node
	A, B, Own              dsm.Pointer // the two regions of Caller, and one of Nested
	Broken                 atomic.Bool // a memory blade has been failed, which may hold what the calls need
	Finish                 func()      // lets the calls return; then nothing is left but the regions
	calls                  sync.WaitGroup
}

// waiting is the Arrays service whose handlers wait.
type waiting struct {
	service.Arrays
	nest    func(ctx context.Context, p *bifrost.GlobalPointer) error // nil for the innermost
	entered chan struct{}
	resume  chan struct{}
}

func (w *waiting) AddRef(ctx context.Context, a *bifrost.GlobalPointer, n int64, b *bifrost.GlobalPointer, m int64) (*bifrost.GlobalPointer, error) {
	if err := w.nest(ctx, a); err != nil {
		return nil, err
	}
	return w.Arrays.AddRef(ctx, a, n, b, m)
}

func (w *waiting) IncrementRef(ctx context.Context, p *bifrost.GlobalPointer, n int64, delta int8) (*bifrost.GlobalPointer, error) {
	close(w.entered)
	select {
	case <-w.resume:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return w.Arrays.IncrementRef(ctx, p, n, delta)
}

// idle is a program that does nothing until it is told to end.
func idle(ctx context.Context, _ join.Joiner, _ control.Start) error {
	<-ctx.Done()
	return nil
}

// report is a job that is done at once.
func report(ctx context.Context, j join.Joiner, _ control.Start) error {
	n, err := rpc.Join(join.NewContext(ctx, j))
	if err != nil {
		return err
	}
	return n.Close(ctx)
}

// StartBusy brings the rack up and to rest. Programs with the names of former have joined and left before: the incarnations of the others have other
// numbers, and their calls other ids, as after a restart of the Gatekeeper.
func StartBusy(t testing.TB, former ...string) *Busy {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	rack, err := simrack.Start(ctx, simrack.Config{Heartbeat: 10 * time.Second, Machines: [][]string{{"m1", "m2"}}, Disk: new(wal.Disk), Programs: map[string]simrack.Program{"arrays": idle, "report": report}}) // no blade is taken for dead on a slow machine
	Must(t, err)
	b := &Busy{Rack: rack, T: t, Ctx: ctx}
	t.Cleanup(func() {
		b.Finish()
		Must(t, b.Close())
	})
	for _, name := range former {
		Must(t, b.join("c1", name).Close(ctx))
	}
	b.Caller, b.Callee, b.Nested = b.join("c1", "client"), b.join("s2", "front"), b.join("s1", "back")
	inner := &waiting{entered: make(chan struct{}), resume: make(chan struct{})}
	b.Finish = sync.OnceFunc(func() {
		close(inner.resume)
		b.calls.Wait()
	})
	Must(t, b.Nested.Export(ctx, "Inner", arrays.NewArraysProcessor(inner)))
	outer := &waiting{nest: func(ctx context.Context, p *bifrost.GlobalPointer) error {
		_, err := arrays.NewArraysClient(b.Callee.Client("Inner")).IncrementRef(ctx, p, 64, 1)
		return err
	}}
	Must(t, b.Callee.Export(ctx, "Arrays", arrays.NewArraysProcessor(outer)))
	b.A, b.B, b.Own = b.alloc(b.Caller, 4096), b.alloc(b.Caller, 64), b.alloc(b.Nested, 1<<20)
	b.calls.Go(func() {
		_, err := arrays.NewArraysClient(b.Caller.Client("Arrays")).AddRef(ctx, rpc.GlobalPointer(b.A), 64, rpc.GlobalPointer(b.B), 64)
		if err != nil && (!b.Broken.Load() || rpc.CodeOf(err) != rpc.Unavailable && rpc.CodeOf(err) != rpc.Canceled) {
			t.Error(err)
		}
	})
	select {
	case <-inner.entered:
	case <-ctx.Done():
		t.Fatal("the nested call does not begin")
	}
	b.Told(2)
	b.Deny(3)
	return b
}

// Told waits until the Gatekeeper knows of so many calls under way: it hears of them from their callees.
func (b *Busy) Told(want int) {
	b.T.Helper()
	for {
		calls, _, err := b.Gatekeeper().Calls(b.Ctx, gatekeeper.CallQuery{Limit: 10})
		Must(b.T, err)
		if len(calls) == want {
			return
		}
		select {
		case <-time.After(time.Millisecond):
		case <-b.Ctx.Done():
			b.T.Fatalf("the Gatekeeper knows of the calls %+v", calls)
		}
	}
}

// Over lets the calls return, and waits until the Gatekeeper has heard that they are over.
func (b *Busy) Over() {
	b.T.Helper()
	b.Finish()
	b.Told(0)
}

func (b *Busy) join(blade, name string) *rpc.Node {
	b.T.Helper()
	n, err := b.Join(b.Ctx, blade, name)
	Must(b.T, err)
	return n
}

func (b *Busy) alloc(n *rpc.Node, size uint64) dsm.Pointer {
	b.T.Helper()
	p, err := n.Memory().Alloc(b.Ctx, size)
	Must(b.T, err)
	return p
}

// Deny has the switch Deny n accesses, and waits until the Gatekeeper knows. Each is
// one packet: a client would send it again if this machine is slow, and that would
// count, too.
func (b *Busy) Deny(n int) {
	b.T.Helper()
	before, err := b.Gatekeeper().Overview(b.Ctx)
	Must(b.T, err)
	events := b.Gatekeeper().Subscribe(b.Ctx)
	from := netip.AddrPortFrom(b.Nested.Address(), rackaddr.PortDSM)
	incarnation := b.Session(b.Nested.Address()).Node().Incarnation
	for range n {
		h := dsmpacket.Header{Kind: dsmpacket.Request, Request: 1, Floor: 1, Incarnation: incarnation, Length: 4}
		to := netip.AddrPortFrom(b.A.With(dsmpacket.OpWrite).Addr(), rackaddr.PortDSM)
		b.Host("s1").SendRaw(from, to, append(h.Append(nil), "mine"...))
	}
	for seen := 0; seen < n; {
		if e := <-events; e.Kind == gatekeeper.AccessDenied {
			seen++
		}
	}
	after, err := b.Gatekeeper().Overview(b.Ctx)
	Must(b.T, err)
	if after.Counters.Denied != before.Counters.Denied+uint64(n) {
		b.T.Fatalf("%d denials, then %d: want %d more", before.Counters.Denied, after.Counters.Denied, n)
	}
}
