package rpc_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/internal/testsvc"
)

// diary is what interceptors have seen.
type diary struct {
	mu   sync.Mutex
	seen []string
}

func (d *diary) note(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.seen = append(d.seen, fmt.Sprintf(format, args...))
}

// keeper is an interceptor that notes what it sees under a name.
func (d *diary) keeper(name string) rpc.Interceptor {
	return func(ctx context.Context, c *rpc.Call, next func(context.Context) error) error {
		d.note("%s %s.%s %v %v", name, c.Service, c.Method, c.Outgoing, c.Oneway)
		err := next(ctx)
		d.note("%s %v", name, rpc.CodeOf(err))
		return err
	}
}

// intercepted has a client and a service, with interceptors of the two sides, call each other once for each policy and protocol.
func intercepted(t *testing.T, outgoing, incoming []rpc.Interceptor, f func(t *testing.T, h *testsvc.Handler, c *testsvc.TestClient)) {
	t.Helper()
	calm(t, nil, func(t *testing.T, p *pair) {
		h := &testsvc.Handler{}
		var export []rpc.ExportOption
		for _, i := range incoming {
			export = append(export, i)
		}
		if err := p.server.Export(t.Context(), "Around", testsvc.NewTestProcessor(h), export...); err != nil {
			t.Fatal(err)
		}
		for _, policy := range []rpc.Policy{rpc.PolicyNone, rpc.PolicyRecover} {
			for _, protocol := range []rpc.Protocol{rpc.Binary, rpc.Compact} {
				options := []rpc.ClientOption{rpc.WithPolicy(policy), rpc.WithProtocol(protocol)}
				for _, i := range outgoing {
					options = append(options, i)
				}
				f(t, h, testsvc.NewTestClient(p.caller.Client("Around", options...)))
			}
		}
	})
}

// TestInterceptors: those of both sides stand around each other in the order in which they were given, and see what a call comes to.
func TestInterceptors(t *testing.T) {
	d := new(diary)
	all := []rpc.Interceptor{d.keeper("a"), d.keeper("b")}
	intercepted(t, all, all, func(t *testing.T, _ *testsvc.Handler, c *testsvc.TestClient) {
		for _, call := range []struct {
			method, outcome, served string
			make                    func(ctx context.Context) error
		}{
			{"add", "ok", "ok", func(ctx context.Context) error { _, err := c.Add(ctx, 1, 2); return err }},
			{"check", "declared", "declared", func(ctx context.Context) error {
				var refused *testsvc.Refused
				if err := c.Check(ctx, -1); !errors.As(err, &refused) || refused.Number != -1 {
					return fmt.Errorf("it comes to %w", err)
				}
				return nil
			}},
			{"fail", "application", "internal", func(ctx context.Context) error {
				if err := c.Fail(ctx, ""); rpc.CodeOf(err) != rpc.Application || !strings.Contains(err.Error(), "undeclared") {
					return fmt.Errorf("it comes to %w", err)
				}
				return nil
			}},
		} {
			d.seen = nil
			if err := call.make(t.Context()); err != nil {
				t.Errorf("%s: %v", call.method, err)
			}
			var want []string
			for _, outgoing := range []string{"true", "false"} {
				want = append(want, "a Around."+call.method+" "+outgoing+" false", "b Around."+call.method+" "+outgoing+" false")
			}
			want = append(want, "b "+call.served, "a "+call.served, "b "+call.outcome, "a "+call.outcome)
			if !slices.Equal(d.seen, want) {
				t.Errorf("%s: seen %q, want %q", call.method, d.seen, want)
			}
		}
	})
}

