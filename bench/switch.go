package bench

import (
	"context"
	"fmt"
	"strings"

	"github.com/bifrost-rack/bifrost/bench/report"
	"github.com/bifrost-rack/bifrost/bench/switches"
)

// switchTitles are the contenders between two hosts, in the order in which they
// are told of.
var switchTitles = []struct{ name, title string }{
	{"cable", "a cable"}, {"bridge", "Linux bridge"}, {"ebpf", "Bifröst, eBPF"}, {"go", "Bifröst, Go"}, {"ovs", "Open vSwitch"}, {"bmv2", "bmv2"},
}

var switchRoundTrip = Experiment{
	Experiment: report.Experiment{
		Name: "switch-round-trip", Question: "What does the switch cost?", Figures: "7.1 to 7.3",
		Method: "UDP round trips of 64 bytes between two hosts on blocking sockets, an MTU of 1500; Bifröst's switches run the whole P4 program with 10,000 rules that say who may allocate where. " +
			"(`bifrost bench switch` measures throughput and updates of rules, too.)",
		X: report.Axis{Title: "switch", Scale: report.Category}, Y: report.Axis{Title: "UDP round trip, median", Unit: "µs", Scale: report.Linear},
	},
	NoRack: true,
	Run:    runSwitches,
}

func runSwitches(ctx context.Context, l *Lab, e *report.Experiment) error {
	o := switches.Options{
		Rules: 10_000, Rounds: l.Pace.Repeats, RoundTrip: 2 * l.Pace.Measure, Stream: 2 * l.Pace.Measure, Flood: l.Pace.Measure, Write: l.Pace.Measure,
		Progress: progressWriter{func(line string) { l.Progress("%s: %s", e.Name, line) }},
	}
	if l.Pace.Fewer {
		o.Rules = 100
	}
	r, err := switches.Run(ctx, o)
	if err != nil {
		return err
	}
	e.MeasureSeconds = (2 * l.Pace.Measure).Seconds()
	trips := report.Series{Name: "udp", Title: "UDP round trip"}
	var tcp []string
	for i, s := range switchTitles {
		q, ok := r.RoundTrip[s.name]
		if !ok {
			e.Notes = append(e.Notes, s.title+" was not measured: it is not installed, see `bifrost bench switch`")
			continue
		}
		trips.Points = append(trips.Points, report.Point{X: float64(i), Label: s.title, Value: q.P50, Low: q.P50, High: q.P99})
		if rate := r.TCP[s.name]; rate > 0 {
			tcp = append(tcp, fmt.Sprintf("%s %.2f", s.title, rate))
		}
	}
	e.Series = append(e.Series, trips)
	e.Notes = append(e.Notes, fmt.Sprintf("%d rules beside those in use", o.Rules), "TCP, one stream, Gbit/s: "+strings.Join(tcp, ", "))
	return nil
}

// progressWriter takes lines of progress.
type progressWriter struct{ tell func(line string) }

// Write implements io.Writer.
func (w progressWriter) Write(b []byte) (int, error) {
	for n := len(b); n > 0 && (b[n-1] == '\n' || b[n-1] == '\r'); n-- {
		b = b[:n-1]
	}
	w.tell(string(b))
	return len(b), nil
}
