package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
)

// barWidth is the width of the picture's time axis in characters.
const barWidth = 40

// printTrace draws a call and those that belong together with it over time.
func printTrace(w io.Writer, t *api.Trace, n names) error {
	from, to := t.Calls[0].A1, t.Calls[0].A1
	for i := range t.Calls {
		if end := endOf(&t.Calls[i]); end.After(to) {
			to = end
		}
	}
	fmt.Fprintf(w, "%s, %d calls in %s\n\n", from.Local().Format("2006-01-02 15:04:05.000000"), len(t.Calls), millis(to.Sub(from)))
	width := 0
	titles := make([]string, len(t.Calls))
	for i := range t.Calls {
		k := &t.Calls[i]
		titles[i] = strings.Repeat("  ", k.Depth) + methodOf(k) + "  " + n.of(k.Caller) + " → " + n.of(k.Callee)
		width = max(width, len([]rune(titles[i])))
	}
	for i := range t.Calls {
		k := &t.Calls[i]
		mark := " "
		if k.ID == t.Call {
			mark = "*"
		}
		fmt.Fprintf(w, "%s %s%s │%s│ %s  %s  %s\n", mark, titles[i], strings.Repeat(" ", width-len([]rune(titles[i]))), bar(k, from, to), tookText(k), k.Policy, outcomeOf(k))
		for _, s := range k.Steps {
			if slices.Contains(mishaps, s.Kind) {
				fmt.Fprintf(w, "  %s  %s+%s  %s%s\n", strings.Repeat("  ", k.Depth), strings.Repeat(" ", width/2), millis(s.Time.Sub(from)), s.Kind, where(n, &s))
			}
		}
	}
	if t.More {
		fmt.Fprintln(w, "  … and others")
	}
	_, err := fmt.Fprintln(w, "\n░ on its way  █ with its callee  ▒ answer on its way  ! failed  * the call asked about  ~ sampled, not exact")
	return err
}

// mishaps are the steps that do not show in a bar.
var mishaps = []string{"refused", "ended", "replayed", "rolling back", "rolled back"}

// bar draws one call between two times.
func bar(k *api.Timeline, from, to time.Time) string {
	at := func(t time.Time) int {
		if !to.After(from) {
			return 0
		}
		return min(int(int64(barWidth)*int64(t.Sub(from))/int64(to.Sub(from))), barWidth-1)
	}
	cells := []rune(strings.Repeat(" ", barWidth))
	fill := func(a, b time.Time, c rune) {
		for i := at(a); i <= at(b); i++ {
			cells[i] = c
		}
	}
	end := endOf(k)
	if !k.Over {
		end = to
	}
	fill(k.A1, end, '░')
	if !k.B1.IsZero() {
		fill(k.B1, end, '█')
	}
	if !k.B2.IsZero() {
		fill(k.B2, end, '▒')
	}
	for _, s := range k.Steps {
		if s.Kind == "rolling back" || s.Kind == "refused" || s.Kind == "ended" {
			cells[at(s.Time)] = '!'
		}
	}
	return string(cells)
}
