// Command bifrost-bench measures Bifröst beside what one would use instead. It is what
// bifrost bench runs, and stands beside bifrost; the two are of one build.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"
)

// version is stamped by the Makefile (-ldflags -X main.version=…).
var version = "(unknown)"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := newRoot().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bifrost:", err)
		os.Exit(1)
	}
}

func newRoot() *cobra.Command {
	var o benchOptions
	cmd := &cobra.Command{
		Use:         "bifrost-bench [EXPERIMENT...]",
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "bifrost bench"},
		Short:       "Measure, with peers in the same run",
		Long: `Measure Bifröst on this machine beside what one would use instead: bare sockets,
Apache Thrift over TCP, gRPC, Redis. Without arguments all experiments run, on a
rack of network namespaces that is made for the run and removed afterwards:

` + experimentList() + `

What is compared is measured in turns, in the same run and on CPUs of its own:
numbers of one machine say little about another, ratios a bit more. Needs root.`,
		Example: `  sudo bifrost bench ping-overhead --quick
  sudo bifrost bench --out /tmp/eval
  sudo bifrost bench switch --quick`,
		Args:          cobra.ArbitraryArgs,
		RunE:          o.run,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	o.register(cmd)
	cmd.AddCommand(newSwitchCmd(), newFairnessCmd(), newFloodCmd(), newAgentCmd())
	cmd.CompletionOptions.DisableDefaultCmd = true
	return cmd
}

// bifrost is the path of the bifrost binary that racks are made with: the one beside
// this program, or else the one on PATH.
func bifrost() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find the bifrost binary: %w", err)
	}
	beside := filepath.Join(filepath.Dir(self), "bifrost")
	if _, err := os.Stat(beside); err == nil {
		return beside, nil
	}
	path, err := exec.LookPath("bifrost")
	if err != nil {
		return "", errors.New("bifrost is neither beside bifrost-bench nor on PATH: make build builds both")
	}
	return filepath.Abs(path)
}
