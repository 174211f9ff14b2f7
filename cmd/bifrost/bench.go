package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/bifrost-rack/bifrost/bench/switches"
	"github.com/spf13/cobra"
)

func newBenchCmd() *cobra.Command {
	var o benchOptions
	cmd := &cobra.Command{
		Use:   "bench [EXPERIMENT...]",
		Short: "Measure, with peers in the same run",
		Long: `Measure Bifröst on this machine beside what one would use instead: bare sockets,
Apache Thrift over TCP, gRPC, Redis. Without arguments all experiments run, on a
rack of network namespaces that is made for the run and removed afterwards:

` + experimentList() + `

What is compared is measured in turns, in the same run and on CPUs of its own:
numbers of one machine say little about another, ratios a bit more. Needs root.`,
		Example: `  sudo bifrost bench ping-overhead --quick
  sudo bifrost bench --out /tmp/eval
  sudo bifrost bench switch --quick`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd, args) },
	}
	o.register(cmd)
	cmd.AddCommand(newBenchSwitchCmd(), newBenchAgentCmd())
	return cmd
}

func newBenchSwitchCmd() *cobra.Command {
	var quick, asJSON bool
	o := switches.Options{Rules: 10_000, Rounds: 10, RoundTrip: 2 * time.Second, Stream: 2 * time.Second}
	cmd := &cobra.Command{
		Use:   "switch",
		Short: "The switch on both executors, beside a Linux bridge and a bare cable",
		Long: `Measure UDP round trips and TCP throughput between two network namespaces, joined
in turn by a bare cable, a Linux bridge, and the software switch with Bifröst's
whole program and many access rules, on the eBPF and on the Go executor; and how
many rules a second come into force. Client and server have a CPU each.

Needs root; leaves nothing behind.`,
		Example: "  sudo bifrost bench switch --quick\n  sudo bifrost bench switch --json | tail -1",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if os.Getuid() != 0 {
				return errors.New("bench switch makes network namespaces, which needs root: run it with sudo")
			}
			if quick {
				o.Rounds, o.RoundTrip, o.Stream = 4, 800*time.Millisecond, 500*time.Millisecond
			}
			o.Progress = cmd.ErrOrStderr()
			r, err := switches.Run(cmd.Context(), o)
			if err != nil {
				return err
			}
			if err := r.Print(cmd.OutOrStdout()); err != nil || !asJSON {
				return err
			}
			line, err := json.Marshal(r)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), string(line))
			return err
		},
	}
	f := cmd.Flags()
	f.BoolVar(&quick, "quick", false, "measure for less than 40 seconds")
	f.BoolVar(&asJSON, "json", false, "print the result as JSON in the last line")
	f.IntVar(&o.Rules, "rules", o.Rules, "access rules to load")
	return cmd
}
