package main

import (
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is stamped by the Makefile (-ldflags -X main.version=…); go install
// leaves it empty and the module's own version counts.
var version string

// build is what a binary is made of.
type build struct {
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"` // unless built from a module that was downloaded
	Time     string `json:"time,omitempty"`   // of the commit
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func newVersionCmd() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Long: `Print the version: that of the release or commit which this is built from, with the
Go toolchain and the platform. --json adds the commit and its time.`,
		Example: "  bifrost version\n  bifrost version --json | jq -r .commit",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			info, _ := debug.ReadBuildInfo()
			return buildOf(version, info).print(cmd.OutOrStdout(), asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// versionString tells which build this is: the stamp, or what the toolchain knows.
func versionString() string {
	info, _ := debug.ReadBuildInfo()
	return buildOf(version, info).Version
}

// buildOf puts together the stamp, if any, and what the toolchain knows, if
// anything.
func buildOf(stamp string, info *debug.BuildInfo) build {
	b := build{Version: stamp, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if info != nil {
		if b.Version == "" {
			b.Version = info.Main.Version
		}
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				b.Commit = s.Value
			case "vcs.time":
				b.Time = s.Value
			case "vcs.modified":
				b.Modified = s.Value == "true"
			}
		}
	}
	if b.Version == "" {
		b.Version = "(unknown)"
	}
	return b
}

func (b build) print(w io.Writer, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(w).Encode(b)
	}
	_, err := fmt.Fprintf(w, "bifrost %s %s %s\n", b.Version, b.Go, b.Platform)
	return err
}
