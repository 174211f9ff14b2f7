package bifrosttest_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/bifrosttest"
	"github.com/bifrost-rack/bifrost/examples/counter/gen-go/counter"
	"github.com/bifrost-rack/bifrost/examples/counter/tally"
	"github.com/bifrost-rack/bifrost/rpc"
)

const app = `
name: counter
programs:
  - {name: counter, command: [/usr/local/bin/counter, serve], services: [{name: Counter, stateful: true}]}
`

var programs = map[string]bifrosttest.Program{
	"counter": func(ctx context.Context, node *rpc.Node, args []string) error {
		if !slices.Equal(args, []string{"serve"}) {
			panic(args)
		}
		return bifrosttest.Serve(ctx, counter.ExportCounter(ctx, node, tally.CounterName, &tally.Counter{}))
	},
}

// add adds one to account 0, and checks that all that was added before is there.
func add(t *testing.T, r *bifrosttest.Rack, to *counter.CounterRefClient, want int64) {
	t.Helper()
	if total, err := to.Add(r.Context(), 0, rpc.RefOf([]byte{1})); err != nil || total != want {
		t.Errorf("total %d, %v; want %d", total, err, want)
	}
}

// TestFaults: a service with state, deployed from a text, goes on after each fault.
func TestFaults(t *testing.T) {
	bifrosttest.Run(t, bifrosttest.Config{Programs: programs}, func(t *testing.T, r *bifrosttest.Rack) {
		r.DeployText(app)
		to := counter.OpenCounter(r.Client(), tally.CounterName)
		add(t, r, to, 1)
		at := r.Where("counter")
		if len(at) != 1 || at[0] == bifrosttest.ClientBlade {
			t.Fatalf("it runs on %v", at)
		}
		r.Kill(at[0])
		add(t, r, to, 2)
		at = r.Where("counter")
		r.CrashBlade(at[0])
		add(t, r, to, 3)
		if now := r.Where("counter"); len(now) != 1 || now[0] == at[0] {
			t.Errorf("it runs on %v, after %v has crashed", now, at)
		}
		r.BootBlade(at[0])
		r.CrashBlade("m1") // m2 has the other copy
		add(t, r, to, 4)
		r.CrashGatekeeper()
		r.RestartGatekeeper()
		add(t, r, to, 5)
	})
}

// TestSeed: a seed replays a run on a bad network; another one is another run.
func TestSeed(t *testing.T) {
	took := func(seed uint64) (d time.Duration) {
		cfg := bifrosttest.Config{Seed: seed, Network: bifrosttest.Bad, Compute: []string{"a", "b"}, Memory: []string{"m"}}
		bifrosttest.Run(t, cfg, func(t *testing.T, r *bifrosttest.Rack) {
			if err := counter.ExportCounter(r.Context(), r.Node("b", "server"), tally.CounterName, &tally.Counter{}); err != nil {
				t.Fatal(err)
			}
			to, began := counter.OpenCounter(r.Node("a", "client"), tally.CounterName), time.Now()
			for n := range int64(20) {
				add(t, r, to, n+1)
			}
			d = time.Since(began)
		})
		return d
	}
	if a, b, c := took(1), took(1), took(2); a != b || a == c {
		t.Errorf("seed 1 took %v and %v, seed 2 %v", a, b, c)
	}
}

// TestStart: a rack in real time joins nodes on compute blades, and says what it cannot do.
func TestStart(t *testing.T) {
	if _, err := bifrosttest.Start(t.Context(), bifrosttest.Config{Network: bifrosttest.Bad}); err == nil {
		t.Error("a bad network in real time")
	}
	r, err := bifrosttest.Start(t.Context(), bifrosttest.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for blade, ok := range map[string]bool{"s1": true, "m1": false, "x9": false} {
		node, err := rpc.Join(r.On(t.Context(), blade), rpc.WithName("n"))
		if (err == nil) != ok {
			t.Errorf("joining on %s: %v", blade, err)
		}
		if err == nil {
			if err := node.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// TestClientBlade: a test's own nodes outlive trouble, whatever blades the rack has and wherever
// programs run.
func TestClientBlade(t *testing.T) {
	const here = `
name: here
programs:
  - {name: counter, command: [counter, serve], services: [{name: Counter, stateful: true}], blades: [a, c1]}
`
	for _, compute := range [][]string{nil, {"a", "b"}, {bifrosttest.ClientBlade, "a"}, {bifrosttest.ClientBlade}} {
		for _, deployment := range []string{app, here} {
			cfg := bifrosttest.Config{Seed: 3, Compute: compute, Programs: programs}
			if deployment == here && !slices.Contains(compute, "a") {
				continue
			}
			bifrosttest.Run(t, cfg, func(t *testing.T, r *bifrosttest.Rack) {
				to := counter.OpenCounter(r.Client(), tally.CounterName)
				r.DeployText(deployment)
				if at := r.Where("counter"); deployment == app && slices.Contains(at, bifrosttest.ClientBlade) {
					t.Errorf("compute blades %q: a program runs on %v", compute, at)
				}
				stop, did := make(chan struct{}), make(chan map[string]int)
				go func() { did <- r.Trouble(20, stop) }()
				for n := range int64(300) {
					add(t, r, to, n+1)
					<-time.After(10 * time.Millisecond)
				}
				close(stop)
				if d := <-did; d["program killed"] == 0 || d["Gatekeeper crashed"] == 0 || deployment == app && d["blade crashed"] == 0 {
					t.Errorf("compute blades %q: trouble did %v", compute, d)
				}
			})
		}
	}
}
