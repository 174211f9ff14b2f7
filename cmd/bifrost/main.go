// Command bifrost is the whole of Bifröst in one binary: the switch, the
// Gatekeeper, the daemons, and the tools around them.
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
		fmt.Fprintln(os.Stderr, "bifrost:", err)
		os.Exit(1)
	}
}

// newRoot builds the command tree; each subcommand lives in the file of its name.
func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "bifrost",
		Short: "Program a disaggregated rack as one machine",
		Long: `Bifröst makes a rack that was taken apart into compute blades and memory blades
programmable as one machine: procedure calls that pass arguments by global
pointer, and a P4 switch that drops every memory access nobody granted.

Start with:  bifrost demo`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddGroup(&cobra.Group{ID: groupRun, Title: "Run a rack:"}, &cobra.Group{ID: groupWatch, Title: "Watch a rack:"},
		&cobra.Group{ID: groupOperate, Title: "Operate a rack:"})
	for _, cmd := range []*cobra.Command{newComputeCmd(), newDemoCmd(), newGatekeeperCmd(), newMemoryCmd(), newRackCmd(), newSwitchCmd()} {
		cmd.GroupID = groupRun
		root.AddCommand(cmd)
	}
	root.AddCommand(newBenchCmd(), newGenCmd(), newStatusCmd(), newPageCmd(), newVersionCmd())
	root.AddCommand(newShowCmds()...)
	root.AddCommand(newOperateCmds()...)
	return root
}

// The groups of subcommands in the help.
const (
	groupRun     = "run"
	groupWatch   = "watch"
	groupOperate = "operate"
)
