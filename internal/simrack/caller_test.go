package simrack_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/examples/arrays/service"
	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
	"github.com/bifrost-rack/bifrost/rpc"
)

// asker is a handler that notes who calls it, as often as it can.
type asker struct {
	mu      sync.Mutex
	callers []string
}

func (a *asker) Ping(ctx context.Context) error {
	c, err := rpc.CallerOf(ctx)
	again, same := rpc.CallerOf(ctx)
	if same == nil && fmt.Sprint(again) != fmt.Sprint(c) || c.Node != rpc.CallerAddress(ctx) {
		return fmt.Errorf("caller %+v, then %+v", c, again)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	tenant, _ := rpc.Header(ctx, "tenant")
	a.callers = append(a.callers, fmt.Sprintf("%s on %s of %s/%s exports %s, tenant %s, %v", c.Name, c.Blade, c.Deployment, c.Program, c.Services, tenant, err))
	return err
}

// TestCaller: a handler learns which node calls it, what that exports and which
// deployment it belongs to, with both kinds of policy.
func TestCaller(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		called := make(chan error, 1)
		r, err := simrack.Start(t.Context(), simrack.Config{
			Schedule: &wire.Schedule{Seed: 1, Quiesce: synctest.Wait}, Disk: new(wal.Disk),
			Programs: map[string]simrack.Program{"server": func(ctx context.Context, j join.Joiner, _ control.Start) error {
				n, err := rpc.Join(join.NewContext(ctx, j), rpc.WithName("caller"))
				if err == nil {
					err = n.Export(ctx, "Arrays", arrays.NewArraysProcessor(service.Arrays{}))
				}
				if err == nil {
					err = arrays.NewPingClient(n.Client("Ping", rpc.WithPolicy(rpc.PolicyNone))).Ping(ctx)
				}
				called <- err
				<-ctx.Done()
				return n.Close(context.WithoutCancel(ctx))
			}},
		})
		if err != nil {
			t.Fatal(err)
		}
		a := &asker{}
		callee, err := r.Join(t.Context(), "s1", "callee")
		if err == nil {
			err = callee.Export(t.Context(), "Ping", arrays.NewPingProcessor(a))
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Gatekeeper().Deploy(t.Context(), resources.Spec{Name: "app", Programs: []resources.Program{{
			Name: "prog", Args: []string{"server"}, Nodes: 1, Blades: []string{"s2"}, Services: []resources.ServiceSpec{{Name: "Arrays"}},
		}}}); err != nil {
			t.Fatal(err)
		}
		if err := <-called; err != nil {
			t.Error(err)
		}
		plain, err := r.Join(t.Context(), "c1", "by-hand")
		if err != nil {
			t.Fatal(err)
		}
		for i, policy := range []rpc.Policy{rpc.PolicyNone, rpc.PolicyRecover} {
			ctx := rpc.WithHeader(t.Context(), "tenant", fmt.Sprint(i))
			if err := arrays.NewPingClient(plain.Client("Ping", rpc.WithPolicy(policy))).Ping(ctx); err != nil {
				t.Errorf("policy %s: %v", policy, err)
			}
		}
		want := "[caller on s2 of app/prog exports [Arrays], tenant , <nil> by-hand on c1 of / exports [], tenant 0, <nil> by-hand on c1 of / exports [], tenant 1, <nil>]"
		if got := fmt.Sprint(a.callers); got != want {
			t.Errorf("%s\nwant %s", got, want)
		}
		if _, err := rpc.CallerOf(t.Context()); rpc.CodeOf(err) != rpc.BadRequest || rpc.CallerAddress(t.Context()).IsValid() {
			t.Errorf("no handler's context: %v", err)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
}
