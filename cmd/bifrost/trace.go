package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
	"github.com/bifrost-rack/bifrost/gatekeeper/admin/client"
	"github.com/spf13/cobra"
)

// traceOptions are the flags of `bifrost trace`.
type traceOptions struct {
	clientOptions
	last          int
	failed, roots bool
	node          string
}

func newTraceCmd() *cobra.Command {
	var o traceOptions
	cmd := o.command(&cobra.Command{
		Use:   "trace [CALL]",
		Short: "Show what became of a call, and when",
		Long: `Show what became of a call, and of all calls that were made on behalf of the same outermost
call, as bars over time. A bar shows when a call was sent (a1), received by its callee
(b1), finished there (b2) and answered (a2), and what failed and was run again meanwhile.
The Gatekeeper remembers the latest calls, also when they are over. The mark ~ means that
the Gatekeeper did not hold the call: then it knows less, and the times are not exact.

Without CALL, list the latest calls, the last one first. CALL is the id of a call, the
beginning of an id that no other of the latest calls has, or "last".`,
		Example: "  bifrost trace\n  bifrost trace --failed --last 100\n  bifrost trace 00f3a6c4\n  bifrost trace last --json | jq '.calls[].steps'",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(func(c *client.Client) error {
				if len(args) == 1 {
					return o.one(cmd, c, args[0])
				}
				return o.list(cmd, c)
			})
		},
	})
	cmd.Flags().IntVar(&o.last, "last", 20, "how many of the latest calls to list")
	cmd.Flags().BoolVar(&o.failed, "failed", false, "only calls that were refused, ended with an exception, or had to be run again")
	cmd.Flags().BoolVar(&o.roots, "roots", false, "only calls that no other call has made")
	cmd.Flags().StringVar(&o.node, "node", "", "only calls that the node at this `ADDRESS` has made or served")
	return cmd
}

// list prints the latest calls.
func (o *traceOptions) list(cmd *cobra.Command, c *client.Client) error {
	f := client.TimelineFilter{Failed: o.failed, Roots: o.roots}
	var err error
	if f.Node, err = optional("--node", o.node); err != nil {
		return err
	}
	calls, err := firsts(cmd.Context(), c, f, o.last)
	if err != nil {
		return err
	}
	if o.json {
		return jsonLines(cmd.OutOrStdout(), calls)
	}
	n, err := nodeNames(cmd.Context(), c)
	if err != nil {
		return err
	}
	rows := []string{"SENT\tCALL\tMETHOD\tCALLER\tCALLEE\tTOOK\tOUTCOME"}
	for i := range calls {
		k := &calls[i]
		rows = append(rows, strings.Join([]string{
			clock(k.A1), k.ID, methodOf(k), n.of(k.Caller), n.of(k.Callee), tookText(k), outcomeOf(k),
		}, "\t"))
	}
	return table(cmd.OutOrStdout(), rows...)
}

// firsts returns the first of the latest calls.
func firsts(ctx context.Context, c *client.Client, f client.TimelineFilter, limit int) (calls []api.Timeline, err error) {
	for k, err := range c.Timelines(ctx, f) {
		if err != nil || len(calls) >= limit {
			return calls, err
		}
		calls = append(calls, k)
	}
	return calls, nil
}

// one prints the picture of a call.
func (o *traceOptions) one(cmd *cobra.Command, c *client.Client, text string) error {
	id, err := callID(cmd.Context(), c, text)
	if err != nil {
		return err
	}
	t, err := c.Timeline(cmd.Context(), id)
	if err != nil {
		return err
	}
	if o.json {
		return jsonLines(cmd.OutOrStdout(), []api.Trace{t})
	}
	n, err := nodeNames(cmd.Context(), c)
	if err != nil {
		return err
	}
	return printTrace(cmd.OutOrStdout(), &t, n)
}

// callID finds the call that somebody means.
func callID(ctx context.Context, c *client.Client, text string) (string, error) {
	if len(text) == 32 {
		return text, nil
	}
	found := ""
	for k, err := range c.Timelines(ctx, client.TimelineFilter{}) {
		switch {
		case err != nil:
			return "", err
		case text == "last":
			return k.ID, nil
		case !strings.HasPrefix(k.ID, text):
		case found != "":
			return "", fmt.Errorf("%s: the ids %s and %s both begin with it: write more of the id", text, found, k.ID)
		default:
			found = k.ID
		}
	}
	if found == "" {
		return "", fmt.Errorf("%s: none of the latest calls has an id that begins with it: bifrost trace lists them", text)
	}
	return found, nil
}

func methodOf(k *api.Timeline) string { return strings.TrimPrefix(k.Service+"."+k.Method, ".") }

// endOf is the last that is known of a call.
func endOf(k *api.Timeline) time.Time {
	if n := len(k.Steps); n > 0 && k.A2.IsZero() {
		return k.Steps[n-1].Time
	}
	return k.A2
}

func tookText(k *api.Timeline) string {
	if !k.Over {
		return "-"
	}
	return millis(endOf(k).Sub(k.A1))
}

// millis prints a time in milliseconds.
func millis(d time.Duration) string { return fmt.Sprintf("%.3f ms", float64(d)/1e6) }

// outcomeOf says how a call has ended, or how far it has got.
func outcomeOf(k *api.Timeline) string {
	text := "ok"
	switch {
	case k.Code != "":
		text = k.Code
	case !k.Over && !k.B2.IsZero():
		text = "finished"
	case !k.Over && !k.B1.IsZero():
		text = "running"
	case !k.Over:
		text = "sent"
	}
	if k.Attempts > 0 {
		text += fmt.Sprintf(", run again %d times", k.Attempts)
	}
	if k.Sampled {
		text += " ~"
	}
	return text
}

// where is a step's node, for people: on the blade that it was on then, wherever it is now.
func where(n names, s *api.Step) string {
	if !s.Node.IsValid() {
		return ""
	}
	name := n.of(s.Node)
	if _, rest, ok := strings.Cut(name, "/"); ok && s.Blade != "" {
		name = s.Blade + "/" + rest
	}
	return " at " + name
}

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
var mishaps = []string{"refused", "replayed"}

// bar draws one call between two times.
func bar(k *api.Timeline, from, to time.Time) string {
	at := func(t time.Time) int {
		if !to.After(from) {
			return 0
		}
		return min(int(barWidth*(float64(t.Sub(from))/float64(to.Sub(from)))), barWidth-1)
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
		if s.Kind == "refused" {
			cells[at(s.Time)] = '!'
		}
	}
	return string(cells)
}
