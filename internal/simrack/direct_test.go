package simrack_test

import (
	"context"
	"encoding/hex"
	"errors"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/examples/arrays/service"
	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/gatekeeper/trace"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// pinger is a handler of Ping.
type pinger func(ctx context.Context) error

func (p pinger) Ping(ctx context.Context) error { return p(ctx) }

// direct is a rack whose client calls Front, which calls Back; all calls go direct.
type direct struct {
	*testing.T
	rack                *simrack.Rack
	client, front, back *rpc.Node
}

func withDirect(t *testing.T, atBack pinger, f func(d *direct)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		d := &direct{T: t}
		var err error
		d.rack, err = simrack.Start(t.Context(), simrack.Config{
			Schedule: &wire.Schedule{Seed: 1, Quiesce: synctest.Wait}, Disk: new(wal.Disk),
		})
		if err != nil {
			t.Fatal(err)
		}
		for blade, n := range map[string]**rpc.Node{"c1": &d.client, "s1": &d.front, "s2": &d.back} {
			if *n, err = d.rack.Join(t.Context(), blade, blade); err != nil {
				t.Fatal(err)
			}
		}
		atFront := pinger(func(ctx context.Context) error {
			return arrays.NewPingClient(d.front.Client("Back", rpc.WithPolicy(rpc.PolicyRecover))).Ping(ctx)
		})
		if err := d.back.Export(t.Context(), "Back", arrays.NewPingProcessor(atBack)); err != nil {
			t.Fatal(err)
		}
		if err := d.front.Export(t.Context(), "Front", arrays.NewPingProcessor(atFront)); err != nil {
			t.Fatal(err)
		}
		f(d)
		if err := d.rack.Close(); err != nil {
			t.Error(err)
		}
	})
}

func (d *direct) ping() error {
	return arrays.NewPingClient(d.client.Client("Front", rpc.WithPolicy(rpc.PolicyRecover))).Ping(rpc.WithHeader(d.Context(), "tenant", "blue"))
}

func (d *direct) underWay() []gatekeeper.CallState {
	d.Helper()
	calls, _, err := d.rack.Gatekeeper().Calls(d.Context(), gatekeeper.CallQuery{Limit: 10})
	if err != nil {
		d.Fatal(err)
	}
	return calls
}

// TestDirectCallsAreSeen: the Gatekeeper has no part in direct calls, and people see them all
// the same: which are under way, on whose behalf, what has become of them. An operator cancels
// one where it runs.
func TestDirectCallsAreSeen(t *testing.T) {
	var entered chan struct{} // of the bubble
	withDirect(t, func(ctx context.Context) error {
		entered <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	}, func(d *direct) {
		entered = make(chan struct{}, 1)
		result := make(chan error, 1)
		go func() { result <- d.ping() }()
		<-entered
		<-time.After(time.Second) // virtual: they have been told
		calls := d.underWay()
		if len(calls) != 2 {
			d.Fatalf("under way are %+v", calls)
		}
		for _, k := range calls {
			if h := k.Details.Headers; k.Details.Arguments == 0 || (k.Service == "Front") != slices.Equal(h, []control.Header{{Name: "tenant", Value: "blue"}}) {
				d.Errorf("%s is told with %+v", k.Service, k.Details)
			}
		}
		outer, inner := calls[0], calls[1]
		if outer.Service == "Back" {
			outer, inner = inner, outer
		}
		if inner.Parent != outer.Call || outer.Parent != "" || inner.Method != "ping" || inner.Caller != d.front.Address() || inner.Callee != d.back.Address() ||
			inner.Told.IsZero() || time.Since(inner.B1) < 900*time.Millisecond {
			d.Errorf("the inner call is %+v, the outer one %+v", inner, outer)
		}
		id := callID(t, inner.Call)
		gk := d.rack.Gatekeeper()
		if chain, err := gk.Chain(d.Context(), id); err != nil || len(chain) != 2 || chain[1].Call != outer.Call {
			d.Errorf("the chain is %+v, %v", chain, err)
		}
		if n, err := gk.NodeCalls(d.Context(), d.front.Address()); err != nil || len(n.Waits) != 1 || len(n.Serves) != 1 || n.Waits[0].Call != inner.Call {
			d.Errorf("the front has %+v, %v", n, err)
		}
		if page, next, err := gk.Calls(d.Context(), gatekeeper.CallQuery{Limit: 1}); err != nil || len(page) != 1 {
			d.Errorf("a page of %+v, %v", page, err)
		} else if from, err := gatekeeper.ParseCallCursor(next.String()); err != nil {
			d.Error(err)
		} else if last, end, err := gk.Calls(d.Context(), gatekeeper.CallQuery{Limit: 1, From: from}); err != nil || len(last) != 1 || last[0].Call == page[0].Call || end.String() != "" {
			d.Errorf("the second page is %+v, next %q, %v", last, end, err)
		}
		if err := gk.CancelCall(d.Context(), id); err != nil {
			d.Fatal(err)
		}
		if err := <-result; rpc.CodeOf(err) != rpc.Canceled {
			d.Errorf("the call ends with %v", err)
		}
		<-time.After(time.Second) // virtual
		if calls := d.underWay(); len(calls) > 0 {
			d.Errorf("still under way are %+v", calls)
		}
		tree, _, err := gk.Timeline(d.Context(), id, 10)
		if err != nil || len(tree) != 2 || tree[0].Service != "Front" || tree[1].Depth != 1 || !tree[1].Over || tree[1].Code != fault.Canceled || tree[0].A2.Before(tree[1].A2) {
			d.Errorf("the timeline is %+v, %v", tree, err)
		}
		o, err := gk.Overview(d.Context())
		if err != nil {
			d.Fatal(err)
		}
		for _, n := range o.Nodes {
			serves := slices.Contains([]netip.Addr{d.front.Address(), d.back.Address()}, n.Address)
			if room := n.LedgerRoom; serves != (room != nil) || serves && (*room < 1<<20 || *room > 64<<20) {
				d.Errorf("node %s has room %v in its ledger", n.Name, room)
			}
		}
		if room := d.back.Stats().LedgerRoom; room < 1<<20 || room > 64<<20 {
			d.Errorf("the back has %d bytes of room in its ledger", room)
		}
	})
}

