package simrack_test

import (
	"context"
	"errors"
	"maps"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/rpc"
)

// chain is a rack with three deployed programs, one a blade: top calls middle, and middle calls bottom. All calls go direct.
type chain struct {
	*testing.T
	*simrack.Rack
	policies map[string]rpc.Policy // of the calls to a program

	mu      sync.Mutex
	nodes   map[string]*rpc.Node
	began   map[string]int // programs
	ran     map[string]int // handlers
	entered chan string
	up      chan struct{}
}

// calls is whom a program calls, and blades where it runs.
var (
	calls  = map[string]string{"top": "middle", "middle": "bottom"}
	blades = map[string]string{"top": "s1", "middle": "s2", "bottom": "s3"}
)

func withChain(t *testing.T, policies map[string]rpc.Policy, f func(k *chain)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		k := &chain{
			T: t, policies: policies, nodes: map[string]*rpc.Node{}, began: map[string]int{}, ran: map[string]int{},
			entered: make(chan string, 10), up: make(chan struct{}, 100),
		}
		var err error
		k.Rack, err = simrack.Start(t.Context(), simrack.Config{
			Blades:   append(simrack.Thesis(), simrack.Blade{Name: "s3", Kind: control.Compute}),
			Schedule: &wire.Schedule{Seed: 1, Quiesce: synctest.Wait}, Disk: new(wal.Disk),
			Ledgers: gatekeeper.LedgersTruth, Programs: map[string]simrack.Program{"chain": k.serve},
		})
		if err != nil {
			t.Fatal(err)
		}
		for name, blade := range blades {
			if err := k.Gatekeeper().Deploy(t.Context(), resources.Spec{Name: name, Programs: []resources.Program{{
				Name: "p", Args: []string{"chain", name}, Nodes: 1, Blades: []string{blade}, Services: []resources.ServiceSpec{{Name: name}},
			}}}); err != nil {
				t.Fatal(err)
			}
			<-k.up
		}
		f(k)
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	})
}

func (k *chain) serve(ctx context.Context, j join.Joiner, s control.Start) error {
	name := s.Args[1]
	n, err := rpc.Join(join.NewContext(ctx, j), rpc.WithName(name))
	if err != nil {
		return err
	}
	k.mu.Lock()
	k.nodes[name] = n
	k.began[name]++
	k.mu.Unlock()
	handler := pinger(func(ctx context.Context) error {
		k.mu.Lock()
		k.ran[name]++
		first := k.ran[name] == 1
		k.mu.Unlock()
		if to := calls[name]; to != "" {
			return k.ping(ctx, n, to)
		}
		if !first {
			return nil
		}
		k.entered <- name
		select { // longer than all that follows from a crash
		case <-time.After(30 * time.Second):
		case <-ctx.Done():
		}
		return ctx.Err()
	})
	if err := n.Export(ctx, name, arrays.NewPingProcessor(handler)); err != nil {
		return err
	}
	k.up <- struct{}{}
	<-ctx.Done()
	if errors.Is(context.Cause(ctx), simrack.ErrKilled) {
		return nil // like a process: not another word
	}
	return n.Close(context.WithoutCancel(ctx))
}

func (k *chain) ping(ctx context.Context, n *rpc.Node, to string) error {
	return arrays.NewPingClient(n.Client(to, rpc.WithPolicy(k.policies[to]))).Ping(ctx)
}

// TestDirectFates kills a program in the middle of a chain of direct calls: those are started anew that share its fate, once,
// and no others; and the call succeeds.
func TestDirectFates(t *testing.T) {
	const recovers, shares, tainted = rpc.PolicyRecover, rpc.PolicyFateShare, rpc.PolicyTainted
	for name, c := range map[string]struct {
		middle, bottom rpc.Policy // of the calls to these
		dies           string
		began          map[string]int
	}{
		"recover, callee dies":             {recovers, recovers, "bottom", map[string]int{"top": 1, "middle": 1, "bottom": 2}},
		"recover, caller dies":             {recovers, recovers, "middle", map[string]int{"top": 1, "middle": 2, "bottom": 1}},
		"fate-share, callee dies":          {recovers, shares, "bottom", map[string]int{"top": 1, "middle": 2, "bottom": 2}},
		"fate-share, caller dies":          {recovers, shares, "middle", map[string]int{"top": 1, "middle": 2, "bottom": 2}},
		"fate-share twice, the last dies":  {shares, shares, "bottom", map[string]int{"top": 2, "middle": 2, "bottom": 2}},
		"fate-share twice, the first dies": {shares, shares, "top", map[string]int{"top": 2, "middle": 2, "bottom": 2}},
		"fate-share above, callee dies":    {shares, recovers, "middle", map[string]int{"top": 2, "middle": 2, "bottom": 1}},
		"tainted, caller dies":             {tainted, recovers, "top", map[string]int{"top": 2, "middle": 2, "bottom": 2}},
		"tainted, callee dies":             {tainted, recovers, "middle", map[string]int{"top": 2, "middle": 2, "bottom": 2}},
		"tainted, what is below dies":      {tainted, recovers, "bottom", map[string]int{"top": 1, "middle": 1, "bottom": 2}},
		"tainted below, callee dies":       {recovers, tainted, "bottom", map[string]int{"top": 1, "middle": 2, "bottom": 2}},
	} {
		t.Run(name, func(t *testing.T) {
			withChain(t, map[string]rpc.Policy{"top": recovers, "middle": c.middle, "bottom": c.bottom}, func(k *chain) {
				client, err := k.Join(k.Context(), "c1", "client")
				if err != nil {
					k.Fatal(err)
				}
				result := make(chan error, 1)
				go func() { result <- k.ping(k.Context(), client, "top") }()
				<-k.entered
				if err := k.Kill(blades[c.dies], c.dies+"/p/1"); err != nil {
					k.Fatal(err)
				}
				if err := <-result; err != nil {
					k.Error(err)
				}
				<-time.After(time.Second) // virtual: whoever shares a fate has met it
				k.mu.Lock()
				defer k.mu.Unlock()
				if !maps.Equal(k.began, c.began) {
					k.Errorf("programs were started %v times, want %v", k.began, c.began)
				}
				for name, n := range k.nodes {
					if n.Stats().Enlisted != 0 {
						k.Errorf("%s has handed executions over", name)
					}
				}
			})
		})
	}
}
