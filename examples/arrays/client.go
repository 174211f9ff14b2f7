package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/bifrost-rack/bifrost/examples/arrays/workload"
	"github.com/bifrost-rack/bifrost/rpc"
)

// clientFlags are the flags of every workload.
type clientFlags struct {
	size    int
	count   int
	by      string
	timeout time.Duration
	json    bool
}

func newWorkloadCmd(name string) *cobra.Command {
	f := clientFlags{}
	cmd := &cobra.Command{
		Use:     name,
		Short:   "Call " + name + " and check every result",
		Example: "  arrays " + name + " --size 65536 --count 100 --by reference",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.run(cmd.Context(), name)
		},
	}
	cmd.Flags().IntVar(&f.size, "size", 1024, "bytes of each array")
	cmd.Flags().IntVar(&f.count, "count", 10, "how many calls")
	cmd.Flags().StringVar(&f.by, "by", "reference", "how arrays travel: value or reference")
	cmd.Flags().DurationVar(&f.timeout, "timeout", 30*time.Second, "deadline of each call, its memory accesses included")
	cmd.Flags().BoolVar(&f.json, "json", false, "print the result as one JSON line")
	return cmd
}

// run makes the calls one after the other and reports their latencies.
func (f clientFlags) run(ctx context.Context, name string) error {
	if f.by != "value" && f.by != "reference" {
		return fmt.Errorf("--by %s: must be value or reference", f.by)
	}
	if f.size < 0 || f.count < 1 {
		return fmt.Errorf("--size %d --count %d: at least 0 bytes and one call", f.size, f.count)
	}
	node, err := rpc.Join(ctx, rpc.WithName("arrays-client"))
	if err != nil {
		return err
	}
	defer leave(node)
	client := workload.New(node)
	took := make([]time.Duration, f.count)
	for i := range took {
		start := time.Now()
		if err := f.once(ctx, client, name, byte(i)); err != nil {
			return fmt.Errorf("call %d of %d: %w", i+1, f.count, err)
		}
		took[i] = time.Since(start)
	}
	return f.report(name, took)
}

func (f clientFlags) once(ctx context.Context, client *workload.Client, name string, seed byte) error {
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	return client.Run(ctx, name, f.size, seed, f.by == "reference")
}

// report prints what was verified and how long it took.
func (f clientFlags) report(name string, took []time.Duration) error {
	slices.Sort(took)
	p50, p99 := took[len(took)/2], took[len(took)*99/100]
	if f.json {
		line, err := json.Marshal(map[string]any{
			"workload": name, "by": f.by, "size": f.size, "count": len(took), "verified": len(took),
			"p50_us": p50.Microseconds(), "p99_us": p99.Microseconds(),
		})
		fmt.Println(string(line))
		return err
	}
	what := fmt.Sprintf("%s by %s: %d calls with %d bytes", name, f.by, len(took), f.size)
	if name == "ping" { // carries none
		what = fmt.Sprintf("ping: %d calls", len(took))
	}
	fmt.Printf("%s verified, p50 %v, p99 %v\n", what, p50.Round(time.Microsecond), p99.Round(time.Microsecond))
	return nil
}