// TestDirectCallsAreCounted: each direct call counts once, though not each is named.
func TestDirectCallsAreCounted(t *testing.T) {
	withDirect(t, func(context.Context) error { return nil }, func(d *direct) {
		const all = 1000
		for range all {
			if err := d.ping(); err != nil {
				d.Fatal(err)
			}
		}
		<-time.After(time.Second) // virtual
		methods, err := d.rack.Gatekeeper().Methods(d.Context())
		if err != nil {
			d.Fatal(err)
		}
		seen := map[string]trace.Method{}
		for _, m := range methods {
			seen[m.Service+"."+m.Method] = m
		}
		for _, name := range []string{"Front.ping", "Back.ping"} {
			if m := seen[name]; m.Ended[fault.OK] != all || m.Open != 0 || m.Seconds == 0 && name == "Front.ping" {
				d.Errorf("%s: %+v", name, m)
			}
		}
		if n := d.front.Stats().Accepted; n != all {
			d.Errorf("%d calls went direct", n)
		}
	})
}

// TestDirectCallsUnderWayAreNamed: how a call has ended that was under way for a while is told, also if many others have ended since.
func TestDirectCallsUnderWayAreNamed(t *testing.T) {
	var release chan struct{} // of the bubble
	var first atomic.Bool
	withDirect(t, func(context.Context) error {
		if first.CompareAndSwap(false, true) {
			<-release
			return errors.New("no")
		}
		return nil
	}, func(d *direct) {
		release = make(chan struct{})
		result := make(chan error, 1)
		go func() { result <- d.ping() }()
		<-time.After(time.Second) // virtual: it has been told
		var id rpcpacket.ID
		for _, k := range d.underWay() {
			if k.Service == "Back" {
				id = callID(t, k.Call)
			}
		}
		close(release)
		want := rpc.CodeOf(<-result)
		for range 200 {
			if err := d.ping(); err != nil {
				d.Fatal(err)
			}
		}
		<-time.After(time.Second) // virtual
		tree, _, err := d.rack.Gatekeeper().Timeline(d.Context(), id, 10)
		if err != nil || len(tree) == 0 || want == fault.OK || tree[len(tree)-1].Code != want {
			d.Errorf("%v: the timeline is %+v, %v", want, tree, err)
		}
	})
}

func callID(t *testing.T, text string) rpcpacket.ID {
	t.Helper()
	b, err := hex.DecodeString(text)
	if err != nil || len(b) != len(rpcpacket.ID{}) {
		t.Fatalf("%q is no call", text)
	}
	return rpcpacket.ID(b)
}

