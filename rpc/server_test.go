package rpc_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/internal/testrack"
	"github.com/bifrost-rack/bifrost/rpc/internal/testsvc"
)

// calm runs f in virtual time with a server and a client on a good network.
func calm(t *testing.T, opts []rpc.ExportOption, f func(t *testing.T, p *pair)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) { f(t, newPair(t, opts...)) })
}

// A full queue refuses calls at once, clearly, and keeps those it has.
func TestOverload(t *testing.T) {
	calm(t, []rpc.ExportOption{rpc.WithWorkers(2), rpc.WithQueue(3)}, func(t *testing.T, p *pair) {
		open := make(chan struct{})
		p.handler.Gate = func(context.Context, int64) error { <-open; return nil }
		errs := make(chan error)
		for i := range int64(8) {
			go func() {
				_, err := p.newClient().Count(t.Context(), i)
				errs <- err
			}()
		}
		var coded *rpc.Error
		for range 3 {
			if err := <-errs; !errors.As(err, &coded) || coded.Code != rpc.Overloaded || !coded.Remote {
				t.Errorf("got %v", err)
			}
		}
		close(open)
		for range 5 {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
		if n := len(p.handler.Counts()); n != 5 {
			t.Errorf("%d calls were run", n)
		}
	})
}

// A one-way that finds the queue full is not lost: its caller's runtime sends it
// again.
func TestOnewayWaitsForRoom(t *testing.T) {
	calm(t, []rpc.ExportOption{rpc.WithWorkers(1), rpc.WithQueue(0)}, func(t *testing.T, p *pair) {
		p.handler.Gate = func(context.Context, int64) error { pass(time.Second); return nil }
		done := make(chan error)
		go func() {
			_, err := p.newClient().Count(t.Context(), 1)
			done <- err
		}()
		synctest.Wait()
		for n := range int64(3) {
			if err := p.client.Note(t.Context(), n); err != nil {
				t.Error(err)
			}
		}
		synctest.Wait()
		if len(p.handler.Notes()) != 0 {
			t.Error("a one-way was run beside the only worker")
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		closeNode(t, p.caller)
		closeNode(t, p.server)
		if n := p.handler.Notes(); len(n) != 3 || n[0]+n[1]+n[2] != 3 {
			t.Errorf("notes %v", n)
		}
	})
}

// A worker that waits for a nested call gives its slot back: a service with one
// worker can call itself through the rack, as deep as it likes.
func TestNestedCalls(t *testing.T) {
	calm(t, []rpc.ExportOption{rpc.WithWorkers(1)}, func(t *testing.T, p *pair) {
		self := plain(p.server, "Test")
		p.handler.Next = func(ctx context.Context, depth int64) (int64, error) {
			return testsvc.NewTestClient(self).Nest(ctx, depth)
		}
		if n, err := p.client.Nest(t.Context(), 50); n != 50 || err != nil {
			t.Error(n, err)
		}
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				if n, err := p.newClient().Nest(t.Context(), 20); n != 20 || err != nil {
					t.Error(n, err)
				}
			})
		}
		wg.Wait()
	})
}

