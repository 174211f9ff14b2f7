package docs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestGatekeeper_NamesTests: the tests that gatekeeper.md names are there.
func TestGatekeeper_NamesTests(t *testing.T) {
	text, err := os.ReadFile("gatekeeper.md")
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]bool{}
	defined := regexp.MustCompile(`(?m)^func ((?:Test|Benchmark)\w+)\(`)
	err = filepath.WalkDir("..", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		b, err := os.ReadFile(path)
		for _, m := range defined.FindAllSubmatch(b, -1) {
			there[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile(`\b(?:Test|Benchmark)[A-Z]\w+`).FindAllString(string(text), -1)
	for _, name := range names {
		if !there[name] {
			t.Errorf("there is no %s", name)
		}
	}
	if len(names) < 40 {
		t.Errorf("%d tests are named", len(names))
	}
}
