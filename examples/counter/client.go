package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/bifrost-rack/bifrost/examples/counter/gen-go/counter"
	"github.com/bifrost-rack/bifrost/examples/counter/tally"
	"github.com/bifrost-rack/bifrost/rpc"
)

// addFlags are the flags of `counter add`.
type addFlags struct {
	account int32
	amount  uint8
	count   int
	to      string
	timeout time.Duration
	after   time.Duration
	verbose bool
	stamps  bool
}

func newAddCmd() *cobra.Command {
	var f addFlags
	cmd := &cobra.Command{
		Use:   "add",
		Short: "Add to an account as a plain client, which is gone when it dies",
		Long: `Add to an account again and again, and check what it has after each call. A plain
client is not started again when it dies: of the call that it had out, nobody knows.
Every other one has happened once.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withNode(cmd.Context(), "counter-add", f.run)
		},
	}
	cmd.Flags().Int32Var(&f.account, "account", 0, "account to add to, which must be nobody else's meanwhile")
	cmd.Flags().Uint8Var(&f.amount, "amount", 1, "what to add")
	cmd.Flags().IntVar(&f.count, "count", 1, "how many calls")
	cmd.Flags().StringVar(&f.to, "to", tally.CounterName, "whom to call: Counter, or Front, which calls Counter")
	cmd.Flags().DurationVar(&f.timeout, "timeout", time.Minute, "deadline of each call, also while the service recovers")
	cmd.Flags().DurationVar(&f.after, "after", 0, "join the rack, and wait so long before the first call")
	cmd.Flags().BoolVar(&f.verbose, "verbose", false, "print what the account has after each call")
	cmd.Flags().BoolVar(&f.stamps, "stamps", false, "print when each answer came, in nanoseconds since 1970, and what the account has then")
	return cmd
}

func (f *addFlags) run(ctx context.Context, node *rpc.Node) error {
	to, err := tally.Open(node, f.to)
	if err != nil {
		return err
	}
	select {
	case <-time.After(f.after):
	case <-ctx.Done():
		return ctx.Err()
	}
	var total, slowest int64
	for n := range f.count {
		began := time.Now()
		got, err := f.add(ctx, to)
		if err != nil {
			return fmt.Errorf("call %d of %d: %w", n+1, f.count, err)
		}
		if n > 0 && got != total+int64(f.amount) {
			return fmt.Errorf("call %d of %d: account %d has %d, must have %d", n+1, f.count, f.account, got, total+int64(f.amount))
		}
		total, slowest = got, max(slowest, time.Since(began).Microseconds())
		switch {
		case f.stamps:
			fmt.Println(time.Now().UnixNano(), total)
		case f.verbose:
			fmt.Println(total)
		}
	}
	fmt.Printf("%d calls: account %d has %d; the slowest took %v\n", f.count, f.account, total, time.Duration(slowest)*time.Microsecond)
	return nil
}

func (f *addFlags) add(ctx context.Context, to tally.Adder) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	ref := rpc.RefOf([]byte{f.amount})
	total, err := to.Add(ctx, f.account, ref)
	if err != nil {
		return 0, err
	}
	return total, ref.Free(ctx)
}

func newTotalsCmd() *cobra.Command {
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "totals",
		Short: "Print what the accounts have that have anything",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withNode(cmd.Context(), "counter-totals", func(ctx context.Context, node *rpc.Node) error {
				ctx, cancel := context.WithTimeout(ctx, timeout)
				defer cancel()
				totals, err := counter.OpenCounter(node, tally.CounterName).Totals(ctx)
				for account, total := range totals {
					if total != 0 {
						fmt.Println(account, total)
					}
				}
				return err
			})
		},
	}
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "deadline of the call, also while the service recovers")
	return cmd
}
