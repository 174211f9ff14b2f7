package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
	"github.com/bifrost-rack/bifrost/gatekeeper/admin/client"
)

// logsOptions are the flags of `bifrost logs`.
type logsOptions struct {
	clientOptions
	follow bool
	since  time.Duration
	lines  int
}

func newLogsCmd() *cobra.Command {
	var o logsOptions
	cmd := o.command(&cobra.Command{
		Use:   "logs APP[/PROGRAM[/NUMBER]]",
		Short: "Show what deployed programs print, on all blades",
		Long: `Show what deployed programs have printed: all programs of an app, one program, or one
instance, as bifrost apps names it. The blades keep these lines, also when a program has
ended or its app is undeployed, until the bound for each program is reached (bifrost compute
--program-log-size). Lines are in the order of their times, as exactly as the blades'
clocks agree. Lines on a blade that is out of service are missing, and the command says so.`,
		Example: "  bifrost logs shop -f\n  bifrost logs shop/arrays/1 --since 10m\n  bifrost logs shop -n 1000 --json | jq -r .text",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.lines < 1 || o.lines > gatekeeper.MaxOutputLines {
				return fmt.Errorf("--lines %d: want 1 to %d; --since has no bound", o.lines, gatekeeper.MaxOutputLines)
			}
			return o.run(func(c *client.Client) error { return o.print(cmd, c, args[0]) })
		},
	})
	cmd.Flags().BoolVarP(&o.follow, "follow", "f", false, "show lines as they are printed, until Ctrl-C")
	cmd.Flags().DurationVar(&o.since, "since", 0, "show all lines that are not older than this, such as 10m")
	cmd.Flags().IntVarP(&o.lines, "lines", "n", 100, "without --since: how many of the latest lines to show")
	return cmd
}

// logsInterval is how often the blades are asked for new lines.
const logsInterval = 300 * time.Millisecond

func (o *logsOptions) print(cmd *cobra.Command, c *client.Client, program string) error {
	ctx := cmd.Context()
	f := client.LogFilter{Program: program, Last: o.lines}
	if o.since > 0 {
		f.Last, f.Since = 0, time.Now().Add(-o.since)
	}
	silent := map[string]string{}
	for {
		page, err := c.Logs(ctx, f)
		if errors.Is(err, context.Canceled) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := o.printLines(cmd.OutOrStdout(), page.Items); err != nil {
			return err
		}
		if !maps.Equal(silent, page.Silent) {
			tellSilent(cmd.ErrOrStderr(), page.Silent)
			silent = page.Silent
		}
		f = client.LogFilter{Program: program, Cursor: page.Next}
		switch {
		case page.More:
			continue
		case !o.follow:
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(logsInterval):
		}
	}
}

func tellSilent(w io.Writer, silent map[string]string) {
	for _, blade := range slices.Sorted(maps.Keys(silent)) {
		fmt.Fprintf(w, "bifrost: lines of blade %s are missing: %s\n", blade, silent[blade])
	}
}

func (o *logsOptions) printLines(w io.Writer, lines []api.LogLine) error {
	if o.json {
		return jsonLines(w, lines)
	}
	for _, l := range lines {
		if _, err := fmt.Fprintf(w, "%s  %s  %s  %s\n", clock(l.Time), l.Blade, l.Program, l.Text); err != nil {
			return err
		}
	}
	return nil
}
