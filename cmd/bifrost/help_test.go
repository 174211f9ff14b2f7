package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// each calls f for every command that the help shows.
func each(cmd *cobra.Command, f func(*cobra.Command)) {
	f(cmd)
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			each(sub, f)
		}
	}
}

// Every command says what it is for, and shows it.
func TestHelp_Complete(t *testing.T) {
	root := newRoot()
	each(root, func(cmd *cobra.Command) {
		if cmd.Short == "" || cmd.Long == "" || cmd.Example == "" {
			t.Errorf("%s: short %q, %d bytes of long help, %d of examples", cmd.CommandPath(), cmd.Short, len(cmd.Long), len(cmd.Example))
		}
		if cmd.Parent() == root && cmd.GroupID == "" {
			t.Errorf("%s is in no group", cmd.CommandPath())
		}
		for _, line := range strings.Split(cmd.Long+"\n"+cmd.Example, "\n") {
			if len([]rune(line)) > 120 {
				t.Errorf("%s: wider than a terminal: %s", cmd.CommandPath(), line)
			}
		}
	})
}

// commandLine finds what would run bifrost in an example's line.
var commandLine = regexp.MustCompile(`(?:^|sudo |&& |-- |\()bifrost( [^#|&>;)]*)?`)

// quoted is an argument in quotes.
var quoted = regexp.MustCompile(`'[^']*'`)

// The commands and flags that examples show exist.
func TestHelp_Examples(t *testing.T) {
	seen := 0
	each(newRoot(), func(cmd *cobra.Command) {
		for _, line := range strings.Split(strings.ReplaceAll(cmd.Example, "\\\n", ""), "\n") {
			for _, m := range commandLine.FindAllStringSubmatch(strings.TrimSpace(line), -1) {
				seen++
				if err := parses(strings.Fields(quoted.ReplaceAllString(m[1], "quoted"))); err != nil {
					t.Errorf("%s: example %q: %v", cmd.CommandPath(), line, err)
				}
			}
		}
	})
	if seen < 80 {
		t.Errorf("%d examples found: is something not recognised?", seen)
	}
}

// parses checks a command line without running it.
func parses(args []string) error {
	cmd, rest, err := newRoot().Find(args)
	if err != nil {
		return err
	}
	if err := cmd.ParseFlags(rest); err != nil {
		return err
	}
	return cmd.ValidateArgs(cmd.Flags().Args())
}

// The manual pages are there for all commands, and groff has nothing to say.
func TestMan(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "man1")
	out, err := bifrost(t, "man", "--dir", dir)
	must(t, err)
	each(newRoot(), func(cmd *cobra.Command) {
		path := filepath.Join(dir, manName(cmd)+".1")
		page, err := os.ReadFile(path)
		must(t, err)
		if !strings.Contains(out, path+"\n") {
			t.Errorf("%s was written without a word", path)
		}
		if one, err := bifrost(t, append([]string{"man"}, strings.Fields(cmd.CommandPath())[1:]...)...); err != nil || one != string(page) {
			t.Errorf("bifrost man of %s is not the page that --dir writes (%v)", cmd.CommandPath(), err)
		}
		if groff, err := exec.LookPath("groff"); err == nil {
			if said, err := exec.Command(groff, "-man", "-Kutf8", "-Tutf8", "-ww", "-z", path).CombinedOutput(); err != nil || len(said) > 0 {
				t.Errorf("groff %s: %v\n%s", path, err, said)
			}
		}
	})
	for _, args := range [][]string{{"man", "nothing"}, {"man", "--dir", dir, "rack"}, {"man", "rack", "nothing"}} {
		if _, err := bifrost(t, args...); err == nil {
			t.Errorf("bifrost %s went well", strings.Join(args, " "))
		}
	}
}

// What the toolchain knows is told; a stamp goes before.
func TestVersion(t *testing.T) {
	info := &debug.BuildInfo{Main: debug.Module{Version: "v0.3.0"}, Settings: []debug.BuildSetting{
		{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.time", Value: "2026-11-21T00:00:00Z"}, {Key: "vcs.modified", Value: "true"},
	}}
	if b := buildOf("", info); b.Version != "v0.3.0" || b.Commit != "abc" || b.Time != "2026-11-21T00:00:00Z" || !b.Modified {
		t.Errorf("installed: %+v", b)
	}
	if b := buildOf("v1", info); b.Version != "v1" || b.Commit != "abc" {
		t.Errorf("stamped: %+v", b)
	}
	if b := buildOf("", nil); b.Version != "(unknown)" || b.Commit != "" {
		t.Errorf("nothing known: %+v", b)
	}
	if out, err := bifrost(t, "version"); err != nil || !regexp.MustCompile(`^bifrost \S+ go1\.\S+ linux/\S+\n$`).MatchString(out) {
		t.Errorf("%q, %v", out, err)
	}
}
