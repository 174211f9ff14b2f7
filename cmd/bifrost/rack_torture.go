package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/spf13/cobra"

	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rack/config"
	"github.com/bifrost-rack/bifrost/rack/torture"
)

func newRackTortureCmd(o *rackOptions) *cobra.Command {
	var cfg torture.Config
	var sw string
	cmd := &cobra.Command{
		Use:    "torture",
		Hidden: true, // for those who work on Bifröst
		Short:  "Kill and pause at random, and see that every call is counted once",
		Long: `Make a rack of its own, on which durable mains and plain clients call the counter
example, and kill and pause programs, blades and the Gatekeeper at random for a time.
In the end every account must have exactly what was added to it, and nothing may be
left: no region, rule, node or call. Then the rack is removed.

With --memory, memory blades are killed instead, one after the other, each filled again
before the next one dies, and then the blade of a key-value service whose values are in
their memory; every answer of that service is checked.

With --hostile nothing is killed. A program with raw sockets on a blade of its own, and
one without privileges beside the callers, try each hole of docs/security.md; none may
open, no blade may fail, and no call may be counted twice.`,
		Example: `  sudo bifrost rack torture --for 1m
  sudo bifrost rack torture --for 20s --seed 7 --json
  sudo bifrost rack torture --memory --for 3m
  sudo bifrost rack torture --hostile --for 1m`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			h, err := o.host()
			if err != nil {
				return err
			}
			h.Progress = nil
			cfg.Host, cfg.Switch, cfg.Name, cfg.Out = h, config.Switch(sw), or(o.name, "torture"), cmd.OutOrStdout()
			if o.json {
				cfg.Out = io.Discard
			}
			for cfg.Seed == 0 {
				cfg.Seed = rand.Uint64N(1e6)
			}
			report, err := torture.Run(cmd.Context(), cfg)
			line, _ := json.Marshal(report)
			fmt.Fprintln(cmd.OutOrStdout(), string(line))
			return err
		},
	}
	cmd.Flags().DurationVar(&cfg.For, "for", time.Minute, "how long")
	cmd.Flags().Uint64Var(&cfg.Seed, "seed", 0, "who is hit, how and in what order (default: drawn)")
	cmd.Flags().DurationVar(&cfg.Heartbeat, "heartbeat", torture.DefaultHeartbeat, "how often blades report")
	cmd.Flags().IntVar(&cfg.MTU, "mtu", rackaddr.DefaultMTU, "the rack's largest IPv6 packet in bytes, 1280 to 65535")
	cmd.Flags().BoolVar(&cfg.Memory, "memory", false, "kill memory blades, and the blade of a service whose values they hold; at least one round")
	cmd.Flags().BoolVar(&cfg.Hostile, "hostile", false, "have a hostile program attack the rack instead")
	cmd.MarkFlagsMutuallyExclusive("memory", "hostile")
	cmd.Flags().BoolVar(&cfg.Keep, "keep", false, "leave the rack up if it fails")
	cmd.Flags().StringVar(&sw, "switch", "", "bifrost or bmv2 (default: bifrost)")
	return o.withJSON(cmd)
}
