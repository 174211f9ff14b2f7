package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/bifrost-rack/bifrost/bench"
	"github.com/spf13/cobra"
)

// newFairnessCmd floods a rack from one blade.
func newFairnessCmd() *cobra.Command {
	f := bench.Fairness{}
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "fairness",
		Short: "What the flood of one blade does to the calls of others",
		Long: fmt.Sprintf(`Make a rack, and measure exactly-once calls with pointers from c1 to s1. Then s2 floods in each class of what the switch holds or tells (control
packets, questions who serves a method, requests to memory that is not there, denied reads, and all of
these in turn), while the same calls are measured again. The flood has only the CPU time
that the rest of the rack leaves, since a real blade has CPUs of its own. Packets that the switch drops come first: what they do to
the calls is the work of sending and dropping on CPUs that all share here. It fails if
the slowest hundredth of the calls takes more than %d times as long as without a flood,
or if a blade has failed. Needs root.

With --own-cpu the flood has the last CPU, at the priority of the rest, and that has
the others. Then the calls are measured also beside a program that keeps the flood's CPU
busy and sends nothing, and compared with that. What is left is what a flood does to
switch and Gatekeeper, as on a rack whose blades are machines.`, bench.MostSlower),
		Example: `  sudo bifrost bench fairness
  sudo bifrost bench fairness --own-cpu
  sudo bifrost bench fairness --for 10s --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if os.Geteuid() != 0 {
				return bench.ErrNotRoot
			}
			if f.For < time.Second || f.For > time.Minute {
				return fmt.Errorf("--for %v: must be 1s to 1m", f.For)
			}
			if f.Bifrost, err = bifrost(); err != nil {
				return err
			}
			f.Progress = func(format string, args ...any) { fmt.Fprintf(cmd.ErrOrStderr(), format+"\n", args...) }
			results, err := f.Run(cmd.Context())
			if err != nil {
				return err
			}
			if asJSON {
				err = json.NewEncoder(cmd.OutOrStdout()).Encode(results)
			} else {
				err = printFairness(cmd.OutOrStdout(), results)
			}
			if err != nil {
				return err
			}
			return bench.Judge(results)
		},
	}
	cmd.Flags().DurationVar(&f.For, "for", time.Minute, "how long to measure each class, 1s to 1m")
	cmd.Flags().StringSliceVar(&f.Classes, "class", nil, "`CLASS` to flood with: all if it is missing")
	cmd.Flags().BoolVar(&f.OwnCPU, "own-cpu", false, "give the flood the last CPU, and everything else the others")
	cmd.Flags().StringVar(&f.Rack, "rack", "fairness", "the rack's `NAME`")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// printFairness prints a row for each class.
func printFairness(w io.Writer, results []bench.Fair) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "FLOOD\tCALLS\tMEDIAN µs\tP99 µs\tTIMES\tTIMES DROPPED\tFLOOD/s\tFAILED")
	dropped := "-"
	for _, r := range results {
		class := r.Class
		if class == "" {
			class = "none"
		}
		if i := slices.IndexFunc(results, func(r bench.Fair) bool { return r.Class == bench.Dropped }); i >= 0 {
			dropped = fmt.Sprintf("%.1f", r.P99/results[i].P99)
		}
		fmt.Fprintf(t, "%s\t%d\t%.0f\t%.0f\t%.1f\t%s\t%.0f\t%s\n", class, r.N, r.P50, r.P99, r.P99/bench.Base(results).P99, dropped, r.Flood, strings.Join(r.Failed, " "))
	}
	return t.Flush()
}

// newFloodCmd is the blade that floods.
func newFloodCmd() *cobra.Command {
	cpu := -1
	cmd := &cobra.Command{
		Use: "flood CLASS", Short: "Flood the switch from this blade", Hidden: true, Args: cobra.ExactArgs(1),
		Long:    "Send packets of a class as fast as they leave, until interrupted, and print how many there were: a part of bifrost bench fairness.",
		Example: "  bifrost bench flood control",
		RunE: func(cmd *cobra.Command, args []string) error {
			sent, err := bench.Flood(cmd.Context(), args[0], cpu)
			if err == nil {
				_, err = fmt.Fprintln(cmd.OutOrStdout(), sent)
			}
			return err
		},
	}
	cmd.Flags().IntVar(&cpu, "cpu", cpu, "the CPU to run on; all, at the lowest priority, if it is negative")
	return cmd
}
