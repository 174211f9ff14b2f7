package bench

import (
	"context"

	"github.com/bifrost-rack/bifrost/bench/peer"
	"github.com/bifrost-rack/bifrost/bench/report"
)

// chainArray is the argument's size in bytes.
const chainArray = 1 << 20

var callChain = Experiment{
	Experiment: report.Experiment{
		Name: "call-chain", Question: "What does an argument cost that is passed on, by reference and by value?",
		Method: "An array of 1 MiB goes through a chain of calls on two blades in turn; the last stage reads it and returns its sum. " +
			"By reference it is allocated, written and freed each time, and read once.",
		X: report.Axis{Title: "calls in the chain", Scale: report.Linear}, Y: microseconds,
	},
	Run: func(ctx context.Context, l *Lab, e *report.Experiment) error {
		c := contest{
			peers: []string{"bifrost", "thrift-framed", "thrift-buffered", "grpc"}, servers: []string{serverBlade, otherBlade}, chain: true,
		}
		for hops := 1; hops <= peer.MaxHops; hops++ {
			if l.Pace.Fewer && hops%4 != 0 {
				continue
			}
			c.points = append(c.points, point{x: float64(hops), work: peer.Work{Op: peer.Chain, Size: chainArray, Hops: hops}})
		}
		return c.run(ctx, l, e)
	},
}
