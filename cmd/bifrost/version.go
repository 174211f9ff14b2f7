package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
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
		Long: `Print the release or commit that this program was built from, the Go toolchain, and the
platform. --json adds the commit and its time.`,
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

func newManCmd() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "man [COMMAND...]",
		Short: "Print a manual page, or write all of them",
		Long: `Print the manual page of a command, for man to show. With --dir, write the pages of all
commands to a directory, for man or for packages.`,
		Example: `  bifrost man rack up | man -l -
  sudo bifrost man --dir /usr/local/share/man/man1 && man bifrost-rack-up`,
		Args: func(_ *cobra.Command, args []string) error {
			if dir != "" && len(args) > 0 {
				return errors.New("--dir writes the pages of all commands: leave the command out")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if dir != "" {
				return writeManPages(cmd.OutOrStdout(), cmd.Root(), dir)
			}
			about, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return fmt.Errorf("there is no command %q: bifrost --help lists them", strings.Join(args, " "))
			}
			return writeManPage(cmd.OutOrStdout(), about)
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "write the pages of all commands to this `DIRECTORY`")
	return cmd
}

// writeManPages writes the page of a command and of those below it, and says which.
func writeManPages(w io.Writer, cmd *cobra.Command, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	path := filepath.Join(dir, manName(cmd)+".1")
	var page bytes.Buffer
	if err := writeManPage(&page, cmd); err != nil {
		return err
	}
	if err := os.WriteFile(path, page.Bytes(), 0o644); err != nil {
		return err
	}
	fmt.Fprintln(w, path)
	for _, sub := range cmd.Commands() {
		if !sub.IsAvailableCommand() {
			continue
		}
		if err := writeManPages(w, sub, dir); err != nil {
			return err
		}
	}
	return nil
}

// writeManPage writes the page of one command. Its date is that of the build's commit, so
// that packagers can repeat a build; without one it is today.
func writeManPage(w io.Writer, cmd *cobra.Command) error {
	info, _ := debug.ReadBuildInfo()
	b := buildOf(version, info)
	header := &doc.GenManHeader{Section: "1", Source: "bifrost " + b.Version, Manual: "Bifröst"}
	if commit, err := time.Parse(time.RFC3339, b.Time); err == nil {
		header.Date = &commit
	}
	cmd.DisableAutoGenTag = true
	return doc.GenMan(cmd, header, w)
}

// manName is how man knows a command.
func manName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }
