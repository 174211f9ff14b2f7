package main

import (
	"fmt"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is stamped by the Makefile (-ldflags -X main.version=…); go install
// leaves it empty and the module's own version counts.
var version string

func newVersionCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "bifrost", versionString())
			return err
		},
	}
}

// versionString tells which build this is: the stamp, or what the toolchain knows.
func versionString() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "(unknown)"
	}
	return info.Main.Version
}
