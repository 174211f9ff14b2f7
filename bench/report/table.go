package report

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// WriteTables writes every experiment as a table: a row for each x, a column for
// each contender.
func WriteTables(w io.Writer, r *Report) error {
	for i := range r.Experiments {
		e := &r.Experiments[i]
		if _, err := fmt.Fprintf(w, "\n%s: %s\n", e.Name, e.Question); err != nil {
			return err
		}
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
		for _, row := range e.rows() {
			fmt.Fprintln(t, strings.Join(row, "\t")+"\t")
		}
		if err := t.Flush(); err != nil {
			return err
		}
		for _, n := range e.Notes {
			fmt.Fprintln(w, "note:", n)
		}
		fmt.Fprintf(w, "load %.1f to %.1f\n", e.LoadBefore, e.LoadAfter)
	}
	return writeAims(w, r)
}

// writeAims writes what was aimed at, as far as it was measured.
func writeAims(w io.Writer, r *Report) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	head := "\nMEASURE\tAIM\tHERE\tREACHED\n"
	for _, f := range r.Findings() {
		if !f.Measured() {
			continue
		}
		reached := "no"
		if f.Reached() {
			reached = "yes"
		}
		fmt.Fprintf(t, "%s%s\t%s\t%s\t%s\n", head, f.Measure, f.aim(), f.text(), reached)
		head = ""
	}
	return t.Flush()
}

// rows are the cells of an experiment's table, the head first.
func (e *Experiment) rows() [][]string {
	head := []string{e.X.named()}
	for _, s := range e.Series {
		head = append(head, s.Title)
	}
	rows := [][]string{head}
	for _, at := range e.xs() {
		row := []string{at.name()}
		for _, s := range e.Series {
			cell := "-"
			for _, p := range s.Points {
				if p.X == at.X && p.Label == at.Label {
					cell = number(p.Value)
				}
			}
			row = append(row, cell)
		}
		rows = append(rows, row)
	}
	return rows
}

// xs are the points that any series has, in order of the first that has them.
func (e *Experiment) xs() (points []Point) {
	type key struct {
		x     float64
		label string
	}
	seen := map[key]bool{}
	for _, s := range e.Series {
		for _, p := range s.Points {
			if k := (key{p.X, p.Label}); !seen[k] {
				seen[k] = true
				points = append(points, p)
			}
		}
	}
	return points
}

func (p Point) name() string {
	if p.Label != "" {
		return strings.ReplaceAll(p.Label, "\n", ", ")
	}
	return Size(p.X)
}

func (a Axis) named() string {
	if a.Unit == "" {
		return a.Title
	}
	return a.Title + ", " + a.Unit
}

// Size writes a count with binary units.
func Size(x float64) string {
	switch {
	case x >= 1<<20 && float64(int64(x)) == x && int64(x)%(1<<20) == 0:
		return fmt.Sprintf("%gMi", x/(1<<20))
	case x >= 1<<10 && float64(int64(x)) == x && int64(x)%(1<<10) == 0:
		return fmt.Sprintf("%gKi", x/(1<<10))
	}
	return fmt.Sprintf("%g", x)
}

// number writes a value with three digits or so.
func number(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}