// The deadline of a call is that of the calls it makes.
func TestNestedDeadline(t *testing.T) {
	calm(t, nil, func(t *testing.T, p *pair) {
		self := plain(p.server, "Test")
		left := make(chan time.Duration, 1)
		p.handler.Next = func(ctx context.Context, depth int64) (int64, error) {
			if depth > 0 {
				return testsvc.NewTestClient(self).Nest(ctx, depth)
			}
			d, ok := ctx.Deadline()
			if !ok {
				t.Error("the innermost call has no deadline")
			}
			left <- time.Until(d)
			<-ctx.Done()
			return 0, ctx.Err()
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := p.client.Nest(ctx, 3); rpc.CodeOf(err) != rpc.Deadline {
			t.Errorf("got %v", err)
		}
		if d := <-left; d < 990*time.Millisecond || d > 1010*time.Millisecond {
			t.Errorf("the innermost call had %v left of a second", d)
		}
	})
}

// A stateful service that calls itself would wait for itself for ever.
func TestStatefulCallsItself(t *testing.T) {
	calm(t, []rpc.ExportOption{rpc.WithState(noState{})}, func(t *testing.T, p *pair) {
		self := plain(p.server, "Test")
		p.handler.Next = func(ctx context.Context, depth int64) (int64, error) {
			return testsvc.NewTestClient(self).Nest(ctx, depth)
		}
		if _, err := p.client.Nest(t.Context(), 1); rpc.CodeOf(err) != rpc.Deadlock {
			t.Errorf("got %v", err)
		}
	})
}

// A call whose deadline passes while it waits for a worker is not begun.
func TestDeadlineInQueue(t *testing.T) {
	calm(t, []rpc.ExportOption{rpc.WithWorkers(1)}, func(t *testing.T, p *pair) {
		p.handler.Gate = func(context.Context, int64) error { pass(time.Second); return nil }
		done := make(chan error)
		go func() {
			_, err := p.newClient().Count(t.Context(), 1)
			done <- err
		}()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := p.client.Count(ctx, 2); rpc.CodeOf(err) != rpc.Deadline {
			t.Errorf("got %v", err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		closeNode(t, p.server)
		if counts := p.handler.Counts(); counts[1] != 1 || counts[2] != 0 {
			t.Errorf("counts %v", counts)
		}
	})
}

// A handler that has been quick so far, and so is run by the reader, must not
// keep other calls waiting when it is not.
func TestQuickHandlerThatBlocks(t *testing.T) {
	calm(t, nil, func(t *testing.T, p *pair) {
		for range 100 { // the runtime learns that the method is quick
			if _, err := p.client.Count(t.Context(), 0); err != nil {
				t.Fatal(err)
			}
		}
		open, done := make(chan struct{}), make(chan error)
		entered := make(chan struct{})
		p.handler.Gate = func(_ context.Context, n int64) error {
			if n == 1 {
				close(entered)
				<-open
			}
			return nil
		}
		go func() {
			_, err := p.newClient().Count(t.Context(), 1)
			done <- err
		}()
		<-entered
		start := time.Now()
		for range 100 {
			if _, err := p.client.Count(t.Context(), 2); err != nil {
				t.Fatal(err)
			}
		}
		if d := time.Since(start); d > 20*time.Millisecond { // only the first one waits, and not for long
			t.Errorf("100 calls beside one that blocks took %v", d)
		}
		close(open)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// A context outlives its handler; calls with it are nobody's.
func TestExecutionEnds(t *testing.T) {
	p := newPair(t)
	var kept context.Context
	p.handler.Gate = func(ctx context.Context, _ int64) error {
		kept = context.WithoutCancel(ctx)
		return nil
	}
	if _, err := p.client.Count(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	c := testsvc.NewTestClient(plain(p.server, "Test"))
	if err := c.Ping(kept); rpc.CodeOf(err) != rpc.BadRequest || !strings.Contains(err.Error(), "returned") {
		t.Errorf("got %v", err)
	}
	// A server's call outside of any handler is not part of what exactly-once
	// could repeat.
	exact := testsvc.NewTestClient(p.server.Client("Test", rpc.WithPolicy(rpc.PolicyRecover)))
	if err := exact.Ping(t.Context()); rpc.CodeOf(err) != rpc.BadRequest {
		t.Errorf("got %v", err)
	}
}

func TestMemoryOutsideOfHandlersPanics(t *testing.T) {
	defer func() {
		if v := recover(); v == nil || !strings.Contains(v.(string), "rpc.Memory") {
			t.Errorf("recovered %v", v)
		}
	}()
	rpc.Memory(t.Context())
}

// Memory operations of a handler fail with their code, here for want of memory
// blades, and so does the call.
func TestMemoryInHandlers(t *testing.T) {
	p := newPair(t)
	p.handler.Gate = func(ctx context.Context, _ int64) error {
		memory := rpc.Memory(ctx)
		if memory == p.server.Memory() || memory != rpc.Memory(ctx) {
			t.Error("an execution has a memory client of its own, and one")
		}
		_, err := memory.Alloc(ctx, 64)
		return err
	}
	var coded *rpc.Error
	if _, err := p.client.Count(t.Context(), 1); !errors.As(err, &coded) || coded.Code != rpc.NoSpace || !coded.Remote || !strings.Contains(coded.Msg, "alloc") {
		t.Errorf("got %v", err)
	}
}

// A handler may leave a goroutine behind that waits for a call of its own; the
// service's slots stay right.
func TestHandlerLeavesGoroutineBehind(t *testing.T) {
	calm(t, []rpc.ExportOption{rpc.WithWorkers(1)}, func(t *testing.T, p *pair) {
		self := plain(p.server, "Test")
		var left sync.WaitGroup
		p.handler.Gate = func(ctx context.Context, n int64) error {
			if n > 0 {
				left.Go(func() { _, _ = testsvc.NewTestClient(self).Count(ctx, 0) })
				synctest.Wait() // it waits
			}
			return nil
		}
		for n := range int64(10) {
			if _, err := p.client.Count(t.Context(), n+1); err != nil {
				t.Fatal(err)
			}
		}
		left.Wait()
		if err := p.client.Ping(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestHandlerAbandonsRequest(t *testing.T) {
	r := testrack.New(t, wire.Config{})
	n := joinNode(t, r, "server")
	if err := n.Export(t.Context(), "Test", testsvc.NewTestProcessor(silent{&testsvc.Handler{}})); err != nil {
		t.Fatal(err)
	}
	client := testsvc.NewTestClient(plain(joinNode(t, r, "client"), "Test"))
	if err := client.Ping(t.Context()); rpc.CodeOf(err) != rpc.Application {
		t.Errorf("got %v", err)
	}
}

type silent struct{ *testsvc.Handler }

func (silent) Ping(context.Context) error { return thrift.ErrAbandonRequest }

// A stateful service runs one call at a time also while a handler waits for a
// nested call.
func TestStatefulKeepsItsSlot(t *testing.T) {
	calm(t, []rpc.ExportOption{rpc.WithState(noState{})}, func(t *testing.T, p *pair) {
		other := joinNode(t, p.rack, "other")
		slow := &testsvc.Handler{Gate: func(context.Context, int64) error { pass(time.Second); return nil }}
		if err := other.Export(t.Context(), "Slow", testsvc.NewTestProcessor(slow)); err != nil {
			t.Fatal(err)
		}
		down := plain(p.server, "Slow")
		running := 0
		p.handler.Gate = func(ctx context.Context, n int64) error {
			if running++; running > 1 {
				t.Error("two handlers of a stateful service run at once")
			}
			_, err := testsvc.NewTestClient(down).Count(ctx, n)
			running--
			return err
		}
		var wg sync.WaitGroup
		for i := range int64(5) {
			wg.Go(func() {
				if _, err := p.newClient().Count(t.Context(), i); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	})
}

// noState is the state of a service that only wants to run one call at a time.
type noState struct{}

func (noState) Snapshot() ([]byte, error) { return nil, nil }
func (noState) Restore([]byte) error      { return nil }

// A caller that gives a call up without a deadline ends the handler's context at once,
// not with its next call.
func TestCancelReachesHandler(t *testing.T) {
	calm(t, nil, func(t *testing.T, p *pair) {
		ended := make(chan error, 1)
		p.handler.Gate = func(ctx context.Context, _ int64) error {
			<-ctx.Done()
			ended <- ctx.Err()
			return ctx.Err()
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			_, err := p.client.Count(ctx, 1)
			done <- err
		}()
		synctest.Wait() // it runs
		begun := time.Now()
		cancel()
		if err := <-done; rpc.CodeOf(err) != rpc.Canceled {
			t.Error(err)
		}
		if err := <-ended; !errors.Is(err, context.Canceled) || time.Since(begun) > time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(begun))
		}
		p.handler.Gate = nil
		if n, err := p.newClient().Count(t.Context(), 2); n != 1 || err != nil {
			t.Errorf("the next call: %d, %v", n, err)
		}
	})
}

// All clients of a node learn together how long a method takes: a program with one
// client for each goroutine does not send every call twice.
func TestClientsLearnTogether(t *testing.T) {
	calm(t, nil, func(t *testing.T, p *pair) {
		p.handler.Gate = func(context.Context, int64) error { pass(200 * time.Millisecond); return nil }
		round := func(n int64) {
			var wg sync.WaitGroup
			for i := range int64(32) {
				wg.Go(func() {
					if _, err := p.newClient().Count(t.Context(), 100*n+i); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
		}
		for n := range int64(3) {
			round(n)
		}
		before := p.caller.Stats().Resent
		for n := range int64(10) {
			round(n + 3)
		}
		if n := p.caller.Stats().Resent - before; n != 0 {
			t.Errorf("%d of 320 calls were sent again, and nothing was lost", n)
		}
	})
}

// What Thrift's users look for is found in a call's error, beside the coded one.
func TestThriftErrors(t *testing.T) {
	calm(t, nil, func(t *testing.T, p *pair) {
		var app thrift.TApplicationException
		var transport thrift.TTransportException
		var coded *rpc.Error
		_, err := plain(p.caller, "Test").Call(t.Context(), "nothing", &testsvc.BasePingArgs{}, &testsvc.BasePingResult{})
		if !errors.As(err, &app) || app.TypeId() != thrift.UNKNOWN_METHOD || errors.As(err, &transport) || !errors.As(err, &coded) {
			t.Errorf("unknown method: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		err = p.client.Fail(ctx, "wait")
		if !errors.As(err, &transport) || transport.TypeId() != thrift.TIMED_OUT || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("timeout: %v", err)
		}
		closeNode(t, p.caller)
		if err = p.newClient().Ping(t.Context()); !errors.As(err, &transport) || transport.TypeId() != thrift.NOT_OPEN {
			t.Errorf("closed: %v", err)
		}
		if !errors.As(err, &coded) || coded.Code != rpc.Unavailable || rpc.CodeOf(err) != rpc.Unavailable {
			t.Errorf("closed: %v", err)
		}
	})
}
