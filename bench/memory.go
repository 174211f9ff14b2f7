package bench

import (
	"context"

	"github.com/bifrost-rack/bifrost/bench/peer"
	"github.com/bifrost-rack/bifrost/bench/report"
)

var memoryOrRedis = Experiment{
	Experiment: report.Experiment{
		Name: "memory-or-redis", Question: "How fast is distributed memory, beside Redis and bare TCP?",
		Method: "A blade reads and writes memory of another: a region that it controls, or a value of Redis by GET and SET, or as many bytes on a TCP " +
			"connection, asked for by one byte. Redis and the memory daemons have the same CPUs.",
		X: report.Axis{Title: "size", Unit: "bytes", Scale: report.Log}, Y: microseconds,
	},
	Run: func(ctx context.Context, l *Lab, e *report.Experiment) error {
		for _, op := range []string{peer.Read, peer.Write} {
			c := contest{peers: []string{"bifrost", "redis", "tcp"}, memory: true, points: l.sizes(op), suffix: op}
			if err := c.run(ctx, l, e); err != nil {
				return err
			}
		}
		return nil
	},
}
