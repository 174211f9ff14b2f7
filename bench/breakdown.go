package bench

import (
	"context"
	"fmt"

	"github.com/bifrost-rack/bifrost/bench/agent"
	"github.com/bifrost-rack/bifrost/bench/peer"
	"github.com/bifrost-rack/bifrost/bench/report"
	"github.com/bifrost-rack/bifrost/bench/stats"
)

// breakdownSize is the thesis's: arrays of 16 KiB.
const breakdownSize = 16 << 10

// wordSize is the size of the smallest memory access, in bytes.
const wordSize = 8

// Parts that time goes to, in the order in which they are stacked.
var parts = []string{"marshal", "network", report.Rights, "DSM", "compute", "rest"}

var whereTimeGoes = Experiment{
	Experiment: report.Experiment{
		Name: "where-time-goes", Question: "Where does the time of a call go?", Figures: "7.8",
		Method: "Means of clocks in client and server, over arrays of 16 KiB. marshal: the generated code's reading and writing, on both sides. " +
			"compute: the handler without its memory accesses. network: by value, the call without all that; by reference, what a ping of the same " +
			"processes takes. DSM: reads and writes of memory, and for allocations and frees what a read of 8 bytes takes. regions and rights: what " +
			"allocations and frees take beyond that, and a call with regions beyond a ping. rest: what no clock has seen.",
		X: report.Axis{Title: "workload", Scale: report.Parts}, Y: report.Axis{Title: "time of one operation, mean", Unit: "µs", Scale: report.Linear},
	},
	Run: func(ctx context.Context, l *Lab, e *report.Experiment) error {
		peers, notes, err := l.able([]string{"bifrost-regions", "thrift-udp", "thrift-framed", "thrift-buffered"})
		if err != nil {
			return err
		}
		e.Notes = append(e.Notes, notes...)
		e.Series = make([]report.Series, len(parts))
		for i, name := range parts {
			e.Series[i] = report.Series{Name: name, Title: name}
		}
		for _, p := range peers {
			if err := l.breakDown(ctx, e, p); err != nil {
				return err
			}
		}
		return nil
	},
}

// breakDown measures the parts of both workloads with one peer.
func (l *Lab) breakDown(ctx context.Context, e *report.Experiment, p peer.Peer) error {
	pair, err := l.pair(ctx, p, false, serverBlade)
	if err != nil {
		return err
	}
	defer pair.close()
	for _, op := range []string{peer.Increment, peer.Add} {
		l.Progress("%s: %s with %s", e.Name, op, p.Title)
		label := op + "\n" + p.Title
		repeats := make([][]float64, len(parts))
		for range l.Pace.Repeats {
			b, err := pair.breakDown(ctx, l.Pace, op, p.Name == "bifrost-regions")
			if err != nil {
				return err
			}
			for i, v := range b.parts() {
				repeats[i] = append(repeats[i], v)
			}
		}
		for i, values := range repeats {
			at := report.Point{X: float64(len(e.Series[i].Points)), Label: label}
			at.Value, at.Low, at.High = stats.Spread(values)
			e.Series[i].Points = append(e.Series[i].Points, at)
		}
	}
	return nil
}

// clocks are the means per operation of what was timed, in microseconds.
type clocks struct {
	total  float64
	client map[peer.Phase]float64
	server map[peer.Phase]float64
	// Of by-reference calls: what a ping's way takes, and a read of a word.
	network, word float64
}

func (c *pair) breakDown(ctx context.Context, pace Pace, op string, reference bool) (clocks, error) {
	b, err := c.timed(ctx, pace, peer.Work{Op: op, Size: breakdownSize})
	if err != nil || !reference {
		return b, err
	}
	ping, err := c.timed(ctx, pace, peer.Work{Op: peer.Ping})
	if err != nil {
		return b, err
	}
	word, err := c.timed(ctx, pace, peer.Work{Op: peer.Read, Size: wordSize})
	b.network, b.word = ping.way(), word.total
	return b, err
}

// timed measures an operation with all clocks on.
func (c *pair) timed(ctx context.Context, pace Pace, w peer.Work) (b clocks, err error) {
	measure := &agent.Measure{Work: w, Callers: 1, For: max(pace.Warmup, 1)}
	if _, err := c.client.Ask(ctx, agent.Request{Measure: measure}); err != nil {
		return b, err
	}
	if _, err := c.servers[0].Ask(ctx, agent.Request{Phases: true}); err != nil { // begins anew
		return b, err
	}
	measure.For, measure.Phases = pace.Measure, true
	done, err := c.client.Ask(ctx, agent.Request{Measure: measure})
	if err != nil {
		return b, err
	}
	mine, err := c.client.Ask(ctx, agent.Request{Phases: true})
	if err != nil {
		return b, err
	}
	theirs, err := c.servers[0].Ask(ctx, agent.Request{Phases: true})
	n := int64(done.Result.N)
	b = clocks{total: done.Result.Mean, client: means(mine.Phases, n), server: means(theirs.Phases, n)}
	if n == 0 {
		err = fmt.Errorf("%s: nothing was measured", w.Op)
	}
	return b, err
}

func means(phases map[peer.Phase]peer.Total, n int64) map[peer.Phase]float64 {
	m := map[peer.Phase]float64{}
	for name, t := range phases {
		m[name] = t.Mean(n)
	}
	return m
}

// way is a call without what client and server do for it.
func (b clocks) way() float64 {
	return max(0, b.client[peer.Call]-b.client[peer.Marshal]-b.server[peer.Unmarshal])
}

// parts are the values of parts, in their order.
func (b clocks) parts() []float64 {
	marshal := b.client[peer.Marshal] + max(0, b.server[peer.Unmarshal]-b.server[peer.Handler])
	compute := b.server[peer.Handler] - b.server[peer.Memory]
	network, rights, dsm := b.way(), 0.0, 0.0
	if b.word > 0 {
		slots := b.client[peer.Alloc] + b.client[peer.Free] + b.server[peer.HAlloc]
		const steps = 3 // the client's allocations, the handler's, and the frees
		dsm = b.client[peer.Pre] + b.client[peer.Post] + b.server[peer.Memory] - slots + steps*b.word
		rights = max(0, slots-steps*b.word) + max(0, network-b.network)
		network = min(network, b.network)
	}
	rest := b.total - marshal - network - rights - dsm - compute
	return []float64{marshal, network, rights, dsm, compute, max(0, rest)}
}
