package docs_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestWalk: the files of a call that ARCHITECTURE.md names are there, and they are few.
func TestWalk(t *testing.T) {
	b, err := os.ReadFile("../ARCHITECTURE.md")
	must(t, err)
	_, section, ok := strings.Cut(string(b), "\n### The files of a call\n")
	section, _, _ = strings.Cut(section, "\n## ")
	byValue, byReference, both := strings.Cut(section, "With a reference there come")
	if !ok || !both {
		t.Fatal("ARCHITECTURE.md does not name the files of a call")
	}
	file := regexp.MustCompile("`([\\w/]+\\.(?:go|p4))`")
	seen := map[string]bool{}
	for _, part := range []struct {
		text string
		most int
	}{{byValue, 40}, {byReference, 70}} {
		for _, m := range file.FindAllStringSubmatch(part.text, -1) {
			if _, err := os.Stat("../" + m[1]); err != nil || seen[m[1]] {
				t.Errorf("%s is missing, or named twice: %v", m[1], err)
			}
			seen[m[1]] = true
		}
		if len(seen) > part.most || len(seen) < part.most/2 {
			t.Errorf("%d files, at most %d", len(seen), part.most)
		}
	}
}
