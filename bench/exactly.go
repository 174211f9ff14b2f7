package bench

import (
	"context"

	"github.com/bifrost-rack/bifrost/bench/peer"
	"github.com/bifrost-rack/bifrost/bench/report"
)

var exactlyOnce = Experiment{
	Experiment: report.Experiment{
		Name: "exactly-once", Question: "What does exactly-once cost?",
		Method: "The same calls with policy none (at most once; only what carries a pointer is held) and with policy recover, where every call and every answer " +
			"is logged before it goes on. The log is in memory, so no disk is measured.",
		X: report.Axis{Title: "call", Scale: report.Category}, Y: report.Axis{Title: "latency, median", Unit: "µs", Scale: report.Linear},
	},
	Run: func(ctx context.Context, l *Lab, e *report.Experiment) error {
		return contest{
			peers: []string{"bifrost", "bifrost-exact"},
			points: []point{
				{x: 0, label: "ping", work: peer.Work{Op: peer.Ping}},
				{x: 1, label: "increment 1 KiB", work: peer.Work{Op: peer.Increment, Size: 1 << 10}},
				{x: 2, label: "add 64 KiB", work: peer.Work{Op: peer.Add, Size: 64 << 10}},
			},
		}.run(ctx, l, e)
	},
}
