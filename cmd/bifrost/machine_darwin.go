package main

import (
	"errors"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TIOCGETA)
	return err == nil
}

// A blade's daemon, and a rack of namespaces, need Linux.

var errNotLinux = errors.New("blades of a rack run Linux, and this is macOS: bifrost dev runs a whole rack in one process here")

func onLinux(use, short string) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short + " (on Linux)", DisableFlagParsing: true,
		RunE: func(*cobra.Command, []string) error { return errNotLinux },
	}
}

func newComputeDaemonCmd() *cobra.Command {
	return onLinux("compute", "Run the daemon of a compute blade")
}

func newMemoryCmd() *cobra.Command { return onLinux("memory", "Run the daemon of a memory blade") }

func newRackCmd() *cobra.Command {
	return onLinux("rack", "Run a rack of network namespaces on this machine")
}

// racksHere are the racks of namespaces that are up on this machine.
func racksHere() ([]string, error) { return nil, nil }

// adminOf is the address of the admin API of a rack of namespaces on this machine.
func adminOf(string) (string, error) { return "", errNotLinux }

func listRackBlades(*cobra.Command) ([]cobra.Completion, error) { return nil, nil }