// TestInterceptors_Oneway: a one-way passes the interceptors of both sides.
func TestInterceptors_Oneway(t *testing.T) {
	d := new(diary)
	served := make(chan error)
	wait := func(ctx context.Context, _ *rpc.Call, next func(context.Context) error) error {
		err := next(ctx)
		served <- err
		return err
	}
	intercepted(t, []rpc.Interceptor{d.keeper("c")}, []rpc.Interceptor{wait, d.keeper("s")}, func(t *testing.T, _ *testsvc.Handler, c *testsvc.TestClient) {
		d.seen = nil
		if err := c.Note(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		for _, want := range []string{"c Around.note true true", "c ok", "s Around.note false true", "s ok"} {
			if !slices.Contains(d.seen, want) {
				t.Errorf("seen %q", d.seen)
			}
		}
	})
}

// TestInterceptors_Refuse: an error of an interceptor is the call's, before or after the handler, on either side. Headers that one side adds
// the other sees.
func TestInterceptors_Refuse(t *testing.T) {
	how, number := "", int64(0)
	refuse := func(ctx context.Context, c *rpc.Call, next func(context.Context) error) error {
		side := map[bool]string{true: "client", false: "server"}[c.Outgoing]
		refusal := rpc.Errorf(rpc.PermissionDenied, "the %s refuses", side)
		switch how {
		case side + " before":
			return refusal
		case side + " after":
			return errors.Join(next(ctx), refusal)
		case side + " in words of its own":
			return errors.New(how)
		case side + " silently":
			return nil
		case side + " twice":
			return errors.Join(next(ctx), next(ctx))
		case side + " forgives":
			_ = next(ctx)
			return nil
		case side + " says more":
			if err := next(ctx); err != nil {
				return fmt.Errorf("more: %w", err)
			}
			return nil
		case side + " panics":
			panic(how)
		}
		if !c.Outgoing {
			if who, _ := rpc.Header(ctx, "who"); who != "me" {
				return rpc.Errorf(rpc.PermissionDenied, "called by %q", who)
			}
			return next(ctx)
		}
		return next(rpc.WithHeader(ctx, "who", "me"))
	}
	all := []rpc.Interceptor{refuse}
	intercepted(t, all, all, func(t *testing.T, h *testsvc.Handler, c *testsvc.TestClient) {
		ctx := t.Context()
		headed := rpc.WithHeader(ctx, "who", "me")
		for _, want := range []struct {
			how  string
			code rpc.Code
			ran  int64
		}{
			{"", rpc.OK, 1},
			{"client before", rpc.PermissionDenied, 0},
			{"client after", rpc.PermissionDenied, 1},
			{"client silently", rpc.Internal, 0},
			{"client twice", rpc.Internal, 1},
			{"client in words of its own", rpc.Internal, 0},
			{"server before", rpc.PermissionDenied, 0},
			{"server after", rpc.PermissionDenied, 1},
			{"server silently", rpc.Internal, 0},
			{"server twice", rpc.Internal, 1},
			{"server in words of its own", rpc.Application, 0},
			{"server panics", rpc.Internal, 0},
		} {
			how = want.how
			number++
			_, err := c.Count(headed, number)
			if ran := h.Counts()[number]; rpc.CodeOf(err) != want.code || ran != want.ran {
				t.Errorf("%s: %v, run %d times", how, err, ran)
			}
		}
		for _, how = range []string{"client forgives", "server forgives", "client says more", "server says more"} {
			var refused *testsvc.Refused
			if err := c.Check(headed, -3); !errors.As(err, &refused) || refused.Number != -3 {
				t.Errorf("%s: an exception that is declared: %v", how, err)
			}
			if err := c.Fail(headed, ""); rpc.CodeOf(err) != rpc.Application || !strings.Contains(err.Error(), "undeclared") {
				t.Errorf("%s: an error that is not declared: %v", how, err)
			}
		}
		how = ""
		if _, err := c.Add(ctx, 1, 2); err != nil {
			t.Errorf("with a header of the client's interceptor: %v", err)
		}
	})
}

// TestInterceptors_Arguments: an interceptor reads the arguments, as often as it likes, before and after the call.
func TestInterceptors_Arguments(t *testing.T) {
	raw := make([]byte, 100_000) // more than a datagram
	raw[99_999] = 7
	seen := 0
	look := func(ctx context.Context, c *rpc.Call, next func(context.Context) error) error {
		check := func() error {
			seen++
			var args testsvc.TestBlobArgs
			if err := c.Arguments(ctx, &args); err != nil || !slices.Equal(args.Raw, raw) {
				return fmt.Errorf("outgoing %v: %d bytes, %w", c.Outgoing, len(args.Raw), err)
			}
			return nil
		}
		return errors.Join(check(), check(), next(ctx), check())
	}
	all := []rpc.Interceptor{look}
	intercepted(t, all, all, func(t *testing.T, _ *testsvc.Handler, c *testsvc.TestClient) {
		seen = 0
		if b, err := c.Blob(t.Context(), raw); err != nil || len(b) != len(raw) || seen != 6 {
			t.Errorf("%d bytes, %v, looked %d times", len(b), err, seen)
		}
	})
	unlike := func(ctx context.Context, c *rpc.Call, _ func(context.Context) error) error {
		return c.Arguments(ctx, &testsvc.Everything{}) // it has required fields
	}
	for _, side := range [][2][]rpc.Interceptor{{{unlike}, nil}, {nil, {unlike}}} {
		intercepted(t, side[0], side[1], func(t *testing.T, _ *testsvc.Handler, c *testsvc.TestClient) {
			if _, err := c.Add(t.Context(), 1, 2); rpc.CodeOf(err) != rpc.BadRequest || !strings.Contains(err.Error(), "arguments of Around.add") {
				t.Errorf("arguments that are not those of the struct: %v", err)
			}
		})
	}
}

// TestInterceptors_RunAgain: an execution that is run again passes the interceptors again, whose effects are not repeated.
func TestInterceptors_RunAgain(t *testing.T) {
	runs, effects := 0, 0
	around := func(ctx context.Context, _ *rpc.Call, next func(context.Context) error) error {
		runs++
		if _, err := rpc.Effect(ctx, "audit", func(context.Context) ([]byte, error) { effects++; return nil, nil }); err != nil {
			return err
		}
		return next(ctx)
	}
	onBench(t, func(ctx context.Context, _ *rpc.Node) error { return noted(ctx) }, func(b *bench) {
		first := b.call()
		b.run(first)
		journal := b.journal(first)
		pass(time.Second)
		if a := b.rerun(journal); a.Code != rpc.OK || runs != 2 || effects != 1 {
			b.t.Errorf("%v, %d runs, %d effects", a.Code, runs, effects)
		}
	}, rpc.Interceptor(around))
}
