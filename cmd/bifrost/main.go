// Command bifrost is the whole of Bifröst in one binary: the switch, the
// Gatekeeper, the daemons, and the tools around them.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/bifrost-rack/bifrost/gatekeeper/p4rtclient"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	root := newRoot()
	root.SetArgs(calledAs(os.Args[0], os.Args[1:]))
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
	root.SetOut(&printable{w: os.Stdout})
	root.SetErr(&printable{w: os.Stderr})
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
			newComputeCmd(), newDemoCmd(), newDevCmd(), newGatekeeperCmd(), newIngressCmd(), newMemoryCmd(), newRackCmd(), newSwitchCmd(),
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

// ballastSize is how much garbage there is at least between two collections.
const ballastSize = 32 << 20

// ballast is never touched, so it takes no memory.
var ballast []byte //nolint:unused // it is there to be there

// collectRarely makes the garbage collector of a process with a small heap run
// less often. It runs when the heap has doubled, and that of a switch or a
// Gatekeeper is a few megabytes: under load it ran hundreds of times a second, and
// took half the time of a P4Runtime Write. With what is live counted larger by
// the ballast it leaves some 32 MiB of garbage, whatever the size of the tables.
// Who sets GOGC or GOMEMLIMIT knows better.
func collectRarely() {
	if os.Getenv("GOGC") == "" && os.Getenv("GOMEMLIMIT") == "" {
		ballast = make([]byte, ballastSize)
	}
}

// processors gives Go's scheduler n processors, unless GOMAXPROCS says otherwise.
//
// One is best for a process that does one thing after the other, each on a goroutine
// of its own, as a Gatekeeper, a switch on eBPF and a memory daemon do: with more, every hand-over
// wakes a thread that looks for work and finds that it has been done. A held packet
// then takes a fifth longer, and 64 callers get a sixth less.
func processors(n int) {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(n)
	}
}
