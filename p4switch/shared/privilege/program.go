package privilege

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Program returns the path of a program that a test runs and that scripts/setup.sh installs. Where the program is missing, the test is
// skipped; but it fails if setup has found everything, as in CI, since then nothing is to be skipped.
func Program(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err == nil {
		return path
	}
	mark, found := setUp()
	if found {
		t.Fatalf("%v, but make setup has found it, says %s", err, mark)
	}
	t.Skipf("NOT CHECKED: %v: make setup installs it", err)
	return ""
}

// setUp returns the file that scripts/setup.sh leaves in the checkout when nothing is missing, and whether it is there.
func setUp() (mark string, found bool) {
	dir, err := os.Getwd()
	for ; err == nil; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.work")); err == nil {
			mark = filepath.Join(dir, "out", "setup")
			_, err = os.Stat(mark)
			return mark, err == nil
		}
		if dir == filepath.Dir(dir) {
			break
		}
	}
	return "", false
}
