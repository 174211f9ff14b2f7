package bench

import (
	"context"

	"github.com/bifrost-rack/bifrost/bench/peer"
	"github.com/bifrost-rack/bifrost/bench/report"
)

var memoryOrRedis = Experiment{
	Experiment: report.Experiment{
		Name: "memory-or-redis", Question: "How fast is distributed memory, beside Redis and TCP?",
		Method: "x",
		X:      report.Axis{Title: "bytes", Unit: "bytes", Scale: report.Log}, Y: microseconds,
	},
	Run: func(ctx context.Context, l *Lab, e *report.Experiment) error {
		c := contest{peers: []string{"bifrost", "redis", "tcp"}, memory: true, points: l.sizes(peer.Read)}
		return c.run(ctx, l, e)
	},
}
