package endpoint

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the expectations of testdata's scripts")

// A script is a text file: lines of commands, a line of dashes, and what they
// print, block after block with an empty line between. Lines that begin with #
// are comments. `go test -rewrite` writes what is printed now; review the diff.
type block struct {
	comments, commands []string
	want               string
}

// runScripts runs every script that the pattern finds, each on a machine of its
// own.
func runScripts(t *testing.T, pattern string, machine func() func(args []string) string) {
	files, err := filepath.Glob(filepath.Join("testdata", pattern))
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts %s: %v", pattern, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			runScript(t, file, machine())
		})
	}
}

func runScript(t *testing.T, file string, step func([]string) string) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	for i, b := range parseScript(string(text)) {
		var got strings.Builder
		for _, c := range b.commands {
			got.WriteString(step(strings.Fields(c)))
		}
		if !*rewrite && got.String() != b.want {
			t.Errorf("%s, block %d:\n%s\ngot:\n%swant:\n%s", file, i+1, strings.Join(b.commands, "\n"), got.String(), b.want)
		}
		if i > 0 {
			out.WriteByte('\n')
		}
		for _, line := range append(b.comments, b.commands...) {
			fmt.Fprintln(&out, line)
		}
		fmt.Fprintf(&out, "----\n%s", got.String())
	}
	if *rewrite {
		if err := os.WriteFile(file, out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func parseScript(text string) (blocks []block) {
	for part := range strings.SplitSeq(strings.TrimRight(text, "\n")+"\n", "\n\n") {
		input, want, _ := strings.Cut(strings.TrimRight(part, "\n")+"\n", "----\n")
		b := block{want: want}
		for line := range strings.Lines(input) {
			line = strings.TrimRight(line, "\n")
			if strings.HasPrefix(line, "#") {
				b.comments = append(b.comments, line)
			} else {
				b.commands = append(b.commands, line)
			}
		}
		blocks = append(blocks, b)
	}
	return blocks
}
