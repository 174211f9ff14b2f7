package rpc_test

import (
	"context"
	"log/slog"
	"math"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/internal/testsvc"
)

// TestFarDeadlines: a deadline that no packet and no time.Duration can say is no near one.
func TestFarDeadlines(t *testing.T) {
	for name, at := range map[string]time.Time{
		"60 days":   time.Now().Add(60 * 24 * time.Hour),
		"292 years": time.Now().Add(math.MaxInt64),
		"year 9999": time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC),
	} {
		t.Run(name, func(t *testing.T) {
			calm(t, nil, func(t *testing.T, p *pair) {
				ctx, cancel := context.WithDeadline(t.Context(), at)
				defer cancel()
				p.rack.Impair(wire.Impairment{Loss: 0.3})
				p.handler.Gate = func(ctx context.Context, _ int64) error {
					pass(time.Second)
					return ctx.Err()
				}
				for _, policy := range []rpc.Policy{rpc.PolicyNone, rpc.PolicyRecover} {
					c := testsvc.NewTestClient(p.caller.Client("Test", rpc.WithPolicy(policy)))
					if _, err := c.Count(ctx, 1); err != nil {
						t.Errorf("policy %v: %v", policy, err)
					}
					for i := range int64(20) {
						if err := c.Note(ctx, int64(policy)*100+i); err != nil {
							t.Errorf("policy %v: a one-way: %v", policy, err)
						}
					}
				}
				closeNode(t, p.caller)
				closeNode(t, p.server)
				if n := p.handler.Notes(); len(n) != 40 {
					t.Errorf("%d notes, want 40: %v", len(n), n)
				}
			})
		})
	}
}

// TestFarLimits: whatever is said to last for ever does.
func TestFarLimits(t *testing.T) {
	calm(t, nil, func(t *testing.T, p *pair) {
		const ever = math.MaxInt64
		n, err := rpc.Join(join.NewContext(t.Context(), p.rack.Joiner()), rpc.WithName("patient"), rpc.WithLogger(slog.New(slog.DiscardHandler)),
			rpc.WithLimits(rpc.Limits{Lifetime: ever, Memory: dsm.Limits{FirstTimeout: ever, LeastTimeout: ever, MostTimeout: ever, GiveUp: ever}}))
		if err != nil {
			t.Fatal(err)
		}
		defer closeNode(t, n)
		if err := n.Export(t.Context(), "Patient", testsvc.NewTestProcessor(&testsvc.Handler{})); err != nil {
			t.Fatal(err)
		}
		for _, c := range []*testsvc.TestClient{
			testsvc.NewTestClient(n.Client("Test", rpc.WithPolicy(rpc.PolicyNone), rpc.WithRetry(rpc.Retry{Attempts: 3, Backoff: ever, MaxBackoff: ever}))),
			testsvc.NewTestClient(p.caller.Client("Patient")),
			testsvc.NewTestClient(plain(p.caller, "Patient")),
		} {
			for range 3 {
				if sum, err := c.Add(t.Context(), 1, 2); sum != 3 || err != nil {
					t.Errorf("%v, %v", sum, err)
				}
			}
		}
	})
}
