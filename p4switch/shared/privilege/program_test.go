package privilege

import (
	"os"
	"path/filepath"
	"testing"
)

// recorder is a test that notes how it ended.
type recorder struct {
	testing.TB
	how string
}

func (r *recorder) Helper()               {}
func (r *recorder) Skipf(string, ...any)  { r.how = "skipped" }
func (r *recorder) Fatalf(string, ...any) { r.how = "failed"; panic(r) }

// TestProgram: a program that is missing fails a test where setup has found it, and only there.
func TestProgram(t *testing.T) {
	checkout := t.TempDir()
	for _, dir := range []string{"out", "a/b", "bin"} {
		must(t, os.MkdirAll(filepath.Join(checkout, dir), 0o700))
	}
	must(t, os.WriteFile(filepath.Join(checkout, "go.work"), nil, 0o600))
	must(t, os.WriteFile(filepath.Join(checkout, "bin", "curl"), nil, 0o700)) //nolint:gosec // a program
	t.Chdir(filepath.Join(checkout, "a/b"))
	ask := func(name string) (path, how string) {
		r := &recorder{TB: t, how: "goes on"}
		defer func() {
			if p := recover(); p != nil && p != r {
				panic(p)
			}
			how = r.how
		}()
		return Program(r, name), ""
	}
	t.Setenv("PATH", filepath.Join(checkout, "bin"))
	if path, how := ask("curl"); filepath.Base(path) != "curl" || how != "goes on" {
		t.Errorf("a test of a program that is there %s, with %q", how, path)
	}
	if _, how := ask("node"); how != "skipped" {
		t.Errorf("without setup, a test %s", how)
	}
	must(t, os.WriteFile(filepath.Join(checkout, "out", "setup"), nil, 0o600))
	if _, how := ask("node"); how != "failed" {
		t.Errorf("after setup, a test %s", how)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
