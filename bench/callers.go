package bench

import (
	"context"
	"fmt"

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
		for n := 1; n <= 1024; n *= 2 {
			if l.Pace.Fewer && n != 1 && n != 64 && n != 1024 {
				continue
			}
			c.points = append(c.points, point{x: float64(n), work: peer.Work{Op: peer.Ping}, callers: n})
		}
		if err := c.run(ctx, l, e); err != nil {
			return err
		}
		e.Notes = append(e.Notes, tails(e)...)
		return nil
	},
}

// manyCallers is the crowd whose slowest calls are told.
const manyCallers = 1024

// tails tells, of each contender with many callers, how its slowest calls stand to the
// median, and how many calls were sent again.
func tails(e *report.Experiment) (notes []string) {
	for _, s := range e.Series {
		for _, p := range s.Points {
			if d := p.Detail; p.X == manyCallers && d != nil {
				note := fmt.Sprintf("%s, %d callers: median %.0f µs, p99 %.0f µs, %.1f times as long", s.Title, manyCallers, d.P50, d.P99, d.P99/d.P50)
				if s.Name == "thrift-udp" {
					note += fmt.Sprintf("; %d of %d calls were sent again", d.Resent, d.N)
				}
				notes = append(notes, note)
			}
		}
	}
	return notes
}
