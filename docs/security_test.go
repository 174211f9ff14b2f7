package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	testName = regexp.MustCompile(`Test\w+`)
	// partName is a part of a test: a theorem or a script.
	partName = regexp.MustCompile(`\b[a-z0-9]+[_-][a-z0-9_-]+\b`)
)

// TestSecurity checks that each row of the tables of refusals and of holes names tests, that
// these exist in the packages that it names, and so do the parts of them that it names.
func TestSecurity(t *testing.T) {
	page, err := os.ReadFile("security.md")
	if err != nil {
		t.Fatal(err)
	}
	table, rows, checked := false, 0, 0
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) < 4 {
			table = false
			continue
		}
		last := strings.TrimSpace(cells[len(cells)-2])
		if !table || strings.HasPrefix(last, "---") {
			table = table || last == "tests"
			continue
		}
		rows++
		if !testName.MatchString(last) {
			t.Errorf("no test in the row |%s|%s|", cells[1], cells[2])
		}
		for group := range strings.SplitSeq(last, ";") {
			if group = strings.TrimSpace(group); strings.HasPrefix(group, "by hand:") {
				continue
			}
			pkg, names, found := strings.Cut(strings.TrimPrefix(group, "`"), "`: ")
			if !found {
				t.Errorf("%q names no package", group)
				continue
			}
			dir := filepath.Join("..", pkg)
			for _, name := range testName.FindAllString(names, -1) {
				checked++
				if !contains(t, dir, "*_test.go", "\nfunc "+name+"(t ") {
					t.Errorf("there is no %s in %s", name, pkg)
				}
			}
			for _, part := range partName.FindAllString(names, -1) {
				checked++
				scripts, err := filepath.Glob(filepath.Join(dir, "testdata", "*", part+"*"))
				if err != nil {
					t.Fatal(err)
				}
				if more, err := filepath.Glob(filepath.Join(dir, "testdata", part+"*")); err != nil || len(scripts)+len(more) == 0 && !contains(t, dir, "*.py", "def "+part) {
					t.Errorf("there is no %s in %s, %v", part, pkg, err)
				}
			}
		}
	}
	if rows < 27 || checked < 60 {
		t.Errorf("only %d rows with %d tests: has the form of the tables changed?", rows, checked)
	}
}

// contains reports whether one of a directory's files of a pattern has a text.
func contains(t *testing.T, dir, pattern, text string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(b), text) {
			return true
		}
	}
	return false
}
