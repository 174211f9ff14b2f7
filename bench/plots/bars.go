package plots

import (
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"github.com/bifrost-rack/bifrost/bench/report"
)

// group is how wide the bars of one label are together.
const group = 1.6 * vg.Centimeter

// bars draws a group of bars for each label, one for each series. With a single
// label the series are the labels.
func bars(p *plot.Plot, e *report.Experiment) error {
	labels := labelsOf(e)
	if len(labels) == 1 {
		return single(p, e)
	}
	wide := group / vg.Length(max(1, len(e.Series)))
	for i, s := range e.Series {
		values := make(plotter.Values, len(labels))
		for at, label := range labels {
			values[at] = valueAt(s, label)
		}
		bar, err := plotter.NewBarChart(values, wide)
		if err != nil {
			return err
		}
		bar.Color, bar.LineStyle.Width = colour(i), 0
		bar.Offset = wide * (vg.Length(i) - vg.Length(len(e.Series)-1)/2)
		p.Add(bar)
		p.Legend.Add(s.Title, bar)
	}
	nominal(p, labels)
	return nil
}

// single draws one bar for each series.
func single(p *plot.Plot, e *report.Experiment) error {
	var names []string
	for i, s := range e.Series {
		if len(s.Points) == 0 {
			continue
		}
		bar, err := plotter.NewBarChart(plotter.Values{s.Points[0].Value}, group/2)
		if err != nil {
			return err
		}
		bar.Color, bar.LineStyle.Width, bar.XMin = colour(i), 0, float64(len(names))
		p.Add(bar)
		names = append(names, s.Title)
	}
	nominal(p, names)
	return nil
}

// stacks draws a bar for each label, of the series on top of each other.
func stacks(p *plot.Plot, e *report.Experiment) error {
	labels := labelsOf(e)
	var below *plotter.BarChart
	for i, s := range e.Series {
		values := make(plotter.Values, len(labels))
		for at, label := range labels {
			values[at] = valueAt(s, label)
		}
		bar, err := plotter.NewBarChart(values, group/2)
		if err != nil {
			return err
		}
		bar.Color, bar.LineStyle.Width = colour(i), 0
		if below != nil {
			bar.StackOn(below)
		}
		below = bar
		p.Add(bar)
		p.Legend.Add(s.Title, bar)
	}
	nominal(p, labels)
	return nil
}

// labelsOf lists the labels that any series has.
func labelsOf(e *report.Experiment) (labels []string) {
	seen := map[string]bool{}
	for _, s := range e.Series {
		for _, at := range s.Points {
			if !seen[at.Label] {
				seen[at.Label] = true
				labels = append(labels, at.Label)
			}
		}
	}
	return labels
}

func valueAt(s report.Series, label string) float64 {
	for _, p := range s.Points {
		if p.Label == label {
			return p.Value
		}
	}
	return 0
}
