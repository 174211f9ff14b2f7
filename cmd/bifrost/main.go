// Command bifrost is the whole of Bifröst in one binary: the switch, the
// Gatekeeper, the daemons, and the tools around them.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/bifrost-rack/bifrost/gatekeeper/p4rtclient"
	"github.com/bifrost-rack/bifrost/p4switch/shared/process"
	"github.com/bifrost-rack/bifrost/p4switch/switchcmd"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	root := newRoot()
	root.SetArgs(switchcmd.CalledAs(os.Args[0], os.Args[1:]))
	err := root.ExecuteContext(ctx)
	stop()
	if err = withRemedy(err); err != nil {
		fmt.Fprintln(root.ErrOrStderr(), "bifrost:", err)
		os.Exit(exitCode(err))
	}
}

// exitNotPrimary is the exit code of a Gatekeeper that another one has taken over
// from, for service managers not to start it again.
const exitNotPrimary = 3

func exitCode(err error) int {
	if errors.Is(err, p4rtclient.ErrNotPrimary) {
		return exitNotPrimary
	}
	return 1
}

// newRoot builds the command tree; each subcommand lives in the file of its name.
func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "bifrost",
		Short: "Program a disaggregated rack as one machine",
		Long: `Bifröst makes a disaggregated rack, with processors on compute blades and memory on
memory blades, programmable as one machine. Procedure calls pass arguments by global
pointer. A P4 switch drops every memory access that nobody has granted.

Start with:  bifrost new myapp, bifrost dev`,
		Example: `  bifrost new myapp                    # write a first service
  bifrost dev app.yaml                 # a whole rack in one process, and programs of your own
  bifrost demo                         # watch what such a rack does
  sudo bifrost rack up                 # a rack of processes, in network namespaces
  sudo bifrost deploy app.yaml         # run programs on the rack
  sudo bifrost status                  # show the rack at a glance
  sudo bifrost rack down`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetOut(&process.Printable{W: os.Stdout})
	root.SetErr(&process.Printable{W: os.Stderr})
	for _, g := range groups() {
		root.AddGroup(&cobra.Group{ID: g.id, Title: g.title})
		for _, cmd := range g.commands {
			cmd.GroupID = g.id
			root.AddCommand(cmd)
		}
	}
	root.SetHelpCommandGroupID(groupAbout)
	root.CompletionOptions.DisableDefaultCmd = true // newCompletionCmd has examples
	complete(root)
	strict(root)
	return root
}

// group is some subcommands that the help shows together.
type group struct {
	id, title string
	commands  []*cobra.Command
}

func groups() []group {
	return []group{
		{groupRun, "Run a rack:", []*cobra.Command{
			newComputeCmd(), newDemoCmd(), newDevCmd(), newGatekeeperCmd(), newHostCmd(), newIngressCmd(), newMemoryCmd(), newRackCmd(), switchcmd.New("bifrost switch", versionString()),
		}},
		{groupWatch, "Watch a rack:", append(newShowCmds(), newStatusCmd(), newPageCmd())},
		{groupOperate, "Operate a rack:", newOperateCmds()},
		{groupBuild, "Build applications, and measure:", []*cobra.Command{newBenchCmd(), newGenCmd(), newNewCmd()}},
		{groupAbout, "About bifrost:", []*cobra.Command{newCompletionCmd(), newManCmd(), newVersionCmd()}},
	}
}

// The groups of subcommands in the help.
const (
	groupRun     = "run"
	groupWatch   = "watch"
	groupOperate = "operate"
	groupBuild   = "build"
	groupAbout   = "about"
)

// oneLine is a text with its newlines as escapes: what is to be one line is one line.
func oneLine(text string) string { return strings.ReplaceAll(text, "\n", `\n`) }
