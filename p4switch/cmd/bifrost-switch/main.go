// Command bifrost-switch is the software switch for P4 alone: what `bifrost switch` is, without the rest of Bifröst.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/bifrost-rack/bifrost/p4switch/shared/process"
	"github.com/bifrost-rack/bifrost/p4switch/switchcmd"
	"github.com/spf13/cobra"
)

const name = "bifrost-switch"

// version is the release, which the linker sets.
var version string

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	root := newRoot()
	root.SetArgs(arguments(os.Args[0], os.Args[1:]))
	err := root.ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintf(root.ErrOrStderr(), "%s: %s\n", name, switchcmd.Named(err, name))
		os.Exit(1)
	}
}

// arguments are those of the command, by how the binary was called: as bmv2's program, too.
func arguments(called string, args []string) []string {
	all := switchcmd.CalledAs(called, args)
	if len(all) > len(args) {
		return all[1:] // without "switch"
	}
	return all
}

func newRoot() *cobra.Command {
	build := version
	if info, ok := debug.ReadBuildInfo(); ok && build == "" {
		build = info.Main.Version
	}
	root := switchcmd.New(name, build)
	root.Use = name + " [flags] [PROGRAM.json]"
	root.SetOut(&process.Printable{W: os.Stdout})
	root.SetErr(&process.Printable{W: os.Stderr})
	root.SilenceUsage, root.SilenceErrors = true, true
	return root
}
