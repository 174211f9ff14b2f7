package bifrosttest_test

import (
	"context"
	"testing"

	"github.com/bifrost-rack/bifrost/bifrosttest"
	"github.com/bifrost-rack/bifrost/examples/counter/gen-go/counter"
	"github.com/bifrost-rack/bifrost/examples/counter/tally"
	"github.com/bifrost-rack/bifrost/rpc"
)

// A service that the rack starts is killed between two calls, over a bad network. The second
// call gets its right answer all the same.
func Example() {
	programs := map[string]bifrosttest.Program{
		"counter": func(ctx context.Context, node *rpc.Node, _ []string) error {
			return bifrosttest.Serve(ctx, counter.ExportCounter(ctx, node, "Counter", &tally.Counter{}))
		},
	}
	const app = `
name: counter
programs:
  - {name: counter, command: [counter], services: [{name: Counter, stateful: true}]}
`
	testCounter := func(t *testing.T) { // func TestCounter(t *testing.T) in your tests
		cfg := bifrosttest.Config{Seed: 1, Network: bifrosttest.Bad, Programs: programs}
		bifrosttest.Run(t, cfg, func(t *testing.T, r *bifrosttest.Rack) {
			r.DeployText(app)
			client := counter.OpenCounter(r.Client(), "Counter")
			for want := int64(1); want <= 2; want++ {
				total, err := client.Add(r.Context(), 0, rpc.RefOf([]byte{1}))
				if err != nil || total != want {
					t.Errorf("total %d, %v; want %d", total, err, want)
				}
				r.Kill(r.Where("counter")[0])
			}
		})
	}
	_ = testCounter
}
