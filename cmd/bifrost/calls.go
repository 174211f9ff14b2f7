package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
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
		`List the calls that have been under way for 20 ms, with their parents, oldest first: the
call graph. No call passes the Gatekeeper. The callees report their calls within a tenth of
a second, and TOLD is how long ago a callee has last reported the call.

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
		slices.SortStableFunc(calls, func(a, b api.Call) int { return a.B1.Compare(b.B1) })
	}()
	if longer == 0 {
		return collect(c.Calls(ctx, node))
	}
	before := time.Now().Add(-longer)
	for call, err := range c.Calls(ctx, node) {
		if err != nil {
			return nil, err
		}
		if !call.B1.IsZero() && call.B1.Before(before) {
			calls = append(calls, call)
		}
	}
	return calls, nil
}

func callRows(ks []api.Call, n names, now time.Time) []string {
	rows := []string{"CALL\tPARENT\tCALLER\tCALLEE\tMETHOD\tARGUMENTS\tAGE\tTOLD\tWAITS FOR"}
	for i := range ks {
		k := &ks[i]
		age, told := "-", "-"
		if !k.B1.IsZero() {
			age = max(now.Sub(k.B1), 0).Truncate(time.Millisecond).String()
		}
		if !k.Told.IsZero() {
			told = max(now.Sub(k.Told), 0).Truncate(time.Millisecond).String()
		}
		rows = append(rows, strings.Join([]string{
			k.ID, cmp.Or(k.Parent, "-"), n.of(k.Caller), n.of(k.Callee), strings.TrimPrefix(k.Service+"."+k.Method, "."), bytesText(k.Arguments), age, told, waitsFor(k, ks),
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
		Use:   "cancel {CALL | SLOT}",
		Short: "Cancel a call where it runs, or end a standing lease or a call that nobody else would end",
		Long: `Cancel a call where it runs. The context of its handler ends, and the answer is what the
handler then returns, usually an error with code canceled. A call that has not begun is
answered with canceled at once. An exactly-once call ends exactly once in this way, too,
whatever fails meanwhile.

A handler that does not heed its context runs on, and the command says so after some
seconds. A handler that waits for a nested exactly-once call runs on, too: cancel the
nested call instead, which bifrost calls --stuck names.

With the number of a call slot (bifrost slots) it ends a standing lease: whom it was
given to may not read any more, and its owner hears of that when it ends the lease itself. Or it has a call fail that
nobody else would end, such as that of a program which does not answer: the caller gets
unavailable. The node that is called must not tell of the call, which takes two
seconds to find out; one that it runs is cancelled by its id.`,
		Example: "  bifrost calls --stuck\n  bifrost cancel 00f3a6c41b9e7d5200000000000000a7\n  bifrost slots --leases\n  bifrost cancel 1032192",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(func(c *client.Client) error {
				if slot, err := strconv.ParseUint(args[0], 10, 20); err == nil {
					return cancelSlot(cmd, c, &o, uint32(slot))
				}
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

func cancelSlot(cmd *cobra.Command, c *client.Client, o *clientOptions, slot uint32) error {
	s, err := c.CancelSlot(cmd.Context(), slot)
	switch {
	case err != nil:
		return err
	case o.json:
		return jsonLines(cmd.OutOrStdout(), []api.Slot{s})
	case s.Kind == "lease":
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "the standing lease in slot %d, which %s has given %s, ends\n", slot, s.Caller, s.Callee)
	default:
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "the call in slot %d, from %s to %s, has failed\n", slot, s.Caller, s.Callee)
	}
	return err
}

// newSlotsCmd lists what the switch has open.
func newSlotsCmd() *cobra.Command {
	var node string
	var leases bool
	var cmd *cobra.Command
	cmd = show(&clientOptions{}, helpText{"slots", "List the call slots that are open in the switch: calls and standing leases",
		`List the call slots that are open in the switch, as it has them now: calls, whatever nodes
tell of them, and standing leases, by which a node lets another one read for longer
than a call. What nobody else would end, bifrost cancel SLOT does. If the switch has not
told of all of them, a line on standard error says so.`,
		"  bifrost slots --leases\n  bifrost slots --node fd00:b1f0:0:2::1"},
		func(ctx context.Context, c *client.Client) ([]api.Slot, error) {
			a, err := nodeOf(ctx, c, "--node", node)
			if err != nil {
				return nil, err
			}
			var missing []string
			all, err := collect(c.Slots(ctx, client.SlotFilter{Node: a, Leases: leases, Missing: &missing}))
			tellMissing(cmd, missing)
			return all, err
		}, slotRows)
	cmd.Flags().StringVar(&node, "node", "", "only slots of this `NODE` (its address, or BLADE/NAME): as caller or callee, owner or reader")
	cmd.Flags().BoolVar(&leases, "leases", false, "only standing leases")
	return cmd
}

func slotRows(all []api.Slot, n names) []string {
	rows := []string{"SLOT\tNUMBER\tKIND\tFROM\tTO\tREGIONS\tLENT ON\tCALL\tSINCE"}
	for i := range all {
		s := &all[i]
		since := "-"
		if !s.Since.IsZero() {
			since = s.Since.Format(time.RFC3339)
		}
		rows = append(rows, strings.Join([]string{
			strconv.Itoa(int(s.Slot)), s.Number, strings.TrimSuffix(s.Kind+", "+s.Step, ", "), n.of(s.Caller), n.of(s.Callee), cmp.Or(strings.Join(s.Regions, ","), "-"),
			strconv.Itoa(s.Children), cmp.Or(s.Call, "-"), since,
		}, "\t"))
	}
	return rows
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
