package main

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/bifrost-rack/bifrost/rack/config"
	"github.com/bifrost-rack/bifrost/rack/outage"
)

func newRackOutageCmd(o *rackOptions) *cobra.Command {
	var cfg outage.Config
	var absent time.Duration
	cmd := &cobra.Command{
		Use:    "outage",
		Hidden: true, // for those who work on Bifröst
		Short:  "Measure how long a service is away when its program or its blade dies",
		Long: `Make a rack of its own with a service that keeps state, a client that calls it all
the time, and two spares; kill the service's process, and then its whole blade, some
times each, and print how long it took until the next right answer.

With --gatekeeper the Gatekeeper is killed instead, and stays away for that long: the
client's calls go on, and their rate before, during and after is printed. At the end the
service is killed, too, and must come back when the Gatekeeper does.`,
		Example: "  sudo bifrost rack outage --rounds 20\n  sudo bifrost rack outage --heartbeat 100ms --json\n  sudo bifrost rack outage --gatekeeper 1m",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			h, err := o.host()
			if err != nil {
				return err
			}
			h.Progress = nil
			cfg.Host, cfg.Name = h, or(o.name, "outage")
			if !o.json {
				cfg.Out = cmd.OutOrStdout()
			}
			if absent > 0 {
				a, err := outage.MeasureAbsence(cmd.Context(), cfg, absent)
				if err == nil && o.json {
					err = json.NewEncoder(cmd.OutOrStdout()).Encode(a)
				}
				return err
			}
			r, err := outage.Measure(cmd.Context(), cfg)
			if err != nil {
				return err
			}
			if o.json {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(r)
			}
			beats := 3 * r.Heartbeat
			fmt.Fprintf(cmd.OutOrStdout(), "median of %d (and the longest): program %v (%v); blade %v (%v), which is three heartbeats (%v) and %v; usually an answer comes after %v\n",
				cfg.Rounds, round(outage.Median(r.Program)), round(outage.Longest(r.Program)), round(outage.Median(r.Blade)), round(outage.Longest(r.Blade)), beats, round(outage.Median(r.Blade)-beats), round(outage.Median(r.Usual)))
			return nil
		},
	}
	cmd.Flags().IntVar(&cfg.Rounds, "rounds", 10, "how often to kill each")
	cmd.Flags().DurationVar(&absent, "gatekeeper", 0, "kill the Gatekeeper for so long, and nobody else before the end")
	cmd.Flags().DurationVar(&cfg.Heartbeat, "heartbeat", config.DefaultHeartbeat, "how often blades report")
	cmd.Flags().DurationVar(&cfg.Explain, "explain", 0, "tell what happened in outages of so long or longer (default: never)")
	return o.withJSON(cmd)
}

func round(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }
