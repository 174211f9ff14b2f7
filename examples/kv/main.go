// Command kv is a key-value service whose values live in distributed memory, and
// its client. Every change happens exactly once, whichever blade dies and whenever.
// Run it on a rack that is up:
//
//	sudo bifrost deploy examples/kv/app.yaml
//	sudo bifrost rack exec c1 -- kv incr visits
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/bifrost-rack/bifrost/examples/kv/gen-go/kv"
	"github.com/bifrost-rack/bifrost/examples/kv/store"
	"github.com/bifrost-rack/bifrost/rpc"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := newRoot().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "kv:", err)
		os.Exit(1)
	}
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "kv",
		Short:         "A key-value service whose values live in distributed memory",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(newServeCmd())
	root.AddCommand(newClientCmds()...)
	return root
}

func newServeCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "serve",
		Short: "Serve the store on this blade until interrupted",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return serve(cmd.Context()) },
	}
}

// serve is a node that exports the store until ctx ends or the node is lost. Only
// when the store has again what its ledger remembers of it, ExportStore returns.
func serve(ctx context.Context) error {
	node, err := rpc.Join(ctx, rpc.WithName("kv"))
	if err != nil {
		return err
	}
	defer leave(node)
	if err := kv.ExportStore(ctx, node, store.Name, store.New()); err != nil {
		return err
	}
	fmt.Printf("%s is served by %s\n", store.Name, node.Address())
	select {
	case <-ctx.Done():
		return nil
	case <-node.Done():
		return fmt.Errorf("node %s has lost its place in the rack", node.Address())
	}
}

// leave ends the node in an orderly way, also after an interrupt.
func leave(node *rpc.Node) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := node.Close(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "leaving:", err)
	}
}
