package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/bifrost-rack/bifrost/bench"
	"github.com/bifrost-rack/bifrost/bench/agent"
	"github.com/bifrost-rack/bifrost/bench/report"
	"github.com/bifrost-rack/bifrost/rack/config"
)

// benchOptions are the flags of `bifrost bench`.
type benchOptions struct {
	rack, sw, mininet  string
	quick, json, again bool
	lowLatency         bool
	out, document      string
}

func (o *benchOptions) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.BoolVar(&o.quick, "quick", false, "fewer points and short measurements, to see that everything works")
	f.StringVar(&o.rack, "rack", bench.DefaultRack, "name of the rack that is made for the run")
	f.StringVar(&o.sw, "switch", string(config.Bifrost), "bifrost or bmv2")
	f.StringVar(&o.mininet, "mininet", "", "measure on the rack that `FILE` describes (mininet/rack.py --experiment writes it)")
	f.StringVar(&o.out, "out", "", "`DIR` to write report.json and pictures (SVG, PNG) to")
	f.StringVar(&o.document, "document", "", "`FILE` to write the evaluation to, in Markdown; needs --out")
	f.BoolVar(&o.lowLatency, "low-latency", false, "keep idle CPUs from sleeping while it runs, for every contender (holds /dev/cpu_dma_latency at 0)")
	f.BoolVar(&o.json, "json", false, "print the report as JSON instead of tables")
	f.BoolVar(&o.again, "again", false, "measure nothing: read the report from --out and write tables, pictures and document again")
}

func (o *benchOptions) run(cmd *cobra.Command, args []string) error {
	if o.out == "" && (o.document != "" || o.again) {
		return errors.New("--document and --again need --out DIR: the pictures are there, and report.json")
	}
	if o.again {
		r, err := bench.Read(o.out)
		if err != nil {
			return err
		}
		return o.write(cmd, r)
	}
	chosen, err := bench.Choose(args)
	if err != nil {
		return err
	}
	exe, err := bifrost()
	if err != nil {
		return err
	}
	run := bench.Options{
		Experiments: chosen, Pace: bench.Thorough, Bifrost: exe, Version: version, Rack: o.rack, Switch: config.Switch(o.sw), Mininet: o.mininet, LowLatency: o.lowLatency,
		Progress: func(format string, a ...any) { fmt.Fprintf(cmd.ErrOrStderr(), format+"\n", a...) },
	}
	if o.quick {
		run.Pace = bench.Quick
	}
	r, err := bench.Run(cmd.Context(), run)
	if err != nil {
		return err
	}
	return o.write(cmd, &r)
}

// write shows a report, and keeps it where it was asked for.
func (o *benchOptions) write(cmd *cobra.Command, r *report.Report) error {
	if o.out != "" {
		if err := bench.Write(r, o.out); err != nil {
			return err
		}
	}
	if o.document != "" {
		if err := bench.WriteDocument(r, o.document, o.out); err != nil {
			return err
		}
	}
	if o.json {
		return report.WriteJSON(cmd.OutOrStdout(), r)
	}
	return report.WriteTables(cmd.OutOrStdout(), r)
}

func newAgentCmd() *cobra.Command {
	var cpus []int
	cmd := &cobra.Command{
		Use:    "agent",
		Short:  "A benchmark's process on a blade",
		Hidden: true,
		Args:   cobra.NoArgs,
		Long: `A benchmark's process on a blade, which the harness starts. It is told what to
serve or to measure by lines of JSON, and ends with its input.`,
		Example: `  bifrost bench agent --cpus 3`,
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
