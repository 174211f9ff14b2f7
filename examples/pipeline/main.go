// Command pipeline is an example of the stubs that "bifrost gen" makes: a text goes
// through four services by reference, each on any blade. Run it on a rack:
//
//	sudo bifrost rack exec s1 -- bin/pipeline serve Clean Sort
//	sudo bifrost rack exec s2 -- bin/pipeline serve Count Rank
//	sudo bifrost rack exec c1 -- bin/pipeline run README.md
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/bifrost-rack/bifrost/examples/pipeline/gen-go/pipeline"
	"github.com/bifrost-rack/bifrost/examples/pipeline/stages"
	"github.com/bifrost-rack/bifrost/rpc"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := newRoot().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "pipeline:", err)
		os.Exit(1)
	}
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "pipeline",
		Short:         "Rank the lines of a text, in four services that pass it by reference",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(newServeCmd(), newRunCmd())
	return root
}

func newServeCmd() *cobra.Command {
	return &cobra.Command{
		Use:       "serve STAGE...",
		Short:     "Serve stages on this blade until interrupted: Clean, Sort, Count, Rank",
		Args:      cobra.MinimumNArgs(1),
		ValidArgs: stages.Names,
		RunE: func(cmd *cobra.Command, names []string) error {
			return serve(cmd.Context(), names)
		},
	}
}

func newRunCmd() *cobra.Command {
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:     "run FILE",
		Short:   "Send a text through the pipeline and print what comes out",
		Example: "  pipeline run README.md",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			return run(ctx, args[0])
		},
	}
	cmd.Flags().DurationVar(&timeout, "timeout", 30*time.Second, "deadline of all stages together")
	return cmd
}

// serve is a node that exports stages until ctx ends or the node is lost.
func serve(ctx context.Context, names []string) error {
	node, err := rpc.Join(ctx, rpc.WithName("pipeline"))
	if err != nil {
		return err
	}
	defer leave(node)
	for _, name := range names {
		if err := stages.Serve(ctx, node, name); err != nil {
			return err
		}
		fmt.Printf("%s is served by %s\n", name, node.Address())
	}
	select {
	case <-ctx.Done():
		return nil
	case <-node.Done():
		return fmt.Errorf("node %s has lost its place in the rack", node.Address())
	}
}

// run sends one text through.
func run(ctx context.Context, file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	node, err := rpc.Join(ctx, rpc.WithName("pipeline-client"))
	if err != nil {
		return err
	}
	defer leave(node)
	// As plain Thrift has it: values in, values out, by reference beneath.
	ranked, err := pipeline.StageValues(pipeline.OpenStage(node, stages.Names[0])).Run(ctx, text)
	if err != nil {
		return err
	}
	_, err = os.Stdout.Write(ranked)
	return err
}

// leave ends the node in an orderly way, also after an interrupt.
func leave(node *rpc.Node) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := node.Close(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "leaving:", err)
	}
}
