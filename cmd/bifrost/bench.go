package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// benchProgram is what bifrost bench runs. It belongs to a module of its own, so that
// what it draws diagrams with is no dependency of Bifröst.
const benchProgram = "bifrost-bench"

func newBenchCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "bench [EXPERIMENT...] [FLAG...]",
		Short: "Measure Bifröst beside its alternatives",
		Long: `Measure Bifröst on this machine, and in the same run its alternatives: bare sockets,
Apache Thrift over TCP, gRPC, Redis. The command runs the program bifrost-bench, which
must be beside bifrost or on PATH (make build builds it). bifrost bench --help lists the
experiments and flags of that program. Needs root.`,
		Example: `  sudo bifrost bench ping-overhead --quick
  sudo bifrost bench --out /tmp/eval
  sudo bifrost bench switch --quick`,
		DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error {
			path, err := findBench()
			if err != nil {
				return err
			}
			return unix.Exec(path, append([]string{benchProgram}, args...), os.Environ())
		},
	}
}

// findBench finds the program beside this one, or on PATH.
func findBench() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	beside := filepath.Join(filepath.Dir(self), benchProgram)
	if _, err := os.Stat(beside); err == nil {
		return beside, nil
	}
	path, err := exec.LookPath(benchProgram)
	if err != nil {
		return "", errors.New(benchProgram + " is neither beside bifrost nor on PATH: in a checkout of Bifröst, make build builds it")
	}
	return path, nil
}
