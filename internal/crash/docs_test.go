package crash

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestDocs checks that the tests which docs/exactly-once.md names exist, in the
// packages that it names.
func TestDocs(t *testing.T) {
	const root = "../.."
	page, err := os.ReadFile(filepath.Join(root, "docs/exactly-once.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows, checked := 0, 0
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 || !strings.Contains(cells[3], "Test") {
			continue
		}
		rows++
		for group := range strings.SplitSeq(cells[3], ";") {
			pkg, names, found := strings.Cut(strings.TrimSpace(group), "`: ")
			if pkg = strings.TrimPrefix(pkg, "`"); !found {
				pkg, names = "internal/crash", group
			}
			for _, name := range regexp.MustCompile(`Test\w+`).FindAllString(names, -1) {
				checked++
				if !declares(t, filepath.Join(root, pkg), name) {
					t.Errorf("there is no %s in %s", name, pkg)
				}
			}
		}
	}
	if rows < 20 || checked < 60 {
		t.Errorf("only %d rows with %d tests: has the table's form changed?", rows, checked)
	}
}

// declares reports whether a package's tests have a function.
func declares(t *testing.T, dir, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(b), "\nfunc "+name+"(") {
			return true
		}
	}
	return false
}
