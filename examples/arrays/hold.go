package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/rpc"
)

// newHoldCmd and newPeekCmd together show protection: what one node holds,
// another cannot see.
func newHoldCmd() *cobra.Command {
	var size uint64
	cmd := &cobra.Command{
		Use:   "hold",
		Short: "Allocate a region, print its pointer and keep it until interrupted",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			node, err := rpc.Join(cmd.Context(), rpc.WithName("arrays-hold"))
			if err != nil {
				return err
			}
			defer leave(node)
			p, err := node.Memory().Alloc(cmd.Context(), size)
			if err != nil {
				return err
			}
			fmt.Println(p)
			<-cmd.Context().Done()
			return nil
		},
	}
	cmd.Flags().Uint64Var(&size, "size", 4096, "bytes to allocate")
	return cmd
}

func newPeekCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "peek POINTER",
		Short: "Read one byte at a global pointer, or be denied",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := dsm.ParsePointer(args[0])
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), 5*time.Second)
			defer cancel()
			node, err := rpc.Join(ctx, rpc.WithName("arrays-peek"))
			if err != nil {
				return err
			}
			defer leave(node)
			b := make([]byte, 1)
			if _, err := node.Memory().Read(ctx, p, b); err != nil {
				return err
			}
			fmt.Printf("%s holds %#02x\n", p, b[0])
			return nil
		},
	}
}
