package bench

import (
	"context"
	"errors"
	"time"

	"github.com/bifrost-rack/bifrost/bench/report"
	"github.com/bifrost-rack/bifrost/bench/stats"
	"github.com/bifrost-rack/bifrost/bench/topology"
	"github.com/bifrost-rack/bifrost/rack/outage"
)

// recoveryHeartbeat is how often blades report. A blade that dies is noticed by
// its silence alone; a program's end is told by its blade's daemon.
const recoveryHeartbeat = 250 * time.Millisecond

var recoveryTime = Experiment{
	Experiment: report.Experiment{
		Name: "recovery-time", Question: "How long is a service away when its program or its blade dies?",
		Method: "A client calls a service that keeps state, exactly once, all the time. Its process is killed, and later all of its blade; it goes on, on the blade or on " +
			"a spare, with its state, and the call that was cut off is run again. Measured is the time from the kill to the first right answer. Blades report every 250 ms; " +
			"a silent one is given up after three reports.",
		X: report.Axis{Title: "killed", Scale: report.Category}, Y: report.Axis{Title: "kill to first answer, median", Unit: "ms", Scale: report.Linear},
	},
	NoRack: true,
	Run:    measureRecovery,
}

func measureRecovery(ctx context.Context, l *Lab, e *report.Experiment) (err error) {
	h := host(l.Bifrost)
	release, err := topology.Claim(ctx, h, l.Rack.Name, l.Progress)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	rounds := 2 * l.Pace.Repeats
	if l.Pace.Fewer {
		rounds = 1
	}
	r, err := outage.Measure(ctx, outage.Config{
		Host: h, Name: l.Rack.Name, Rounds: rounds, Heartbeat: recoveryHeartbeat,
		Out: progressWriter{func(line string) { l.Progress("%s: %s", e.Name, line) }},
	})
	if err != nil {
		return err
	}
	e.Repeats, e.WarmupSeconds, e.MeasureSeconds = rounds, 0, 0
	s := report.Series{Name: "away", Title: "away"}
	for i, one := range []struct {
		label string
		took  []time.Duration
	}{{"nothing", r.Usual}, {"the program", r.Program}, {"its blade", r.Blade}} {
		p := report.Point{X: float64(i), Label: one.label}
		p.Value, p.Low, p.High = stats.Spread(milliseconds(one.took))
		s.Points = append(s.Points, p)
	}
	e.Series = []report.Series{s}
	return nil
}

func milliseconds(took []time.Duration) (ms []float64) {
	for _, d := range took {
		ms = append(ms, float64(d)/float64(time.Millisecond))
	}
	return ms
}
