package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/bifrost-rack/bifrost/bench"
	"github.com/bifrost-rack/bifrost/bench/agent"
	"github.com/bifrost-rack/bifrost/bench/report"
	"github.com/bifrost-rack/bifrost/rack/config"
)

// benchOptions are the flags of `bifrost bench`.
type benchOptions struct {
	rack, sw, mininet string
	quick             bool
	out               string
}

func (o *benchOptions) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.BoolVar(&o.quick, "quick", false, "fewer points, short measurements: to see that everything works")
	f.StringVar(&o.rack, "rack", bench.DefaultRack, "name of the rack that is made for the run")
	f.StringVar(&o.sw, "switch", string(config.Bifrost), "bifrost or bmv2")
	f.StringVar(&o.mininet, "mininet", "", "`FILE` that describes a rack under Mininet (mininet/rack.py --experiment writes it)")
	f.StringVar(&o.out, "out", "", "`DIR` to write report.json and pictures to")
}

func (o *benchOptions) run(cmd *cobra.Command, args []string) error {
	chosen, err := bench.Choose(args)
	if err != nil {
		return err
	}
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the bifrost binary: %w", err)
	}
	run := bench.Options{
		Experiments: chosen, Pace: bench.Thorough, Bifrost: exe, Version: version, Rack: o.rack, Switch: config.Switch(o.sw), Mininet: o.mininet,
		Progress: func(format string, a ...any) { fmt.Fprintf(cmd.ErrOrStderr(), format+"\n", a...) },
	}
	if o.quick {
		run.Pace = bench.Quick
	}
	r, err := bench.Run(cmd.Context(), run)
	if err != nil {
		return err
	}
	return report.WriteTables(cmd.OutOrStdout(), &r)
}

func newBenchAgentCmd() *cobra.Command {
	var cpus []int
	cmd := &cobra.Command{
		Use: "agent", Hidden: true, Args: cobra.NoArgs,
		Short: "A benchmark's process on a blade; it is told what to do by lines of JSON",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(cpus) > 0 {
				if err := agent.Pin(cpus); err != nil {
					return err
				}
			}
			return agent.Run(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
	cmd.Flags().IntSliceVar(&cpus, "cpus", nil, "CPUs to run on")
	return cmd
}

// experimentList is for the help.
func experimentList() string { return "  " + strings.Join(bench.Names(), "\n  ") }
