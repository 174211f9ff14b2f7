package docs_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
)

// block is a fenced block of a page: a file to write, or commands to run.
type block struct {
	line    int
	file    string // "" for commands
	content string
}

// step is a command and what it prints.
type step struct {
	line    int
	command string
	want    []string
}

// blocks reads the blocks of a page that are files (```LANGUAGE title=FILE) or commands
// (```console).
func blocks(t *testing.T, page string) (all []block) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	fence := regexp.MustCompile("^```([a-z]*)(?: title=(\\S+))?$")
	var in *block
	for i, line := range strings.Split(string(text), "\n") {
		m := fence.FindStringSubmatch(line)
		switch {
		case in == nil && m != nil:
			in = &block{line: i + 1, file: m[2]}
			if m[1] != "console" && in.file == "" {
				in.line = 0 // only to be read
			}
		case in != nil && line == "```":
			if in.line > 0 {
				all = append(all, *in)
			}
			in = nil
		case in != nil:
			in.content += line + "\n"
		}
	}
	return all
}

// steps takes commands and their output apart.
func (b *block) steps() (all []step) {
	for i, line := range strings.Split(strings.TrimSuffix(b.content, "\n"), "\n") {
		if command, ok := strings.CutPrefix(line, "$ "); ok {
			all = append(all, step{line: b.line + 1 + i, command: command})
		} else if len(all) > 0 {
			all[len(all)-1].want = append(all[len(all)-1].want, line)
		}
	}
	return all
}

// check compares what a command has printed with the page: … stands for any text in a
// line, and on a line of its own for any lines; spaces in a row count as one.
func (s *step) check(got string) error {
	pattern := "^"
	for _, line := range s.want {
		if line == "…" {
			pattern += `(?:.*\n)*?`
			continue
		}
		parts := strings.Split(squeeze(line), "…")
		for i := range parts {
			parts[i] = regexp.QuoteMeta(parts[i])
		}
		pattern += strings.Join(parts, ".*") + "\n"
	}
	var lines strings.Builder
	for line := range strings.Lines(got) {
		lines.WriteString(squeeze(line) + "\n")
	}
	if !regexp.MustCompile(pattern + "$").MatchString(lines.String()) {
		return fmt.Errorf("line %d: $ %s\nprints:\n%sthe page says:\n%s", s.line, s.command, got, strings.Join(s.want, "\n"))
	}
	return nil
}

func squeeze(line string) string { return strings.Join(strings.Fields(line), " ") }

func TestCheck(t *testing.T) {
	for _, tc := range []struct {
		want, got string
		ok        bool
	}{
		{"", "", true}, {"", "x\n", false}, {"a  b", "a b\n", true}, {"a", "a\nb\n", false}, {"a\n…", "a\nb\nc\n", true}, {"a\n…", "a\n", true},
		{"…\nc", "a\nb\nc\n", true}, {"…\nc", "a\nb\n", false}, {"a … c", "a b b c\n", true}, {"a … c", "a b b d\n", false}, {"…", "", true},
	} {
		s := step{}
		if tc.want != "" {
			s.want = strings.Split(tc.want, "\n")
		}
		if err := s.check(tc.got); (err == nil) != tc.ok {
			t.Errorf("%q for %q: %v", tc.got, tc.want, err)
		}
	}
}
