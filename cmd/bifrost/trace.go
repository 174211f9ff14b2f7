package main

import (
	"context"
	"errors"
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
	last         int
	follow       bool
	filter       client.TimelineFilter
	node, caller string
	since, until time.Duration
}

func newTraceCmd() *cobra.Command {
	var o traceOptions
	cmd := o.command(&cobra.Command{
		Use:   "trace [CALL]",
		Short: "Show what became of a call, and when",
		Long: `Show what became of a call, and of all calls that were made on behalf of the same outermost
call, as bars over time. A bar shows when a call was sent (a1), received by its callee
(b1), finished there (b2) and answered (a2), and what failed and was run again meanwhile.
The Gatekeeper remembers the latest calls, also when they are over. It knows of them what
nodes tell.

Without CALL, list the latest calls, the last one first. CALL is the id of a call, the
beginning of an id that no other of the latest calls has, or "last".`,
		Example: "  bifrost trace\n  bifrost trace --failed --last 100\n  bifrost trace --service Store --code unavailable --longer-than 1s --since 1h\n  bifrost trace -f --rerun\n  bifrost trace 00f3a6c4\n  bifrost trace last --json | jq '.calls[].steps'",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(func(c *client.Client) error {
				if len(args) == 1 {
					return o.one(cmd, c, args[0])
				}
				if err := o.choose(cmd.Context(), c, time.Now()); err != nil {
					return err
				}
				if o.follow {
					return o.tail(cmd, c)
				}
				return o.list(cmd, c)
			})
		},
	})
	f := cmd.Flags()
	f.IntVar(&o.last, "last", 20, "how many of the latest calls to list")
	f.BoolVarP(&o.follow, "follow", "f", false, "show each call when it is over, until Ctrl-C")
	f.BoolVar(&o.filter.Failed, "failed", false, "only calls that were refused, ended with an exception, or had to be run again")
	f.BoolVar(&o.filter.Rerun, "rerun", false, "only calls that had to be run again")
	f.BoolVar(&o.filter.Roots, "roots", false, "only calls that no other call has made")
	f.StringVar(&o.node, "node", "", "only calls that this `NODE` (its address, or BLADE/NAME) has made or served")
	f.StringVar(&o.caller, "caller", "", "only calls that this `NODE` has made")
	f.StringVar(&o.filter.Service, "service", "", "only calls of this `SERVICE`")
	f.StringVar(&o.filter.Method, "method", "", "only calls of methods of this `NAME`")
	f.StringVar(&o.filter.Code, "code", "", "only calls that have ended with this `CODE`: ok, or an error's, such as unavailable")
	f.DurationVar(&o.filter.Longer, "longer-than", 0, "only calls that took longer than this, or have been under way for longer")
	f.DurationVar(&o.since, "since", 0, "only calls that were sent in this time, such as the last 10m")
	f.DurationVar(&o.until, "until", 0, "only calls that were sent before this time began, such as 5m ago")
	return cmd
}

// choose reads the flags that say which calls are meant.
func (o *traceOptions) choose(ctx context.Context, c *client.Client, now time.Time) (err error) {
	if o.filter.Node, err = nodeOf(ctx, c, "--node", o.node); err != nil {
		return err
	}
	if o.filter.Caller, err = nodeOf(ctx, c, "--caller", o.caller); err != nil {
		return err
	}
	if o.since > 0 {
		o.filter.Since = now.Add(-o.since)
	}
	if o.until > 0 {
		o.filter.Until = now.Add(-o.until)
	}
	return nil
}

// followInterval is how often somebody who follows calls or figures is told of new ones.
const followInterval = 300 * time.Millisecond

// followed is how far back calls are looked for that have ended since the last look.
const followed = 1000

// tail shows each call when it is over.
func (o *traceOptions) tail(cmd *cobra.Command, c *client.Client) error {
	ctx, told, first := cmd.Context(), map[string]bool{}, true
	for {
		calls, err := firsts(ctx, c, o.filter, followed)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // Ctrl-C
		}
		n, failed := nodeNames(ctx, c)
		if err := errors.Join(err, failed); err != nil {
			return err
		}
		now := map[string]bool{}
		for i, k := range slices.Backward(calls) {
			if !k.Over {
				continue
			}
			if now[k.ID] = true; told[k.ID] || first && i >= o.last {
				continue
			}
			if err := o.print(cmd.OutOrStdout(), &k, n); err != nil {
				return err
			}
		}
		told, first = now, false
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(followInterval):
		}
	}
}

// print prints a call on a line.
func (o *traceOptions) print(w io.Writer, k *api.Timeline, n names) error {
	if o.json {
		return jsonLines(w, []*api.Timeline{k})
	}
	_, err := fmt.Fprintln(w, oneLine(strings.ReplaceAll(traceRow(k, n), "\t", "  ")))
	return err
}

// traceRow is a call's row in the list.
func traceRow(k *api.Timeline, n names) string {
	return strings.Join([]string{clock(k.A1), k.ID, methodOf(k), n.of(k.Caller), n.of(k.Callee), tookText(k), outcomeOf(k)}, "\t")
}

// list prints the latest calls.
func (o *traceOptions) list(cmd *cobra.Command, c *client.Client) error {
	calls, err := firsts(cmd.Context(), c, o.filter, o.last)
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
		rows = append(rows, traceRow(&calls[i], n))
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
		text = strings.TrimSuffix(k.Code+" "+k.Exception, " ")
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
			if s.Kind == "replayed" { // that does not show in the bar
				fmt.Fprintf(w, "  %s  %s+%s  %s%s\n", strings.Repeat("  ", k.Depth), strings.Repeat(" ", width/2), millis(s.Time.Sub(from)), s.Kind, where(n, &s)+because(s.Why))
			}
		}
	}
	if t.More {
		fmt.Fprintln(w, "  … and others")
	}
	if i := slices.IndexFunc(t.Calls, func(k api.Timeline) bool { return k.ID == t.Call }); i >= 0 {
		printDetails(w, &t.Calls[i])
	}
	_, err := fmt.Fprintln(w, "\n░ on its way  █ with its callee  ▒ answer on its way  * the call asked about")
	return err
}

// because is a reason behind something; "" if there is none.
func because(why string) string {
	if why == "" {
		return ""
	}
	return ": " + oneLine(why)
}

// printDetails prints what is known of a call besides.
func printDetails(w io.Writer, k *api.Timeline) {
	fmt.Fprintf(w, "\n* call %s: arguments %s, answer %s\n", k.ID, bytesText(k.Arguments), bytesText(k.Answer))
	if k.Code != "" {
		fmt.Fprintf(w, "  ended with %s%s\n", strings.TrimSuffix(k.Code+" "+k.Exception, " "), because(k.Text))
	}
	for _, h := range k.Headers {
		fmt.Fprintf(w, "  header %s: %s\n", oneLine(h.Name), oneLine(h.Value))
	}
}

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
	return string(cells)
}