// TestLedgersInPairs: ledgers are kept where either blade may die, if there is such a machine.
func TestLedgersInPairs(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r, err := simrack.Start(t.Context(), simrack.Config{
			Machines: [][]string{{"m2", "m3"}}, Schedule: &wire.Schedule{Seed: 1, Quiesce: synctest.Wait}, Disk: new(wal.Disk),
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"a", "b", "c", "d"} {
			if _, err := r.Join(t.Context(), "c1", name); err != nil {
				t.Fatal(err)
			}
		}
		<-time.After(5 * time.Second) // virtual: the memory blades have told
		all, err := r.Gatekeeper().Overview(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range all.Blades {
			if want, memory := map[string]int{"m1": 0, "m2": 4, "m3": 4}[b.Name]; memory && (b.Ledgers == nil || b.Ledgers.Count != want) {
				t.Errorf("%s keeps %+v, want %d ledgers", b.Name, b.Ledgers, want)
			}
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestLedgerNearlyFull: a node whose ledger has no room drops new calls and counts them. They
// are sent again, and run when what fills the ledger is forgotten.
func TestLedgerNearlyFull(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r, err := simrack.Start(t.Context(), simrack.Config{
			Schedule: &wire.Schedule{Seed: 1, Quiesce: synctest.Wait}, Disk: new(wal.Disk), LedgerSpace: 8256 << 10, // in the end a call finds no room, not its answer
		})
		if err != nil {
			t.Fatal(err)
		}
		nodes := map[string]*rpc.Node{}
		for _, blade := range []string{"c1", "s1", "s2"} {
			if nodes[blade], err = r.Join(t.Context(), blade, blade); err != nil {
				t.Fatal(err)
			}
		}
		if err := nodes["s2"].Export(t.Context(), "Back", arrays.NewArraysProcessor(service.Arrays{})); err != nil {
			t.Fatal(err)
		}
		array := make([]byte, 48<<10) // 200 answers of this size are too many
		made := 0
		front := pinger(func(ctx context.Context) error { // what it calls is kept until it is over
			c := arrays.NewArraysClient(nodes["s1"].Client("Back", rpc.WithPolicy(rpc.PolicyRecover)))
			for made = range 200 {
				if _, err := c.Increment(ctx, array, 1); err != nil {
					return err
				}
			}
			return nil
		})
		if err := nodes["s1"].Export(t.Context(), "Front", arrays.NewPingProcessor(front)); err != nil {
			t.Fatal(err)
		}
		ping := arrays.NewPingClient(nodes["c1"].Client("Front", rpc.WithPolicy(rpc.PolicyRecover)))
		back := arrays.NewArraysClient(nodes["c1"].Client("Back", rpc.WithPolicy(rpc.PolicyRecover)))
		if _, err := back.Increment(t.Context(), array[:1], 1); err != nil { // it is a caller that the node knows
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // virtual
		defer cancel()
		if err := ping.Ping(ctx); rpc.CodeOf(err) != rpc.Deadline {
			t.Errorf("a ledger that is full: %v after %d calls", err, made)
		}
		if n := nodes["s2"].Stats().NoRoom; n == 0 || made < 40 {
			t.Errorf("%d calls were dropped for want of room, after %d", n, made)
		}
		if got, err := back.Increment(t.Context(), array, 1); err != nil || len(got) != len(array) {
			t.Errorf("when the ledger has room again: %v", err)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestDirectDeadline: a call with a deadline has begun in time, and its node dies. It is run again to
// its end, though that begins when its time is over, and its caller is not heard.
func TestDirectDeadline(t *testing.T) {
	withShelf(t, true, func(r *shelf) {
		slow := borrower{handle: func(context.Context, dsm.Pointer) error {
			<-time.After(1500 * time.Millisecond) // virtual: what the former run has done is not taken back before
			return nil
		}}
		if err := r.join("s2", "borrower").Export(r.Context(), "Borrower", arrays.NewArraysProcessor(slow)); err != nil {
			t.Fatal(err)
		}
		cut := func(loss float64) { r.Host("c1").Impair(wire.Impairment{Loss: loss}, wire.Impairment{Loss: loss}) }
		r.handle = func(ctx context.Context, at *dsm.Pointer) error {
			at[0]++
			p, err := fresh(ctx)
			if err != nil {
				return err
			}
			if r.runs.Load() == 1 {
				cut(1) // the caller cannot say that it gives the call up
				time.AfterFunc(2*time.Second, func() { cut(0) })
				time.AfterFunc(100*time.Millisecond, func() { // all of it virtual
					if err := r.KillSoon("s1", "app/p/1"); err != nil {
						r.Error(err)
					}
				})
			}
			return lendTo(ctx, r.server, p)
		}
		ctx, cancel := context.WithTimeout(r.Context(), time.Second) // virtual
		defer cancel()
		if _, err := arrays.NewArraysClient(r.client.Client("Shelf", rpc.WithPolicy(rpc.PolicyRecover))).Echo(ctx, []byte("x")); rpc.CodeOf(err) != rpc.Deadline {
			t.Errorf("the caller gets %v", err)
		}
		<-time.After(10 * time.Second) // virtual: it has been run again
		r.call(func(_ context.Context, at *dsm.Pointer) error {
			if at[0] != 1 || r.runs.Load() != 3 {
				t.Errorf("it counts %d times, in %d runs", at[0], r.runs.Load()-1)
			}
			return nil
		})
	})
}
