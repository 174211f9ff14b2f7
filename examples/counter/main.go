// Command counter is a service that must not count anything twice, and programs that
// call it: kill any of them, or the blade it runs on, as often as you like. Run it on
// a rack that is up:
//
//	sudo bifrost deploy examples/counter/app.yaml
//	sudo bifrost rack exec c1 -- counter add --count 1000
//	sudo bifrost rack exec c1 -- counter totals
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/bifrost-rack/bifrost/examples/counter/gen-go/counter"
	"github.com/bifrost-rack/bifrost/examples/counter/tally"
	"github.com/bifrost-rack/bifrost/rpc"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := newRoot().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "counter:", err)
		os.Exit(1)
	}
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "counter",
		Short:         "Add to accounts, exactly once",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(newServeCmd(), newTellerCmd(), newAddCmd(), newTotalsCmd())
	return root
}

func newServeCmd() *cobra.Command {
	var deadlock string
	cmd := &cobra.Command{
		Use:       "serve SERVICE",
		Short:     "Serve " + tally.CounterName + " or " + tally.FrontName + " on this blade until interrupted",
		Args:      cobra.ExactArgs(1),
		ValidArgs: []string{tally.CounterName, tally.FrontName},
		RunE: func(cmd *cobra.Command, args []string) error {
			return withNode(cmd.Context(), "counter-"+args[0], func(ctx context.Context, node *rpc.Node) error {
				if err := serve(ctx, node, args[0], deadlock); err != nil {
					return err
				}
				fmt.Printf("%s is served by %s\n", args[0], node.Address())
				select {
				case <-ctx.Done():
					return nil
				case <-node.Done():
					return fmt.Errorf("node %s has lost its place in the rack", node.Address())
				}
			})
		},
	}
	cmd.Flags().StringVar(&deadlock, "deadlock", "", "to practise: the Counter's call that finds `FILE` removes it, and waits for a lock that nobody releases")
	return cmd
}

func serve(ctx context.Context, node *rpc.Node, service, deadlock string) error {
	if deadlock == "" || service != tally.CounterName {
		return tally.Serve(ctx, node, service)
	}
	return counter.ExportCounter(ctx, node, service, &tally.Counter{Entered: func(context.Context) {
		if os.Remove(deadlock) != nil {
			return
		}
		var mu sync.Mutex
		mu.Lock()
		mu.Lock()
	}})
}

func newTellerCmd() *cobra.Command {
	t := tally.Teller{}
	var to string
	cmd := &cobra.Command{
		Use:   "teller",
		Short: "Make calls as a durable main: each once in all, however often this is killed and started again",
		Example: `  counter teller --name t1 --account 1 --count 10000
  counter teller --name t2 --account 2 --count 10000 --to Front`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withNode(cmd.Context(), "teller-"+t.Name, func(ctx context.Context, node *rpc.Node) (err error) {
				if t.To, err = tally.Open(node, to); err != nil {
					return err
				}
				var calls, total int64
				t.Answered = func(_ context.Context, c, s int64) { calls, total = c, s }
				if err := t.Run(ctx, node); err != nil {
					return err
				}
				fmt.Printf("teller %s is done: %d calls, account %d has %d\n", t.Name, calls, t.Account, total)
				return nil
			})
		},
	}
	cmd.Flags().StringVar(&t.Name, "name", "teller", "tells tellers of a rack apart")
	cmd.Flags().Int32Var(&t.Account, "account", 0, "account to add to, which must be nobody else's")
	cmd.Flags().Int64Var(&t.Calls, "count", 1000, "how many calls to make, in all; 0 for as many as --for allows")
	cmd.Flags().DurationVar(&t.For, "for", time.Minute, "with --count 0: how long to make calls, in all")
	cmd.Flags().Int64Var(&t.Every, "every", 8, "calls between two checkpoints")
	cmd.Flags().StringVar(&to, "to", tally.CounterName, "whom to call: Counter, or Front, which calls Counter")
	return cmd
}

// leaveTimeout bounds an orderly end.
const leaveTimeout = 5 * time.Second

// withNode runs f as a node, which ends in an orderly way, also after an interrupt.
func withNode(ctx context.Context, name string, f func(context.Context, *rpc.Node) error) error {
	node, err := rpc.Join(ctx, rpc.WithName(name))
	if err != nil {
		return err
	}
	err = f(ctx, node)
	leaving, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	if e := node.Close(leaving); err == nil {
		err = e
	}
	return err
}
