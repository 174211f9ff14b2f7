package bench

import (
	"context"

	"github.com/bifrost-rack/bifrost/bench/peer"
	"github.com/bifrost-rack/bifrost/bench/report"
)

var microseconds = report.Axis{Title: "latency, median", Unit: "µs", Scale: report.Log}

var pingOverhead = Experiment{
	Experiment: report.Experiment{
		Name: "ping-overhead", Question: "What is the base overhead of a call?", Figures: "7.4",
		Method: "A call without arguments or result, beside 29 bytes there and 1 byte back on bare sockets.",
		X:      report.Axis{Title: "call", Scale: report.Category},
		Y:      report.Axis{Title: "round trip, median", Unit: "µs", Scale: report.Linear},
	},
	Run: func(ctx context.Context, l *Lab, e *report.Experiment) error {
		return contest{
			peers:  []string{"udp", "udp-spin", "tcp", "thrift-udp", "bifrost-exact", "thrift-framed", "thrift-buffered", "grpc"},
			points: []point{{label: "ping", work: peer.Work{Op: peer.Ping}}},
		}.run(ctx, l, e)
	},
}

var udpOrTCP = Experiment{
	Experiment: report.Experiment{
		Name: "udp-or-tcp", Question: "What is the impact of UDP or TCP below Thrift?", Figures: "7.5",
		Method: "The same generated Thrift code, echoing arrays by value over TCP and over Bifröst's UDP runtime without management.",
		X:      report.Axis{Title: "array", Unit: "bytes", Scale: report.Log}, Y: microseconds,
	},
	Run: func(ctx context.Context, l *Lab, e *report.Experiment) error {
		return contest{
			peers: []string{"udp", "tcp", "thrift-udp", "thrift-framed", "thrift-buffered"}, points: l.sizes(peer.Increment), unable: tooLarge,
		}.run(ctx, l, e)
	},
}
