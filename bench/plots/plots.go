// Package plots draws the pictures of a report, as SVG and PNG.
package plots

import (
	"errors"
	"fmt"
	"image/color"
	"math"
	"path/filepath"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/bifrost-rack/bifrost/bench/report"
)

// The pictures' size.
const (
	width  = 18 * vg.Centimeter
	height = 11 * vg.Centimeter
)

// Formats of the files that Save writes.
var Formats = []string{"svg", "png"}

// Save draws an experiment into DIR/<name>.svg and .png.
func Save(e *report.Experiment, dir string) error {
	p, err := Draw(e)
	if err != nil {
		return fmt.Errorf("picture of %s: %w", e.Name, err)
	}
	for _, format := range Formats {
		if err := p.Save(width, height, filepath.Join(dir, e.Name+"."+format)); err != nil {
			return fmt.Errorf("picture of %s: %w", e.Name, err)
		}
	}
	return nil
}

// Draw makes the picture of an experiment.
func Draw(e *report.Experiment) (*plot.Plot, error) {
	if err := drawable(e); err != nil {
		return nil, err
	}
	p := plot.New()
	p.Title.Text = e.Question
	p.Title.Padding = vg.Points(6)
	p.X.Label.Text, p.Y.Label.Text = label(e.X), label(e.Y)
	p.Legend.Top, p.Legend.Left = true, true
	p.Legend.TextStyle.Font.Size = vg.Points(9)
	p.Add(grid())
	scale(&p.Y, e.Y, false)
	switch e.X.Scale {
	case report.Category:
		return p, bars(p, e)
	case report.Parts:
		return p, stacks(p, e)
	}
	scale(&p.X, e.X, true)
	return p, lines(p, e)
}

// drawable refuses what gonum would panic at: logarithms of what is not positive.
func drawable(e *report.Experiment) error {
	points := 0
	for _, s := range e.Series {
		for _, at := range s.Points {
			points++
			if e.X.Scale == report.Log && !(at.X > 0) || e.Y.Scale == report.Log && !(min(at.Low, at.Value) > 0) {
				return fmt.Errorf("%s at %g is %g: a logarithmic axis needs more than 0", s.Title, at.X, at.Value)
			}
		}
	}
	if points == 0 {
		return errors.New("it has no points")
	}
	return nil
}

func label(a report.Axis) string {
	if a.Unit == "" || a.Unit == a.Title {
		return a.Title
	}
	return a.Title + ", " + a.Unit
}

func grid() *plotter.Grid {
	g := plotter.NewGrid()
	g.Vertical.Color, g.Horizontal.Color = color.Gray{230}, color.Gray{230}
	return g
}

// scale gives an axis its scale; counts have ticks of powers of two.
func scale(a *plot.Axis, as report.Axis, counts bool) {
	switch {
	case as.Scale == report.Log && counts:
		a.Scale, a.Tick.Marker = plot.LogScale{}, binaryTicks{}
	case as.Scale == report.Log:
		a.Scale, a.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	default:
		a.Min = 0
	}
}

// binaryTicks marks powers of 2, every other with its name if there are many.
type binaryTicks struct{}

// Ticks implements plot.Ticker.
func (binaryTicks) Ticks(low, high float64) (ticks []plot.Tick) {
	from, to := int(math.Floor(math.Log2(max(low, 1)))), int(math.Ceil(math.Log2(max(high, 1))))
	step := 1 + (to-from)/9
	for n := from; n <= to; n++ {
		v := math.Exp2(float64(n))
		if v < low || v > high {
			continue
		}
		t := plot.Tick{Value: v}
		if (n-from)%step == 0 {
			t.Label = report.Size(v)
		}
		ticks = append(ticks, t)
	}
	return ticks
}

// palette are colours that also people who confuse red and green can tell apart
// (Okabe and Ito).
var palette = []color.RGBA{
	{0, 114, 178, 255}, {230, 159, 0, 255}, {213, 94, 0, 255}, {0, 158, 115, 255}, {204, 121, 167, 255}, {86, 180, 233, 255}, {90, 90, 90, 255}, {170, 130, 30, 255},
}

func colour(i int) color.RGBA { return palette[i%len(palette)] }

// lines draws each series as a line with its points and the spread of its repeats.
func lines(p *plot.Plot, e *report.Experiment) error {
	for i, s := range e.Series {
		data := spread{s}
		if data.Len() == 0 {
			continue
		}
		line, points, err := plotter.NewLinePoints(data)
		if err != nil {
			return err
		}
		whiskers, err := plotter.NewYErrorBars(data)
		if err != nil {
			return err
		}
		line.Color, points.Color, whiskers.Color = colour(i), colour(i), colour(i)
		line.Width = vg.Points(1.5)
		points.Shape = shapes[i%len(shapes)]
		p.Add(whiskers, line, points)
		p.Legend.Add(s.Title, line, points)
	}
	p.Y.Max *= 1.1
	return nil
}

var shapes = []draw.GlyphDrawer{
	draw.CircleGlyph{}, draw.BoxGlyph{}, draw.TriangleGlyph{}, draw.RingGlyph{}, draw.SquareGlyph{}, draw.PyramidGlyph{}, draw.CrossGlyph{}, draw.PlusGlyph{},
}

// spread is a series as the plotters take it.
type spread struct{ report.Series }

// Len implements plotter.XYer.
func (s spread) Len() int { return len(s.Points) }

// XY implements plotter.XYer.
func (s spread) XY(i int) (x, y float64) { return s.Points[i].X, s.Points[i].Value }

// YError implements plotter.YErrorer.
func (s spread) YError(i int) (below, above float64) {
	p := s.Points[i]
	return p.Value - p.Low, p.High - p.Value
}

// nominal puts labels below the bars.
func nominal(p *plot.Plot, labels []string) {
	p.NominalX(labels...)
	p.X.Tick.Label.Font.Size = vg.Points(8)
	if len(labels) > 5 || len(strings.Join(labels, "")) > 90 {
		p.X.Tick.Label.Rotation = math.Pi / 8
		p.X.Tick.Label.XAlign, p.X.Tick.Label.YAlign = text.XRight, text.YTop
	}
	p.X.Min, p.X.Max = -0.5, float64(len(labels))-0.5
	p.Y.Max *= 1.25 // room for the legend
	p.Legend.Left = false
}
