// Command soak holds a rack of real processes to its word for long: 64 callers make
// exactly-once calls, check every result, and meanwhile the memory, the goroutines
// and the descriptors of every process are sampled, and the size of the log. It fails
// if a call fails, if a process ends, if there are too few calls, or if anything grows
// after the beginning.
//
//	sudo go run ./bench/soak --for 10m
//
// The rack has a name and network namespaces of its own and is removed in the end.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := newRoot().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(1)
	}
}

func newRoot() *cobra.Command {
	var o options
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "soak",
		Short: "Make exactly-once calls for long, and see that nothing fails and nothing grows",
		Example: `  sudo go run ./bench/soak --for 10m
  sudo go run ./bench/soak --for 30s --least 0 --json >soak.json`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.progress = func(format string, args ...any) { fmt.Fprintf(cmd.ErrOrStderr(), format+"\n", args...) }
			r, err := soak(cmd.Context(), o)
			if asJSON {
				e := json.NewEncoder(cmd.OutOrStdout())
				e.SetIndent("", " ")
				if werr := e.Encode(r); err == nil {
					err = werr
				}
			} else if len(r.Processes) > 0 {
				r.print(cmd.OutOrStdout())
			}
			return err
		},
	}
	f := cmd.Flags()
	f.DurationVar(&o.duration, "for", 10*time.Minute, "how long to make calls")
	f.IntVar(&o.callers, "callers", 64, "how many callers, at most one for each account of the counter example (64)")
	f.Float64Var(&o.least, "least", 834, "fewest calls per second (834 makes 500,000 in ten minutes)")
	f.DurationVar(&o.every, "every", 0, "how often to sample (default: a hundredth of --for, 5s at most)")
	f.StringVar(&o.rack, "rack", "soak", "`NAME` of the rack that is made")
	f.StringVar(&o.bifrost, "bifrost", "", "`PATH` of the bifrost binary (default: built from the module in the working directory)")
	f.BoolVar(&asJSON, "json", false, "print all samples as JSON")
	cmd.AddCommand(newServeCmd(), newCallCmd())
	return cmd
}
