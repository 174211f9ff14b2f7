package main

import (
	"os"
	"path/filepath"
	"testing"
)

// A program's path is relative to the file of the deployment, wherever bifrost and the
// blades' daemons run.
func TestReadApp(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	must(t, os.Mkdir("sub", 0o700))
	for path, want := range map[string]string{
		"app.yaml": filepath.Join(dir, "server"), "sub/app.yaml": filepath.Join(dir, "sub", "server"), dir + "/app.yaml": filepath.Join(dir, "server"),
	} {
		must(t, os.WriteFile(path, []byte("name: a\nprograms:\n  - name: p\n    command: [./server, x]\n"), 0o600))
		if name, spec, err := readApp(path, false); err != nil || name != "a" || spec.Programs[0].Args[0] != want {
			t.Errorf("%s: %s, %+v, %v; want %s", path, name, spec, err, want)
		}
	}
}
