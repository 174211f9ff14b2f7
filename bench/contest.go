package bench

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/bifrost-rack/bifrost/bench/agent"
	"github.com/bifrost-rack/bifrost/bench/peer"
	"github.com/bifrost-rack/bifrost/bench/report"
	"github.com/bifrost-rack/bifrost/bench/stats"
)

// contest is an experiment in which peers do the same work.
type contest struct {
	peers []string
	// servers are the blades that serve; default: one.
	servers []string
	// memory has peers other than Bifröst serve where its memory is.
	memory bool
	// replicas are more blades that a peer serves on, by the peer's name; with memory.
	replicas map[string][]string
	chain    bool
	points   []point
	// suffix is added to the names of series, for experiments of several contests.
	suffix string
	// unable says which peer a point means nothing to.
	unable func(p peer.Peer, at point) bool
	// ended, if not nil, is told of each pair when all is measured.
	ended func(*pair) error
	// value is what is drawn; default: the median latency.
	value func(at point, c stats.Combined) (value, low, high float64)
}

// point is one x.
type point struct {
	x       float64
	label   string
	work    peer.Work
	callers int
}

// entrant is a contender with what it has measured.
type entrant struct {
	*pair
	repeats [][]stats.Summary // by point
}

// run measures all contenders in turns and puts the series into e.
func (c contest) run(ctx context.Context, l *Lab, e *report.Experiment) error {
	entrants, end, err := c.enter(ctx, l, e)
	if err != nil {
		return err
	}
	defer end()
	for n := range l.Pace.Repeats {
		if err := c.repeat(ctx, l, e, entrants, n); err != nil {
			return err
		}
	}
	e.Series = append(e.Series, c.series(entrants)...)
	for _, x := range entrants {
		if c.ended == nil {
			break
		}
		if err := c.ended(x.pair); err != nil {
			return err
		}
	}
	return nil
}

// enter starts the contenders; end ends them.
func (c contest) enter(ctx context.Context, l *Lab, e *report.Experiment) (entrants []*entrant, end func(), err error) {
	peers, notes, err := l.able(c.peers)
	if err != nil {
		return nil, nil, err
	}
	if len(peers) == 0 {
		return nil, nil, fmt.Errorf("nothing of it can be measured here: %s", strings.Join(notes, "; "))
	}
	e.Notes = append(e.Notes, notes...)
	end = func() {
		for _, x := range entrants {
			x.close()
		}
	}
	for _, p := range peers {
		pair, err := l.pair(ctx, p, c.chain, c.blades(p)...)
		if err != nil {
			end()
			return nil, nil, err
		}
		entrants = append(entrants, &entrant{pair: pair, repeats: make([][]stats.Summary, len(c.points))})
	}
	return entrants, end, nil
}

// repeat measures all points once more, contenders in turns.
func (c contest) repeat(ctx context.Context, l *Lab, e *report.Experiment, entrants []*entrant, n int) error {
	for i, at := range c.points {
		l.Progress("%s: repeat %d of %d, %s", e.Name, n+1, l.Pace.Repeats, at.name(e))
		for _, x := range c.order(entrants, n) {
			if err := c.measure(ctx, l, x, i, at); err != nil {
				return err
			}
		}
	}
	return nil
}

// blades says where a peer serves.
func (c contest) blades(p peer.Peer) []string {
	switch {
	case c.memory && !p.Managed:
		return append([]string{memoryBlade}, c.replicas[p.Name]...)
	case len(c.servers) > 0:
		return c.servers
	}
	return []string{serverBlade}
}

// order has contenders begin in turn, so that none is always after the same one.
func (c contest) order(entrants []*entrant, repeat int) []*entrant {
	n := repeat % len(entrants)
	return slices.Concat(entrants[n:], entrants[:n])
}

func (p point) name(e *report.Experiment) string {
	if p.label != "" {
		return p.label
	}
	return fmt.Sprintf("%s %g %s", e.X.Title, p.x, e.X.Unit)
}

func (c contest) measure(ctx context.Context, l *Lab, x *entrant, i int, at point) error {
	if c.unable != nil && c.unable(x.peer, at) {
		return nil
	}
	a, err := x.client.Ask(ctx, agent.Request{Measure: &agent.Measure{
		Work: at.work, Callers: max(1, at.callers), Warmup: l.Pace.Warmup, For: l.Pace.Measure,
	}})
	if err != nil {
		return err
	}
	x.repeats[i] = append(x.repeats[i], *a.Result)
	return nil
}

func (c contest) series(entrants []*entrant) (all []report.Series) {
	for _, x := range entrants {
		s := report.Series{Name: x.peer.Name, Title: x.peer.Title}
		if c.suffix != "" {
			s.Name, s.Title = s.Name+"-"+c.suffix, s.Title+", "+c.suffix
		}
		for i, at := range c.points {
			if len(x.repeats[i]) == 0 {
				continue
			}
			combined := stats.Combine(x.repeats[i])
			p := report.Point{X: at.x, Label: at.label, Value: combined.P50, Low: combined.Low, High: combined.High, Detail: &combined}
			if c.value != nil {
				p.Value, p.Low, p.High = c.value(at, combined)
			}
			s.Points = append(s.Points, p)
		}
		all = append(all, s)
	}
	return all
}

// rate is a contest's value where throughput is drawn: thousand operations a second.
func rate(_ point, c stats.Combined) (value, low, high float64) {
	return c.Rate / 1e3, c.RateLow / 1e3, c.RateHigh / 1e3
}
