package simrack_test

import (
	"context"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/internal/wire"
)

// TestDirectCallsOfDrained: a blade is drained whose node callers call straight. None of their
// calls fails: not one that has just left, nor one of a caller that has not called for long.
func TestDirectCallsOfDrained(t *testing.T) {
	for _, idle := range []time.Duration{0, 10 * time.Second} {
		withRegisters(t, "", func(ctx context.Context, r *registers) {
			if err := r.Gatekeeper().Deploy(ctx, resources.Spec{Name: "front", Programs: []resources.Program{
				{Name: "F", Args: []string{"F"}, Nodes: 1, Blades: []string{"c1", "s1"}, Services: []resources.ServiceSpec{{Name: "F"}}},
			}}); err != nil {
				t.Fatal(err)
			}
			n := r.client(ctx, t)
			want := uint64(1)
			call := func(when string) {
				t.Helper()
				if v, err := echo(ctx, n, "F", ""); v != want || err != nil {
					t.Fatalf("idle for %v, %s: %d, %v, want %d", idle, when, v, err, want)
				}
				want++
			}
			call("before")
			if err := r.Gatekeeper().Drain(ctx, "c1", "test"); err != nil {
				t.Fatal(err)
			}
			r.Host("c1").Impair(wire.Impairment{Delay: 30 * time.Millisecond}, wire.Impairment{Delay: 30 * time.Millisecond})
			for end := time.Now().Add(max(idle, 6*time.Second)); time.Now().Before(end); {
				if idle == 0 {
					call("while it drains")
				} else {
					<-time.After(time.Second) // virtual
				}
			}
			call("after")
		})
	}
}
