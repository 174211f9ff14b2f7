package bench

import (
	"context"
	"errors"
	"time"

	"github.com/bifrost-rack/bifrost/bench/agent"
	"github.com/bifrost-rack/bifrost/bench/peer"
	"github.com/bifrost-rack/bifrost/bench/report"
	"github.com/bifrost-rack/bifrost/bench/topology"
	"github.com/bifrost-rack/bifrost/rack"
	"github.com/bifrost-rack/bifrost/rack/plan"
)

// What rights cost, which the switch judges by its registers (docs/rights.md): calls whose arguments and results are regions always.

var byRegion = Experiment{
	Experiment: report.Experiment{
		Name: "by-region", Question: "What does a call by region cost, and what of it are rights?",
		Method: "An array is passed, a number added to every byte, and the array returned; argument and result have a region each, however short they are." + arraysMethod +
			" The same transfers are measured in turns with a program of the switch that judges no rights, but is the same beside; the benchmark makes it of the switch's own, and exchanges them. " +
			"In a chain, an array of 1 MiB is lent on through four calls on two blades in turn, and the last one reads it; Thrift passes it by value.",
		X: report.Axis{Title: "call", Scale: report.Category}, Y: report.Axis{Title: "latency, median", Unit: "µs", Scale: report.Linear},
	},
	NoRack: true,
	Run: func(ctx context.Context, l *Lab, e *report.Experiment) error {
		return l.onOwn(ctx, l.unmirrored(), func(l *Lab, n *topology.Namespaces) error {
			if err := judgedOrNot(ctx, l, n, e); err != nil {
				return err
			}
			chain := report.Experiment{Name: e.Name, X: e.X}
			err := contest{
				peers: []string{"bifrost-regions", "thrift-framed", "thrift-buffered"}, servers: []string{serverBlade, otherBlade}, chain: true,
				points: []point{{x: report.ByRegionChain, label: "1 MiB through 4 calls", work: peer.Work{Op: peer.Chain, Size: chainArray, Hops: 4}}},
			}.run(ctx, l, &chain)
			for _, s := range chain.Series {
				for _, p := range s.Points {
					e.Add(s.Name, s.Title, p)
				}
			}
			return err
		})
	},
}

// judgedOrNot measures calls by region while rights are judged, and other programs' calls while they are not, in turns.
func judgedOrNot(ctx context.Context, l *Lab, n *topology.Namespaces, e *report.Experiment) (err error) {
	sizes := []point{
		{x: 64, label: "64 B"}, {x: 64 << 10, label: "64 KiB"}, {x: 1 << 20, label: "1 MiB"}, {x: 2 << 20, label: "2 MiB"},
	}
	if l.Pace.Fewer {
		sizes = sizes[:2]
	}
	for i := range sizes {
		sizes[i].work = peer.Work{Op: peer.Increment, Size: int(sizes[i].x)}
	}
	programs, err := newSwapper(ctx, n.Host.SwitchSocket(n.Config.Name))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, programs.close()) }()
	judged := contest{peers: []string{"bifrost-regions", "bifrost-regions-exact", "thrift-buffered"}, points: sizes}
	unjudged := contest{peers: []string{"bifrost-unjudged", "bifrost-unjudged-exact"}, points: sizes}
	with, end, err := judged.enter(ctx, l, e)
	if err != nil {
		return err
	}
	defer end()
	without, end, err := unjudged.enter(ctx, l, e)
	if err != nil {
		return err
	}
	defer end()
	for i := range l.Pace.Repeats {
		if err := judged.repeat(ctx, l, e, with, i); err != nil {
			return err
		}
		if err := programs.run(ctx, programs.unjudged); err != nil {
			return err
		}
		if err := unjudged.repeat(ctx, l, e, without, i); err != nil {
			return err
		}
		if err := programs.run(ctx, programs.judged); err != nil {
			return err
		}
	}
	e.Series = append(judged.series(with), unjudged.series(without)...)
	return nil
}

// crowd is how many callers there are where calls a second are counted, and crowdSize the array's size in bytes.
const (
	crowd     = 64
	crowdSize = 4 << 10
)

