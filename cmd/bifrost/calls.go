package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
	"github.com/bifrost-rack/bifrost/gatekeeper/admin/client"
)

// callsOptions are the flags of `bifrost calls`.
type callsOptions struct {
	node   string
	stuck  bool
	longer time.Duration
}

// stuckAfter is when a call counts as stuck unless --longer-than says.
const stuckAfter = 10 * time.Second

func newCallsCmd() *cobra.Command {
	var o callsOptions
	cmd := show(&clientOptions{}, helpText{"calls", "List the calls under way: the call graph",
		`List the calls under way with their parents, oldest first: the call graph. The
Gatekeeper knows calls of policy none without pointers from samples only. Exactly-once
calls without pointers do not pass the Gatekeeper. Their callees report them, and TOLD is
how long ago a callee has last reported the call.

With --stuck, list only calls that have been under way for long (see --longer-than). WAITS
FOR names the call that each one waits for. bifrost trace CALL shows what has become of a
call so far; bifrost cancel CALL ends it.`,
		"  bifrost calls\n  bifrost calls --node fd00:b1f0:0:2::2    # what does this node make and serve?\n  bifrost calls --stuck --longer-than 1m"},
		o.list, func(ks []api.Call, n names) []string { return callRows(ks, n, time.Now()) })
	cmd.Flags().StringVar(&o.node, "node", "", "only calls that this `NODE` (its address, or BLADE/NAME) makes or serves")
	cmd.Flags().BoolVar(&o.stuck, "stuck", false, "only calls that have been under way for long")
	cmd.Flags().DurationVar(&o.longer, "longer-than", 0, fmt.Sprintf("only calls that have been under way for longer than this (default with --stuck: %v)", stuckAfter))
	return cmd
}

// list asks for the calls.
func (o *callsOptions) list(ctx context.Context, c *client.Client) (calls []api.Call, err error) {
	node, err := nodeOf(ctx, c, "--node", o.node)
	if err != nil {
		return nil, err
	}
	longer := o.longer
	if o.stuck && longer == 0 {
		longer = stuckAfter
	}
	defer func() {
		slices.SortStableFunc(calls, func(a, b api.Call) int { return a.A1.Compare(b.A1) }) // direct ones come behind the others
	}()
	if longer == 0 {
		return collect(c.Calls(ctx, node))
	}
	before := time.Now().Add(-longer)
	for call, err := range c.Calls(ctx, node) {
		if err != nil {
			return nil, err
		}
		if !call.A1.IsZero() && call.A1.Before(before) {
			calls = append(calls, call)
		}
	}
	return calls, nil
}

func callRows(ks []api.Call, n names, now time.Time) []string {
	rows := []string{"CALL\tPARENT\tCALLER\tCALLEE\tMETHOD\tARGUMENTS\tSTAGE\tAGE\tTOLD\tWAITS FOR"}
	for i := range ks {
		k := &ks[i]
		age, told := "-", "-"
		if !k.A1.IsZero() {
			age = max(now.Sub(k.A1), 0).Truncate(time.Millisecond).String()
		}
		if !k.Told.IsZero() {
			told = max(now.Sub(k.Told), 0).Truncate(time.Millisecond).String()
		}
		rows = append(rows, strings.Join([]string{
			k.ID, cmp.Or(k.Parent, "-"), n.of(k.Caller), n.of(k.Callee), strings.TrimPrefix(k.Service+"."+k.Method, "."), bytesText(k.Arguments), k.Stage, age, told, waitsFor(k, ks),
		}, "\t"))
	}
	return rows
}

// waitsFor says what a call waits for: the one that its service runs before it, or one that it
// has made.
func waitsFor(k *api.Call, all []api.Call) string {
	if k.Behind != "" {
		return "call " + k.Behind + " before it"
	}
	for i := range all {
		if all[i].Parent == k.ID {
			return "its call " + all[i].ID
		}
	}
	return "-"
}

func newCancelCmd() *cobra.Command {
	var o clientOptions
	return o.command(&cobra.Command{
		Use:   "cancel CALL",
		Short: "Cancel a call where it runs",
		Long: `Cancel a call where it runs. The context of its handler ends, and the answer is what the
handler then returns, usually an error with code canceled. A call that has not begun is
answered with canceled at once. An exactly-once call ends exactly once in this way, too,
whatever fails meanwhile.

A handler that does not heed its context runs on, and the command says so after some
seconds. A handler that waits for a nested exactly-once call runs on, too: cancel the
nested call instead, which bifrost calls --stuck names.`,
		Example: "  bifrost calls --stuck\n  bifrost cancel 00f3a6c41b9e7d5200000000000000a7",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(func(c *client.Client) error {
				call, err := c.CancelCall(cmd.Context(), args[0])
				if err != nil {
					return err
				}
				if err := awaitEnd(cmd.Context(), c, args[0]); err != nil {
					return err
				}
				if o.json {
					return jsonLines(cmd.OutOrStdout(), []api.Call{call})
				}
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "call %s (%s) is over\n", call.ID, strings.TrimPrefix(call.Service+"."+call.Method, "."))
				return err
			})
		},
	})
}

// cancelPatience is how long a handler has to heed that it was cancelled.
const cancelPatience = 5 * time.Second

// awaitEnd waits until a call is over.
func awaitEnd(ctx context.Context, c *client.Client, id string) error {
	ctx, cancel := context.WithTimeout(ctx, cancelPatience)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		_, err := c.Call(ctx, id)
		switch {
		case client.IsNotFound(err):
			return nil
		case err != nil && !errors.Is(err, context.DeadlineExceeded):
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("call %s was cancelled, but has not ended after %v: its handler ignores its context, or waits for a nested call; bifrost calls --longer-than 1s shows what runs", id, cancelPatience)
		}
	}
}
