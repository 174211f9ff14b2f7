package simrack_test

import (
	"context"
	"encoding/hex"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/examples/arrays/service"
	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// sleeper is a handler that waits for its context's end, and counts how often it was begun.
type sleeper struct {
	begun int
	entry chan struct{}
}

func (s *sleeper) Ping(ctx context.Context) error {
	s.begun++
	s.entry <- struct{}{}
	<-ctx.Done()
	return ctx.Err()
}

// TestCancel: an operator cancels calls where they run, of both kinds of policy: the callers get
// Canceled, exactly once, also for one that waits for its turn; an unknown one is not found.
func TestCancel(t *testing.T) {
	for _, policy := range []rpc.Policy{rpc.PolicyNone, rpc.PolicyRecover} {
		t.Run(policy.String(), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) { cancelCalls(t, policy) })
		})
	}
}

func cancelCalls(t *testing.T, policy rpc.Policy) {
	r, err := simrack.Start(t.Context(), simrack.Config{Schedule: &wire.Schedule{Seed: 1, Quiesce: synctest.Wait}, Disk: new(wal.Disk)})
	if err != nil {
		t.Fatal(err)
	}
	s := &sleeper{entry: make(chan struct{}, 10)}
	callee, err := r.Join(t.Context(), "s1", "callee")
	if err == nil {
		err = callee.Export(t.Context(), "Ping", arrays.NewPingProcessor(s), rpc.WithWorkers(1))
	}
	caller, err2 := r.Join(t.Context(), "c1", "caller")
	if err != nil || err2 != nil {
		t.Fatal(err, err2)
	}
	results := make(chan error, 2)
	call := func() {
		results <- arrays.NewPingClient(caller.Client("Ping", rpc.WithPolicy(policy))).Ping(t.Context())
	}
	go call()
	<-s.entry
	want := 1
	if policy == rpc.PolicyRecover { // a second one, which waits for the worker
		go call()
		want = 2
	}
	cancel := func(last bool) {
		t.Helper()
		calls, _, err := r.Gatekeeper().Calls(t.Context(), gatekeeper.CallQuery{Limit: 10})
		for len(calls) < want && err == nil { // known from a digest, which takes a while
			<-time.After(time.Millisecond) // virtual
			calls, _, err = r.Gatekeeper().Calls(t.Context(), gatekeeper.CallQuery{Limit: 10})
		}
		want--
		if err != nil {
			t.Fatal(err)
		}
		k := calls[0]
		if last {
			k = calls[len(calls)-1]
		}
		b, err := hex.DecodeString(k.Call)
		if err != nil {
			t.Fatal(err)
		}
		id := rpcpacket.ID(b)
		if err := r.Gatekeeper().CancelCall(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	check := func() {
		t.Helper()
		if err := <-results; rpc.CodeOf(err) != rpc.Canceled {
			t.Errorf("the call ends with %v", err)
		}
	}
	if policy == rpc.PolicyRecover {
		cancel(true)
		cancel(false)
		check()
	} else {
		cancel(false)
	}
	check()
	if s.begun != 1 {
		t.Errorf("%d handlers have begun", s.begun)
	}
	if err := r.Gatekeeper().CancelCall(t.Context(), rpcpacket.ID{1}); fault.CodeOf(err) != fault.NotFound {
		t.Errorf("cancel what is unknown: %v", err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// TestGivenUp_LeavesNoRegion: callers give calls up at each millisecond, wherever the handler is then: reading its argument,
// allocating its result, writing it. The service keeps nothing of such a call.
func TestGivenUp_LeavesNoRegion(t *testing.T) {
	for _, policy := range []rpc.Policy{rpc.PolicyNone, rpc.PolicyRecover} {
		t.Run(policy.String(), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) { giveUpIncrements(t, policy) })
		})
	}
}

func giveUpIncrements(t *testing.T, policy rpc.Policy) {
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx := t.Context()
	r, err := simrack.Start(ctx, simrack.Config{
		Schedule: &wire.Schedule{Seed: 1, Quiesce: synctest.Wait}, Impair: wire.Impairment{Delay: 700 * time.Microsecond}, Disk: new(wal.Disk),
	})
	must(err)
	callee, err := r.Join(ctx, "s1", "callee")
	must(err)
	must(callee.Export(ctx, "Arrays", arrays.NewArraysProcessor(service.Arrays{})))
	caller, err := r.Join(ctx, "c1", "caller")
	must(err)
	answered := 0
	for after := time.Millisecond; after <= 40*time.Millisecond; after += time.Millisecond {
		p, err := caller.Memory().Alloc(ctx, 64)
		must(err)
		short, cancel := context.WithTimeout(ctx, after)
		got, err := arrays.NewArraysClient(caller.Client("Arrays", rpc.WithPolicy(policy))).IncrementRef(short, rpc.GlobalPointer(p), 64, 1)
		cancel()
		<-time.After(time.Second) // virtual: the call has ended
		if err == nil {
			answered++
			result, err := rpc.PointerOf(got)
			must(err)
			must(caller.Memory().Free(ctx, result))
		}
		must(caller.Memory().Free(ctx, p))
	}
	if answered == 0 || answered > 30 {
		t.Errorf("%d calls were answered", answered)
	}
	<-time.After(2 * time.Second) // virtual: what was freed is kept for a second
	s, err := r.Gatekeeper().Snapshot(ctx)
	must(err)
	if len(s.Regions) > 0 {
		t.Errorf("%d regions are left, such as %+v", len(s.Regions), s.Regions[0])
	}
	must(r.Close())
}
