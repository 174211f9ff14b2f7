package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
	"github.com/bifrost-rack/bifrost/gatekeeper/admin/client"
	"github.com/bifrost-rack/bifrost/internal/duration"
)

// historyOptions are the flags of `bifrost history`.
type historyOptions struct {
	clientOptions
	since  time.Duration
	follow bool
}

func newHistoryCmd() *cobra.Command {
	var o historyOptions
	cmd := o.command(&cobra.Command{
		Use:   "history",
		Short: "Show how many calls there were in each minute, and how long they took",
		Long: `Show of each minute how many calls have ended, how many of them have failed, and how long
they took: the time within which half of them, and 99 of 100, have ended. The Gatekeeper
keeps the last two days in files, also while it is restarted. A minute in which it was
restarted is there twice. bifrost trace --since and --until list the calls themselves, as
far as they are remembered.`,
		Example: "  bifrost history\n  bifrost history --since 24h --json | jq 'select(.failed > 0)'\n  bifrost history -f",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(func(c *client.Client) error { return o.show(cmd, c) })
		},
	})
	cmd.Flags().DurationVar(&o.since, "since", time.Hour, "show the minutes of this time, 48h at most")
	cmd.Flags().BoolVarP(&o.follow, "follow", "f", false, "show each minute when it is over, until Ctrl-C")
	return cmd
}

func (o *historyOptions) show(cmd *cobra.Command, c *client.Client) error {
	ctx, from := cmd.Context(), time.Now().Add(-o.since)
	if !o.json {
		if _, err := fmt.Fprintln(cmd.OutOrStdout(), minuteText([]string{"MINUTE", "CALLS", "FAILED", "HALF WITHIN", "99 % WITHIN"})); err != nil {
			return err
		}
	}
	for {
		minutes, err := o.after(ctx, c, from)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // Ctrl-C
		}
		if err != nil {
			return err
		}
		for i := range minutes {
			m := &minutes[i]
			if from = m.Time.Add(1); o.json {
				err = jsonLines(cmd.OutOrStdout(), []*api.Minute{m})
			} else {
				_, err = fmt.Fprintln(cmd.OutOrStdout(), minuteText([]string{
					m.Time.Local().Format("2006-01-02 15:04"), fmt.Sprint(m.Calls), fmt.Sprint(m.Failed), seconds(m.P50), seconds(m.P99),
				}))
			}
			if err != nil {
				return err
			}
		}
		if !o.follow {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(followInterval):
		}
	}
}

// after returns the minutes that begin at a time or later. Of who follows, the minute that is under way is not one yet.
func (o *historyOptions) after(ctx context.Context, c *client.Client, from time.Time) (minutes []api.Minute, err error) {
	h, err := c.History(ctx)
	for _, m := range h.Minutes {
		if !m.Time.Before(from) && (!o.follow || time.Since(m.Time) >= time.Minute) {
			minutes = append(minutes, m)
		}
	}
	return minutes, err
}

// minuteText puts cells into columns of one width, whatever comes later.
func minuteText(cells []string) string {
	return strings.TrimRight(fmt.Sprintf("%-18s%-10s%-10s%-14s%s", cells[0], cells[1], cells[2], cells[3], cells[4]), " ")
}

// seconds prints a time that is given in seconds; none if it is 0.
func seconds(s float64) string {
	if s == 0 {
		return "-"
	}
	return millis(duration.Seconds(s))
}
