package bench

import (
	"context"
	"fmt"

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
