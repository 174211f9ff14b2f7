// Command arrays is the thesis's example: a server of the services Ping and
// Arrays, and clients that call them by value or by reference and check every
// result. Run it on a blade of a rack:
//
//	sudo bifrost rack exec s2 -- bin/arrays server
//	sudo bifrost rack exec c1 -- bin/arrays add --size 2097152 --count 10 --by reference
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := newRoot().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "arrays:", err)
		os.Exit(1)
	}
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "arrays",
		Short:         "Ping, echo, increment and add arrays, by value and by reference",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(newServerCmd(), newHoldCmd(), newPeekCmd())
	for _, name := range []string{"ping", "echo", "increment", "add"} {
		root.AddCommand(newWorkloadCmd(name))
	}
	return root
}
