package main

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestHelp: every command says what it is for, and the examples' commands and flags exist.
func TestHelp(t *testing.T) {
	root := newRoot()
	for _, cmd := range append([]*cobra.Command{root}, root.Commands()...) {
		if cmd.Short == "" || cmd.Long == "" || cmd.Example == "" {
			t.Errorf("%s: short %q, %d bytes of long help, %d of examples", cmd.CommandPath(), cmd.Short, len(cmd.Long), len(cmd.Example))
		}
		for line := range strings.Lines(cmd.Example) {
			line, _, _ = strings.Cut(line, " | ")
			args, ok := strings.CutPrefix(strings.TrimPrefix(strings.TrimSpace(line), "sudo "), "bifrost bench ")
			if !ok {
				t.Errorf("%s: example %q is of something else", cmd.CommandPath(), line)
				continue
			}
			found, rest, err := newRoot().Find(strings.Fields(args))
			if err == nil {
				err = found.ParseFlags(rest)
			}
			if err == nil {
				err = found.ValidateArgs(found.Flags().Args())
			}
			if err != nil {
				t.Errorf("%s: example %q is for %s: %v", cmd.CommandPath(), line, found.CommandPath(), err)
			}
		}
	}
}
