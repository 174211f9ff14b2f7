package failure

import (
	"context"
	"errors"

	"github.com/bifrost-rack/bifrost/examples/counter/gen-go/counter"
	"github.com/bifrost-rack/bifrost/examples/counter/tally"
	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/rpc"
)

// The blades, by what runs on them at first.
const (
	caller = "c1"
	front  = "s1"
	callee = "s2"
	spare1 = "x1"
	spare2 = "x2"
)

// account is the one that the teller adds to.
const account = 7

// blades are the rack's.
func blades() (all []simrack.Blade) {
	for _, name := range computeBlades {
		all = append(all, simrack.Blade{Name: name, Kind: control.Compute})
	}
	for _, name := range memoryBlades {
		all = append(all, simrack.Blade{Name: name, Kind: control.Memory, Capacity: 16 << 20})
	}
	return all
}

var computeBlades = []string{caller, front, callee, spare1, spare2}

// memoryBlades hold a copy each of the same memory.
var memoryBlades = []string{"m1", "m2"}

// programs are what can be deployed.
func (s *stage) programs() map[string]simrack.Program {
	return map[string]simrack.Program{
		"counter": s.program("counter", func(ctx context.Context, n *rpc.Node) error {
			c := &tally.Counter{Entered: func(ctx context.Context) {
				s.attempts.Add(1)
				s.reached(ctx, executing)
			}}
			if err := counter.ExportCounter(ctx, n, tally.CounterName, c); err != nil {
				return err
			}
			<-ctx.Done()
			return nil
		}),
		"front": s.program("front", func(ctx context.Context, n *rpc.Node) error {
			if err := tally.Serve(ctx, n, tally.FrontName); err != nil {
				return err
			}
			<-ctx.Done()
			return nil
		}),
		"teller": s.program("teller", s.teller),
	}
}

// teller makes the one call.
func (s *stage) teller(ctx context.Context, n *rpc.Node) error {
	to := tally.CounterName
	if s.scene.front {
		to = tally.FrontName
	}
	client, err := tally.Open(n, to)
	if err != nil {
		return err
	}
	t := tally.Teller{
		Name: "teller", Account: account, Calls: 1, To: client,
		Answered: func(ctx context.Context, _, _ int64) { s.reached(ctx, answered) },
	}
	return t.Run(ctx, n)
}

// program is a program that is a node: it says goodbye unless it was killed.
func (s *stage) program(name string, run func(context.Context, *rpc.Node) error) simrack.Program {
	return func(ctx context.Context, j join.Joiner, _ control.Start) error {
		n, err := rpc.Join(join.NewContext(ctx, j), rpc.WithName(name), rpc.WithLogger(s.cfg.logger()))
		if err != nil {
			return err
		}
		err = run(ctx, n)
		if errors.Is(context.Cause(ctx), simrack.ErrKilled) {
			return nil // like a process: not another word
		}
		leaving, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
		defer cancel()
		return errors.Join(err, n.Close(leaving))
	}
}

// apps are the deployments: who serves, then who calls.
func apps(withFront bool) (servers, callers resources.Spec) {
	servers = resources.Spec{Name: "bank", Programs: []resources.Program{{
		Name: "counter", Args: []string{"counter"}, Nodes: 1, Blades: []string{callee, spare1, spare2},
		Services: []resources.ServiceSpec{{Name: tally.CounterName, Stateful: true}},
	}}}
	if withFront {
		servers.Programs = append(servers.Programs, resources.Program{
			Name: "front", Args: []string{"front"}, Nodes: 1, Blades: []string{front, spare2, spare1},
			Services: []resources.ServiceSpec{{Name: tally.FrontName}},
		})
	}
	callers = resources.Spec{Name: "customer", Programs: []resources.Program{{
		Name: "teller", Args: []string{"teller"}, Nodes: 1, Blades: []string{caller, spare1, spare2}, Job: true,
	}}}
	return servers, callers
}
