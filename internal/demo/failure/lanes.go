package failure

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// lanes draws a picture in text, from top to bottom: a column for each blade, a line
// for each event, and what it means at the side.
//
//	 ms   c1     s2     x1
//	0.0   ●─────▶│      │     a1: calls Counter.add
//	0.9   │      ✗      │     loses its power
type lanes struct {
	out    io.Writer
	blades []string
	down   map[string]bool
}

// laneWidth is the distance of two columns, in characters.
const laneWidth = 6

func newLanes(out io.Writer, blades []string) *lanes {
	return &lanes{out: out, blades: blades, down: map[string]bool{}}
}

// head writes the columns' names.
func (l *lanes) head() {
	var b strings.Builder
	for _, blade := range l.blades {
		fmt.Fprintf(&b, "%-*s", laneWidth, blade)
	}
	fmt.Fprintf(l.out, "%9s   %s\n", "ms", strings.TrimRight(b.String(), " "))
}

// mark writes a line with a sign in one blade's column; "" is none.
func (l *lanes) mark(at time.Duration, blade, sign, text string) {
	row := l.row()
	if k := l.column(blade); k >= 0 {
		row[k*laneWidth] = sign
	}
	l.line(at, row, text)
}

// arrow writes a line with an arrow from one blade to another.
func (l *lanes) arrow(at time.Duration, from, to, text string) {
	row := l.row()
	a, b := l.column(from), l.column(to)
	if a >= 0 && b >= 0 && a != b {
		tail, tip, head := a*laneWidth, b*laneWidth-1, "▶"
		if a > b {
			tip, head = b*laneWidth+1, "◀"
		}
		for i := min(tail, tip); i <= max(tail, tip); i++ {
			row[i] = "─"
		}
		row[tail], row[tip] = "●", head
	}
	l.line(at, row, text)
}

// row is a line in which nothing happens: blades that have power have a line.
func (l *lanes) row() []string {
	row := slices.Repeat([]string{" "}, len(l.blades)*laneWidth)
	for k, blade := range l.blades {
		if !l.down[blade] {
			row[k*laneWidth] = "│"
		}
	}
	return row
}

func (l *lanes) column(blade string) int { return slices.Index(l.blades, blade) }

func (l *lanes) line(at time.Duration, row []string, text string) {
	fmt.Fprintf(l.out, "%9.1f   %s%s\n", float64(at.Microseconds())/1000, strings.Join(row, ""), text)
}
