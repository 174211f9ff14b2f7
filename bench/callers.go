package bench

import (
	"context"

	"github.com/bifrost-rack/bifrost/bench/peer"
	"github.com/bifrost-rack/bifrost/bench/report"
)

var callers = Experiment{
	Experiment: report.Experiment{
		Name: "concurrent-callers", Question: "How many calls a second do many callers get?",
		Method: "Callers of one process ping one server as fast as they are answered; both have a CPU. Thrift over TCP has a connection for each caller.",
		X:      report.Axis{Title: "callers", Scale: report.Log},
		Y:      report.Axis{Title: "throughput", Unit: "1000 calls/s", Scale: report.Linear},
	},
	Run: func(ctx context.Context, l *Lab, e *report.Experiment) error {
		c := contest{peers: []string{"thrift-udp", "thrift-framed", "thrift-buffered", "grpc"}, value: rate}
		for n := 1; n <= 256; n *= 2 {
			if l.Pace.Fewer && n != 1 && n != 64 {
				continue
			}
			c.points = append(c.points, point{x: float64(n), work: peer.Work{Op: peer.Ping}, callers: n})
		}
		return c.run(ctx, l, e)
	},
}
