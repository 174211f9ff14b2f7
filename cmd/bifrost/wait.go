package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/shared/process"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// Commands that change a rack return when the change is decided. With --wait they return when it is done. There is one way to
// wait: a look says again and again which things are not there yet, and why. The command shows them, one on a line, until
// there are none. It fails if a thing cannot come, if a thing needs somebody's help for a while, and after --timeout.

// waitOptions are the flags of commands that wait.
type waitOptions struct {
	wait    bool
	timeout time.Duration
}

// register adds the flags; until says what is waited for.
func (o *waitOptions) register(cmd *cobra.Command, until string) {
	cmd.Flags().BoolVar(&o.wait, "wait", false, "wait until "+until+"; show what is not there yet, why and since when")
	cmd.Flags().DurationVar(&o.timeout, "timeout", 0, "wait for this long at most, such as 5m; implies --wait (default: no limit)")
}

// wanted reports whether the command is to wait.
func (o *waitOptions) wanted() bool { return o.wait || o.timeout > 0 }

// thing is something that a command waits for.
type thing struct {
	name, state string
	since       time.Time // of the state; zero if that is not known
	why         string
	blocked     bool // somebody has to help
}

// String tells of it: kv/store/1 is waiting since 15:04:05: no blade has room for it.
func (t *thing) String() string {
	text := t.name + " is " + t.state
	if !t.since.IsZero() {
		text += " since " + t.since.Local().Format("15:04:05")
	}
	if t.why != "" {
		text += ": " + t.why
	}
	return text
}

// look returns the things that are not there yet. It fails if they cannot come.
type look func(ctx context.Context) ([]thing, error)

// Waiting: how often is asked, how often somebody who reads lines is told of a thing whose state is the same, and for how long
// a thing may need help, or the Gatekeeper be away, before the command ends. Tests have less patience.
var (
	askInterval     = 200 * time.Millisecond
	tellInterval    = 2 * time.Second
	blockedPatience = 10 * time.Second
)

// until waits until nothing is left. What the change is called begins the errors.
func (o *waitOptions) until(cmd *cobra.Command, what string, is look) error {
	ctx := cmd.Context()
	if o.timeout > 0 {
		limited, cancel := context.WithTimeout(ctx, o.timeout)
		defer cancel()
		ctx = limited
	}
	p := newProgress(cmd.ErrOrStderr())
	tick := time.NewTicker(askInterval)
	defer tick.Stop()
	blocked := map[string]time.Time{}
	var left []thing
	for {
		now, err := is(ctx)
		switch {
		case err == nil:
			left = now
		case ctx.Err() != nil:
		case refusesConnections(err):
			left = []thing{{name: "the Gatekeeper", state: "away", why: err.Error(), blocked: true}}
		default:
			return err
		}
		if err == nil && len(left) == 0 {
			p.show(nil, time.Now())
			return nil
		}
		p.show(left, time.Now())
		if t := stuck(left, blocked, time.Now()); t != nil {
			return fmt.Errorf("%s does not go on by itself: %s; it goes on when that has changed", what, t)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return o.gaveUp(ctx, what, left)
		}
	}
}

// stuck returns a thing that has been blocked for too long, nil if there is none. since has when each was blocked first.
func stuck(left []thing, since map[string]time.Time, now time.Time) *thing {
	maps.DeleteFunc(since, func(name string, _ time.Time) bool {
		return !slices.ContainsFunc(left, func(t thing) bool { return t.name == name && t.blocked })
	})
	for i := range left {
		t := &left[i]
		if !t.blocked {
			continue
		}
		if first, known := since[t.name]; !known {
			since[t.name] = now
		} else if now.Sub(first) >= blockedPatience {
			return t
		}
	}
	return nil
}

// gaveUp says what was left when the command was not to wait any longer.
func (o *waitOptions) gaveUp(ctx context.Context, what string, left []thing) error {
	why := "was interrupted"
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		why = fmt.Sprintf("is not done after %v", o.timeout)
	}
	var texts []string
	for i := range left {
		texts = append(texts, left[i].String())
	}
	return fmt.Errorf("%s %s: %s; the change itself goes on", what, why, cmp.Or(strings.Join(texts, "; "), "the Gatekeeper has not answered"))
}

// refusesConnections reports whether nobody listens at the Gatekeeper's address: it may be starting again.
func refusesConnections(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// progress shows things on standard error: on a terminal each on a line that changes, else a line whenever the state of one
// changes, and now and then if only the reason does.
type progress struct {
	w        io.Writer
	terminal io.Writer // below w, if that is one
	lines    int       // that are shown on the terminal
	last     []string  // what is there
	told     map[string]tellingOf
}

// tellingOf is what was last told of a thing.
type tellingOf struct {
	state, text string
	at          time.Time
}

func newProgress(w io.Writer) *progress {
	p := &progress{w: w, told: map[string]tellingOf{}}
	if out, ok := w.(*process.Printable); ok && out.W == os.Stderr && isTerminal(os.Stderr) {
		p.terminal = os.Stderr
	}
	return p
}

// show shows the things that are left at a time.
func (p *progress) show(left []thing, now time.Time) {
	if p.terminal != nil {
		p.redraw(left)
		return
	}
	for i := range left {
		t := &left[i]
		was, text := p.told[t.name], oneLine(t.String())
		if was.state != t.state || was.text != text && now.Sub(was.at) >= tellInterval {
			fmt.Fprintln(p.w, text)
			p.told[t.name] = tellingOf{t.state, text, now}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.told)) {
		if !slices.ContainsFunc(left, func(t thing) bool { return t.name == name }) {
			fmt.Fprintln(p.w, oneLine(name)+" is done")
			delete(p.told, name)
		}
	}
}

// redraw writes the lines of a terminal anew. Lines are cut, since one that wraps takes two.
func (p *progress) redraw(left []thing) {
	var texts []string
	for i := range left {
		texts = append(texts, cut(oneLine(left[i].String()), terminalWidth(p.terminal)))
	}
	if slices.Equal(texts, p.last) {
		return
	}
	if p.lines > 0 {
		fmt.Fprintf(p.terminal, "\x1b[%dA\r", p.lines)
	}
	fmt.Fprint(p.terminal, "\x1b[J")
	for _, text := range texts {
		fmt.Fprintln(p.w, text)
	}
	p.lines, p.last = len(texts), texts
}

// terminalWidth is the number of characters in a line of a terminal, 0 if that is not known.
func terminalWidth(w io.Writer) int {
	f, ok := w.(*os.File)
	if !ok {
		return 0
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ) //nolint:gosec // small
	if err != nil {
		return 0
	}
	return int(size.Col)
}

// cut shortens a text to a number of characters.
func cut(text string, width int) string {
	if all := []rune(text); width > 1 && len(all) > width {
		return string(all[:width-1]) + "…"
	}
	return text
}
