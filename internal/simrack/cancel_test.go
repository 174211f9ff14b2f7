package simrack_test

import (
	"context"
	"encoding/hex"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/bubble"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
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
