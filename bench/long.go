package bench

import (
	"context"
	"fmt"

	"github.com/bifrost-rack/bifrost/bench/agent"
	"github.com/bifrost-rack/bifrost/bench/peer"
	"github.com/bifrost-rack/bifrost/bench/report"
)

// longValues are messages up to the longest one.
var longValues = Experiment{
	Experiment: report.Experiment{
		Name: "long-values", Question: "What do the longest messages cost, in time and in memory?",
		Method: "A value of so many bytes is passed by value, and returned as it is. The most memory that the client's and the server's process have had is noted, what waits to be collected included.",
		X:      report.Axis{Title: "value", Unit: "bytes", Scale: report.Log}, Y: report.Axis{Title: "there and back, median", Unit: "µs", Scale: report.Log},
	},
	Run: func(ctx context.Context, l *Lab, e *report.Experiment) error {
		all := []int{64 << 20, 256 << 20, peer.MaxTransfer}
		if l.Pace.Fewer {
			all = all[:1]
		}
		c := contest{peers: []string{"tcp", "thrift-udp"}}
		for _, n := range all {
			c.points = append(c.points, point{x: float64(n), work: peer.Work{Op: peer.Transfer, Size: n, Reply: n}})
		}
		c.ended = func(p *pair) error {
			var most [2]uint64
			for i, process := range []*agent.Process{p.client, p.servers[0]} {
				var err error
				if most[i], err = process.MostMemory(); err != nil {
					return err
				}
			}
			e.Notes = append(e.Notes, fmt.Sprintf("%s: the client has %d MiB of memory at most, the server %d MiB", p.peer.Title, most[0]>>20, most[1]>>20))
			return nil
		}
		return c.run(ctx, l, e)
	},
}
