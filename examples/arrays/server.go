package main

import (
	"context"
	_ "embed"
	"fmt"
	"slices"
	"time"

	"github.com/apache/thrift/lib/go/thrift"
	"github.com/spf13/cobra"

	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/examples/arrays/service"
	"github.com/bifrost-rack/bifrost/rpc"
)

func newServerCmd() *cobra.Command {
	var services []string
	cmd := &cobra.Command{
		Use:   "server",
		Short: "Serve Ping and Arrays on this blade until interrupted",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return serve(cmd.Context(), services)
		},
	}
	cmd.Flags().StringSliceVar(&services, "services", []string{"Ping", "Arrays"}, "services to export")
	return cmd
}

// idl is the definition of both services, for `bifrost services --idl Arrays`.
//
//go:embed arrays.thrift
var idl string

// processors makes the processor of each service.
var processors = map[string]func() thrift.TProcessor{
	"Ping":   func() thrift.TProcessor { return arrays.NewPingProcessor(service.Ping{}) },
	"Arrays": func() thrift.TProcessor { return arrays.NewArraysProcessor(service.Arrays{}) },
}

// serve is a node that exports the services until ctx ends or the node loses
// its identity.
func serve(ctx context.Context, services []string) error {
	for _, name := range services {
		if processors[name] == nil {
			return fmt.Errorf("no service %q: there are Arrays and Ping", name)
		}
	}
	node, err := rpc.Join(ctx, rpc.WithName("arrays-server"))
	if err != nil {
		return err
	}
	defer leave(node)
	for _, name := range slices.Compact(services) {
		if err := node.Export(ctx, name, processors[name](), rpc.WithIDL(idl)); err != nil {
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

// leave ends the node in an orderly way, also after an interrupt.
func leave(node *rpc.Node) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := node.Close(ctx); err != nil {
		fmt.Println("leaving:", err)
	}
}
