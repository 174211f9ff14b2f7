// Package script runs data-driven tests: text files with commands and the output that
// these must print. There are two forms. In one, Run's, blocks of commands stand above
// their output, and a block ends with an empty line:
//
//	# A comment.
//	command with arguments
//	another command
//	----
//	what both print
//
// In the other one, RunInline's, the output of each command is indented below it:
//
//	# A comment.
//	command with arguments
//	  what it prints
//	another command
//	  what that prints
//
// `go test -update` rewrites the output, to be reviewed as a diff. Only tests import this
// package.
package script

import (
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the expected output of the scripts")

// Command executes one line of a script, split into words, and prints what it
// leads to. An error is for a line that makes no sense.
type Command func(out io.Writer, words []string) error

// Run runs every file that the pattern matches as a subtest of its own, each
// with a Command that begins anew. Output stands below blocks of commands.
func Run(t *testing.T, pattern string, begin func() Command) {
	t.Helper()
	run(t, pattern, begin, blocks)
}

// RunInline is Run for files in which output is indented below each command.
func RunInline(t *testing.T, pattern string, begin func() Command) {
	t.Helper()
	run(t, pattern, begin, inline)
}

// run runs files, of which execute returns each with the output that its commands print now.
func run(t *testing.T, pattern string, begin func() Command, execute func(text string, command Command) (string, error)) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts match %s: %v", pattern, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), filepath.Ext(file)), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got, err := execute(string(text), begin())
			if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			switch {
			case got == string(text):
			case *update:
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			default:
				t.Errorf("%s: the output differs (-update rewrites it):\n%s", file, firstDifference(string(text), got))
			}
		})
	}
}

// blocks executes a script in which output stands below blocks of commands.
func blocks(text string, command Command) (string, error) {
	var out, printed strings.Builder
	commands, output := false, false
	for k, line := range strings.Split(strings.TrimRight(text, "\n")+"\n", "\n") {
		switch {
		case line == "":
			if commands {
				fmt.Fprintf(&out, "----\n%s", printed.String())
			}
			out.WriteByte('\n')
			printed.Reset()
			commands, output = false, false
		case line == "----":
			output = true
		case output:
		case strings.HasPrefix(line, "#"):
			out.WriteString(line + "\n")
		default:
			commands = true
			out.WriteString(line + "\n")
			if err := command(&printed, strings.Fields(line)); err != nil {
				return "", fmt.Errorf("line %d, %q: %w", k+1, line, err)
			}
		}
	}
	return strings.TrimRight(out.String(), "\n") + "\n", nil
}

// indent marks a line of output below its command.
const indent = "  "

// inline executes a script in which output is indented below each command.
func inline(text string, command Command) (string, error) {
	var out, printed strings.Builder
	k := 0
	for line := range strings.Lines(text) {
		k++
		if strings.HasPrefix(line, indent) {
			continue // old output
		}
		out.WriteString(line)
		words := strings.Fields(line)
		if len(words) == 0 || words[0] == "#" {
			continue
		}
		printed.Reset()
		if err := command(&printed, words); err != nil {
			return "", fmt.Errorf("line %d, %q: %w", k, strings.TrimSpace(line), err)
		}
		for l := range strings.Lines(printed.String()) {
			out.WriteString(indent + l)
		}
	}
	return out.String(), nil
}

// firstDifference shows where two texts part.
func firstDifference(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for k := range g {
		if k >= len(w) || w[k] != g[k] {
			rest := min(len(w), k+8)
			return fmt.Sprintf("line %d\nwant: %s\ngot:  %s", k+1,
				strings.Join(w[min(k, rest):rest], "\n      "), strings.Join(g[k:min(len(g), k+8)], "\n      "))
		}
	}
	return fmt.Sprintf("line %d and on are missing", len(g))
}
