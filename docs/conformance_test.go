package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// What CONFORMANCE.md names is there, and all tests of P4Runtime's sections are in
// it.
func TestConformance(t *testing.T) {
	doc, err := os.ReadFile("../p4switch/CONFORMANCE.md")
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]bool{}
	for _, m := range regexp.MustCompile("`([a-z0-9/]+)\\.((?:Test|Fuzz)\\w+)`").FindAllStringSubmatch(string(doc), -1) {
		named[m[2]] = true
		if !tests(t, filepath.Join("..", m[1]))[m[2]] {
			t.Errorf("%s has no %s", m[1], m[2])
		}
	}
	if len(named) < 50 {
		t.Errorf("only %d tests are named", len(named))
	}
	for _, m := range regexp.MustCompile("`(\\w+\\.stf)`").FindAllStringSubmatch(string(doc), -1) {
		if _, err := os.Stat(filepath.Join("..", "p4switch", "interp", "testdata", m[1])); err != nil {
			t.Error(err)
		}
	}
	for _, dir := range []string{"p4switch/p4rt", "p4switch/p4rt/p4info"} {
		for name := range tests(t, filepath.Join("..", dir)) {
			if strings.HasPrefix(name, "TestSection") && !named[name] {
				t.Errorf("%s.%s holds a section and is not named", dir, name)
			}
		}
	}
}

// tests are the test functions of a directory.
func tests(t *testing.T, dir string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]bool{}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`).FindAllStringSubmatch(string(b), -1) {
			out[m[1]] = true
		}
	}
	return out
}
