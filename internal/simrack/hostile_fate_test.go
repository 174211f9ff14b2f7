package simrack_test

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/rpc"
)

// evil starts a program of c1 by hand, whose durable main calls bottom. With above, bottom is called by policy recover by a service
// of the program's own, which the main calls with that policy.
func (k *chain) evil(policy, above rpc.Policy, outcome chan<- error) {
	k.Helper()
	up := make(chan *rpc.Node, 1)
	if _, err := k.Rack.Run("c1", "evil", func(ctx context.Context, j join.Joiner, _ control.Start) error {
		n, err := rpc.Join(join.NewContext(ctx, j), rpc.WithName("evil"))
		if err != nil {
			return err
		}
		bottom := func(ctx context.Context) error {
			return arrays.NewPingClient(n.Client("bottom", rpc.WithPolicy(policy))).Ping(ctx)
		}
		begin := bottom
		if above != rpc.PolicyNone {
			if err := n.Export(ctx, "evil", arrays.NewPingProcessor(pinger(bottom)), rpc.WithMethodPolicy(above)); err != nil {
				return err
			}
			begin = func(ctx context.Context) error {
				return arrays.NewPingClient(n.Client("evil", rpc.WithPolicy(above))).Ping(ctx)
			}
		}
		up <- n
		err = rpc.Main(ctx, n, "evil", func(ctx context.Context, _ []byte) error {
			err := begin(ctx)
			if ctx.Err() == nil {
				outcome <- err
			}
			<-ctx.Done()
			return ctx.Err()
		})
		if errors.Is(context.Cause(ctx), simrack.ErrKilled) {
			return nil
		}
		return errors.Join(err, n.Close(context.WithoutCancel(ctx)))
	}); err != nil {
		k.Fatal(err)
	}
	<-up
}

// TestHostile_Crashes: a program that somebody has started by hand calls a deployed service in a way that shares fates, and is
// killed again and again. The service's program goes on: the call is refused, with what can be done, and counted.
func TestHostile_Crashes(t *testing.T) {
	for name, c := range map[string]struct{ policy, above rpc.Policy }{
		"fate-share":         {rpc.PolicyFateShare, rpc.PolicyNone},
		"tainted":            {rpc.PolicyTainted, rpc.PolicyNone},
		"of a tainted one's": {rpc.PolicyRecover, rpc.PolicyTainted},
	} {
		t.Run(name, func(t *testing.T) {
			withChain(t, links{closed: true}, func(k *chain) {
				outcome := make(chan error, 1)
				for life := range 4 {
					k.evil(c.policy, c.above, outcome)
					select {
					case err := <-outcome:
						if code := fault.CodeOf(err); code != rpc.PermissionDenied || !strings.Contains(err.Error(), "WithMethodPolicy") {
							k.Errorf("life %d: %v", life, err)
						}
					case <-k.entered:
						k.Error("bottom runs the call")
					case <-time.After(5 * time.Second): // virtual: bottom runs it again
					}
					if err := k.Kill("c1", "evil"); err != nil {
						k.Fatal(err)
					}
				}
				<-time.After(5 * time.Second) // virtual: whoever shares a fate has met it
				k.mu.Lock()
				defer k.mu.Unlock()
				if k.began["bottom"] != 1 || k.ran["bottom"] != 0 {
					k.Errorf("bottom was started %d times, and has run %d calls", k.began["bottom"], k.ran["bottom"])
				}
				denied := 0
				k.nodes["bottom"].Refused(func(_ netip.Addr, reason string, _ uint64) {
					if reason == rpc.PermissionDenied.String() {
						denied++
					}
				})
				if denied != 1 {
					k.Errorf("%d nodes were refused as permission denied", denied)
				}
			})
		})
	}
}

// TestSharing: programs of one deployment share fates, whatever their services declare, and a service takes such calls of strangers
// when an operator has given its method such a policy: from then on.
func TestSharing(t *testing.T) {
	const recovers, shares = rpc.PolicyRecover, rpc.PolicyFateShare
	policies := map[string]rpc.Policy{"top": recovers, "middle": shares, "bottom": shares}
	withChain(t, links{closed: true, together: true, policies: policies}, func(k *chain) {
		k.fails("bottom", map[string]int{"top": 2, "middle": 2, "bottom": 2})
	})
	withChain(t, links{closed: true, policies: policies}, func(k *chain) {
		outcome := make(chan error, 1)
		if err := k.Gatekeeper().SetPolicy(k.Context(), "bottom", "ping", resources.Word{Policy: "fate-share"}); err != nil {
			k.Fatal(err)
		}
		k.evil(shares, rpc.PolicyNone, outcome)
		select {
		case <-k.entered:
		case err := <-outcome:
			k.Errorf("a stranger's call after the operator's word: %v", err)
		}
		if err := k.Kill("c1", "evil"); err != nil {
			k.Fatal(err)
		}
	})
}
