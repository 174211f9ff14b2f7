package gatekeeper

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// What programs print stays on the blades that run them. The Gatekeeper asks all compute
// blades in service at once, and puts the answers in the order of their times. That is as
// good as the blades' clocks agree.

// OutputQuery says which lines are wanted.
type OutputQuery struct {
	// Program is the name of a program (APP/PROGRAM/NUMBER), or what the names of several
	// begin with, up to a slash.
	Program string
	// From is where to go on. The zero value begins with the first lines that are kept.
	From OutputPlace
	// Last, unless it is 0, asks for so many of the latest lines, wherever From is.
	Last int
}

// OutputPlace is a place in what the blades have: up to where each has been read.
type OutputPlace struct {
	blades map[string]int64 // ns since 1970
	others int64            // where to begin on a blade that is not there
}

// OutputSince is the place before all lines that were printed at a time or later.
func OutputSince(t time.Time) OutputPlace { return OutputPlace{others: t.UnixNano() - 1} }

// String returns what ParseOutputPlace reads.
func (p OutputPlace) String() string {
	parts := []string{strconv.FormatInt(p.others, 10)}
	for blade, at := range p.blades {
		parts = append(parts, strconv.FormatInt(at, 10)+"@"+blade)
	}
	slices.Sort(parts[1:])
	return strings.Join(parts, " ")
}

// ParseOutputPlace reads a place; "" is the zero value.
func ParseOutputPlace(s string) (p OutputPlace, err error) {
	for i, part := range strings.Fields(s) {
		at, blade, named := strings.Cut(part, "@")
		ns, err := strconv.ParseInt(at, 10, 64)
		if err != nil || named != (i > 0) {
			return OutputPlace{}, fmt.Errorf("%q is no place in the output of programs", s)
		}
		if !named {
			p.others = ns
			continue
		}
		if p.blades == nil {
			p.blades = map[string]int64{}
		}
		p.blades[blade] = ns
	}
	return p, nil
}

// of is up to where a blade has been read.
func (p OutputPlace) of(blade string) int64 {
	if at, ok := p.blades[blade]; ok {
		return at
	}
	return p.others
}

// OutputLine is a line that a program has printed on a blade.
type OutputLine struct {
	Blade, Program string
	Time           time.Time
	Text           string
}

// OutputPage is a part of what programs have printed.
type OutputPage struct {
	Lines []OutputLine
	Next  OutputPlace // behind them
	More  bool        // there are lines behind Next
	// Silent are blades that have not answered, with the reason.
	Silent map[string]string
	// Dropped is how many lines the blades could not keep.
	Dropped uint64
}

// Bounds of an answer.
const (
	// outputPatience is how long to wait for the answer of a blade.
	outputPatience = 3 * time.Second
	// MaxOutputLines bounds OutputQuery.Last.
	MaxOutputLines = 1000
)

// Output returns what programs have printed, on whichever blades. It waits for the blades,
// for some seconds at most; the page says which have not answered.
func (g *Gatekeeper) Output(ctx context.Context, q OutputQuery) (OutputPage, error) {
	var blades []string
	answers := make(chan outputAnswer, maxBlades)
	err := g.do(ctx, func() { blades = g.ctl.askOutput(q, answers) })
	if err != nil {
		return OutputPage{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, outputPatience)
	defer cancel()
	page := OutputPage{Silent: map[string]string{}, Next: OutputPlace{others: q.From.others, blades: map[string]int64{}}}
	for _, b := range blades {
		page.Next.blades[b] = q.From.of(b)
	}
	parts := map[string]control.OutputPart{}
	for missing := slices.Clone(blades); len(missing) > 0; {
		select {
		case a := <-answers:
			missing = slices.DeleteFunc(missing, func(b string) bool { return b == a.blade })
			if a.err != nil {
				page.Silent[a.blade] = a.err.Error()
				continue
			}
			parts[a.blade] = a.part
		case <-ctx.Done():
			for _, b := range missing {
				page.Silent[b] = "it has not answered"
			}
			missing = nil
		}
	}
	page.merge(parts, q.Last)
	return page, nil
}

// outputAnswer is what a blade has answered.
type outputAnswer struct {
	blade string
	part  control.OutputPart
	err   error
}

// askOutput asks all compute blades in service; answers has room for all of them.
func (c *controller) askOutput(q OutputQuery, answers chan<- outputAnswer) (asked []string) {
	for _, b := range c.sortedBlades() {
		if b.memory() || !b.alive() {
			continue
		}
		name := b.hello.Blade
		body := control.Output{Program: q.Program, After: q.From.of(name), Last: q.Last, Max: control.OutputPartSize}
		if q.Last > 0 {
			body.After = 0
		}
		asked = append(asked, name)
		err := c.ask(b.port, control.KindOutput, body, func(m control.Message) {
			a := outputAnswer{blade: name}
			if m.Status != fault.OK {
				a.err = fault.Remote(m.Status, "output", "%s", m.Body)
			} else {
				a.err = m.Decode(&a.part)
			}
			answers <- a
		})
		if err != nil {
			answers <- outputAnswer{blade: name, err: err}
		}
	}
	return asked
}

// merge puts lines in order. Where a blade has more than it has answered, what others have
// printed later waits for the next page.
func (p *OutputPage) merge(parts map[string]control.OutputPart, last int) {
	var horizon int64
	for blade, part := range parts {
		p.Dropped += part.Dropped
		for _, l := range part.Lines {
			p.Lines = append(p.Lines, OutputLine{Blade: blade, Program: l.Program, Time: time.Unix(0, l.Time), Text: l.Text})
		}
		if n := len(part.Lines); part.More && n > 0 && (horizon == 0 || part.Lines[n-1].Time < horizon) {
			horizon = part.Lines[n-1].Time
		}
	}
	slices.SortFunc(p.Lines, func(a, b OutputLine) int {
		return cmp.Or(a.Time.Compare(b.Time), cmp.Compare(a.Blade, b.Blade))
	})
	if last > 0 {
		for _, l := range p.Lines {
			p.Next.blades[l.Blade] = l.Time.UnixNano()
		}
		p.Lines = p.Lines[max(0, len(p.Lines)-last):]
		return
	}
	if horizon > 0 {
		p.More = true
		p.Lines = slices.DeleteFunc(p.Lines, func(l OutputLine) bool { return l.Time.UnixNano() > horizon })
	}
	for _, l := range p.Lines {
		p.Next.blades[l.Blade] = l.Time.UnixNano()
	}
}