var byRegionRate = Experiment{
	Experiment: report.Experiment{
		Name: "by-region-rate", Question: "How many calls by region a second do 64 callers get, with and without a Gatekeeper?",
		Method: "64 callers of one process pass 4 KiB in a region and read as much in another, as in by-region, as fast as they are answered. The Gatekeeper is there, then it is killed, and then it is " +
			"started again. Thrift passes the arrays by value.",
		X: report.Axis{Title: "Gatekeeper", Scale: report.Category}, Y: report.Axis{Title: "throughput", Unit: "1000 calls/s", Scale: report.Linear},
	},
	NoRack: true,
	Run: func(ctx context.Context, l *Lab, e *report.Experiment) error {
		return l.onOwn(ctx, l.unmirrored(), func(l *Lab, n *topology.Namespaces) error {
			for _, name := range []string{"bifrost-regions", "bifrost-regions-exact", "thrift-buffered"} {
				if err := l.whileDead(ctx, n, e, name); err != nil {
					return err
				}
			}
			e.Repeats, e.WarmupSeconds, e.MeasureSeconds = 1, 10*l.Pace.Warmup.Seconds(), shortPhase(l.Pace).Seconds()
			return nil
		})
	},
}

// shortPhase is how long calls are counted while there is a Gatekeeper; while it is dead, it is five times as long.
func shortPhase(p Pace) time.Duration { return 20 * p.Measure }

// whileDead counts a peer's calls before the Gatekeeper's death, until its next start, and then.
func (l *Lab) whileDead(ctx context.Context, n *topology.Namespaces, e *report.Experiment, name string) error {
	p, err := peer.Find(name)
	if err != nil {
		return err
	}
	pair, err := l.pair(ctx, p, false, serverBlade)
	if err != nil {
		return err
	}
	defer pair.close()
	short, nothing := shortPhase(l.Pace), func() error { return nil }
	for _, phase := range []struct {
		x     float64
		label string
		begin func() error
		lasts time.Duration
	}{
		{report.GatekeeperThere, "is there", nothing, short},
		{report.GatekeeperDead, "is dead", func() error { return n.Host.Fail(ctx, n.Config.Name, plan.Gatekeeper, rack.Kill) }, 5 * short},
		{report.GatekeeperBack, "is back", func() error { return n.Host.Restore(ctx, n.Config.Name, plan.Gatekeeper) }, short},
	} {
		if !p.Managed && phase.x != report.GatekeeperThere {
			continue // it has none
		}
		if err := phase.begin(); err != nil {
			return err
		}
		l.Progress("%s: %s, the Gatekeeper %s", e.Name, p.Title, phase.label)
		a, err := pair.client.Ask(ctx, agent.Request{Measure: &agent.Measure{
			Work: peer.Work{Op: peer.Increment, Size: crowdSize}, Callers: crowd, Warmup: 10 * l.Pace.Warmup, For: phase.lasts,
		}})
		if err != nil {
			return err
		}
		rate := a.Result.Rate / 1e3
		e.Add(p.Name, p.Title, report.Point{X: phase.x, Label: phase.label, Value: rate, Low: rate, High: rate})
	}
	return nil
}

var byRegionWork = Experiment{
	Experiment: report.Experiment{
		Name: "by-region-work", Question: "What does a call by region cost those whom all calls of a rack share?",
		Method: "64 KiB there and back in regions, exactly once, one call after the other, and none. Memory machines have two copies. CPU times and packets are what the components count themselves, while the calls last, " +
			"divided by the number of calls. The kernel's work on packets is not among them: it is done by who sends.",
		X: report.Axis{Title: "policy", Scale: report.Category}, Y: report.Axis{Title: "for each call", Unit: "packets, requests, µs", Scale: report.Linear},
	},
	NoRack: true,
	Run: func(ctx context.Context, l *Lab, e *report.Experiment) error {
		return l.onOwn(ctx, l.Rack, func(l *Lab, n *topology.Namespaces) error {
			w := works{Lab: l, n: n}
			for x, name := range []string{"bifrost-regions", "bifrost-regions-exact"} {
				l.Progress("%s: %s", e.Name, name)
				p, err := peer.Find(name)
				if err != nil {
					return err
				}
				pair, err := l.pair(ctx, p, false, serverBlade)
				if err != nil {
					return err
				}
				err = w.count(ctx, pair, agent.Measure{Work: peer.Work{Op: peer.Increment, Size: 64 << 10}, Callers: 1}, report.Point{X: float64(x), Label: []string{"none", "exactly once"}[x]}, e)
				pair.close()
				if err != nil {
					return err
				}
			}
			return nil
		})
	},
}
