package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

func newManCmd() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "man [COMMAND...]",
		Short: "Print a manual page, or write all of them",
		Long: `Print the manual page of a command, for man to show; with --dir write those of all
commands to a directory, from which man and packagers take them.`,
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
