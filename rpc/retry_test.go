package rpc_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/internal/testrack"
	"github.com/bifrost-rack/bifrost/rpc/internal/testsvc"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// A call that is refused for lack of workers is made again until there is one; without
// the option it is not.
func TestRetry(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := testrack.New(t, wire.Config{})
		gate, ran := make(chan struct{}), atomic.Int64{}
		serve(t, r, &testsvc.Handler{Gate: func(_ context.Context, number int64) error {
			ran.Add(1)
			if number == 0 {
				<-gate
			}
			return nil
		}}, rpc.WithWorkers(1), rpc.WithQueue(0))
		client := joinNode(t, r, "client")
		once := testsvc.NewTestClient(plain(client, "Test"))
		first := make(chan error, 1)
		go func() {
			_, err := testsvc.NewTestClient(plain(client, "Test")).Count(t.Context(), 0)
			first <- err
		}()
		synctest.Wait()
		_, err := once.Count(t.Context(), 1)
		if rpc.CodeOf(err) != rpc.Overloaded || !rpc.NeverBegan(err) || !strings.HasSuffix(err.Error(), "; the call never began") {
			t.Errorf("without the option: %v", err)
		}
		patient := testsvc.NewTestClient(client.Client("Test", rpc.WithPolicy(rpc.PolicyNone), rpc.WithRetry(rpc.Retry{Attempts: 100}, "count")))
		short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		if _, err := patient.Count(short, 1); rpc.CodeOf(err) != rpc.Overloaded {
			t.Errorf("the context ends between two attempts: %v", err)
		}
		second := make(chan error, 1)
		go func() {
			_, err := patient.Count(t.Context(), 2)
			second <- err
		}()
		<-time.After(100 * time.Millisecond)
		close(gate)
		if err := errors.Join(<-first, <-second); err != nil || ran.Load() != 2 {
			t.Errorf("%v, %d handlers have run", err, ran.Load())
		}
	})
}

// What may have run is made again only if that does no harm.
func TestRetryIdempotent(t *testing.T) {
	r := testrack.New(t, wire.Config{})
	service := newCallee(t, r, "service", rackaddr.Node(78), "Test")
	client := joinNode(t, r, "client")
	answered := map[rpcpacket.ID]bool{}
	call := func(retry rpc.Retry, answers ...rpcpacket.Flags) error {
		done := make(chan error, 1)
		go func() {
			_, err := testsvc.NewTestClient(client.Client("Test", rpc.WithPolicy(rpc.PolicyNone), rpc.WithRetry(retry))).Add(t.Context(), 1, 2)
			done <- err
		}()
		for _, flags := range answers {
			a := service.must()
			for answered[a.Call] { // a copy that was on its way
				a = service.must()
			}
			answered[a.Call] = true
			a.Type, a.Code, a.Flags, a.Payload = rpcpacket.Exception, rpc.Unavailable, a.Flags|flags, []byte("why")
			if flags == rpcpacket.FlagUnbegun { // a node that closes would have the call go to another one
				a.Code = rpc.Overloaded
			}
			service.send(client.Address(), a.Append(nil))
		}
		return <-done
	}
	retry := rpc.Retry{Attempts: 3, Backoff: time.Microsecond}
	if err := call(retry, 0); rpc.NeverBegan(err) || !strings.HasSuffix(err.Error(), "; the call may have run") {
		t.Errorf("may have run: %v", err)
	}
	if err := call(retry, rpcpacket.FlagUnbegun, rpcpacket.FlagUnbegun, rpcpacket.FlagUnbegun); !rpc.NeverBegan(err) {
		t.Errorf("three attempts: %v", err)
	}
	retry.Idempotent = true
	if err := call(retry, 0, 0, rpcpacket.FlagUnbegun); !rpc.NeverBegan(err) {
		t.Errorf("idempotent: %v", err)
	}
}

// An error tells that the call never began where that is certain.
func TestNeverBegan(t *testing.T) {
	r := testrack.New(t, wire.Config{})
	serve(t, r, &testsvc.Handler{Gate: func(ctx context.Context, _ int64) error { return rpc.Errorf(rpc.Unavailable, "handler") }})
	node := joinNode(t, r, "client")
	client := testsvc.NewTestClient(plain(node, "Test"))
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	var transport thrift.TTransportException
	for name, tc := range map[string]struct {
		err   error
		never bool
	}{
		"context over":      {client.Ping(gone), true},
		"too many headers":  {client.Ping(rpc.WithHeader(t.Context(), "k", strings.Repeat("v", rpc.MaxHeaderBytes))), true},
		"unknown method":    {ping(testsvc.NewTestClient(plain(node, "Test")), "nothing"), true},
		"handler's own":     {countErr(client), false},
		"undeclared":        {client.Fail(t.Context(), "x"), false},
		"a panic":           {client.Fail(t.Context(), "panic"), false},
		"nobody has failed": {client.Ping(t.Context()), false},
	} {
		if got := rpc.NeverBegan(tc.err); got != tc.never {
			t.Errorf("%s: %v, want %v: %v", name, got, tc.never, tc.err)
		}
		if tc.err != nil && rpc.CodeOf(tc.err) == rpc.Unavailable && !errors.As(tc.err, &transport) {
			t.Errorf("%s: %v is no transport exception", name, tc.err)
		}
	}
}

func countErr(c *testsvc.TestClient) error {
	_, err := c.Count(context.Background(), 1)
	return err
}

// ping calls a method that nobody has, with ping's arguments.
func ping(c *testsvc.TestClient, method string) error {
	_, err := c.Client_().Call(context.Background(), method, &testsvc.BasePingArgs{}, &testsvc.BasePingResult{})
	return err
}

// deep is a context that notes how deep the stack is when it is asked for its deadline, as each try of a call asks.
type deep struct {
	context.Context //nolint:containedctx // it is one
	depths          *[]int
}

func (d deep) Deadline() (time.Time, bool) {
	*d.depths = append(*d.depths, runtime.Callers(0, make([]uintptr, 1000)))
	return d.Context.Deadline()
}

// A call that nodes refuse again and again takes no more stack each time.
func TestRefusedForLong(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		closing, n := service(t)
		var depths []int
		done := make(chan error, 1)
		go func() { done <- testsvc.NewTestClient(plain(n, "Test")).Ping(deep{t.Context(), &depths}) }()
		const refusals = 20
		for i := range refusals + 1 {
			m := closing.must()
			if i == refusals {
				closing.send(n.Address(), answer(m, pong(t)))
				break
			}
			m.Type, m.Code, m.Flags, m.Payload, m.Trailer = rpcpacket.Exception, rpc.Unavailable, rpcpacket.FlagUnbegun.WithPolicy(rpc.PolicyNone), nil, nil
			closing.send(n.Address(), m.Append(nil))
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		first, last := slices.Min(depths), slices.Max(depths)
		if len(depths) < refusals || last > first+4 { // who asks is not always the same function
			t.Errorf("of %d times the stack was %d to %d functions deep", len(depths), first, last)
		}
	})
}
