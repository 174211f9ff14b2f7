package devrack

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
)

func TestDirectory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	d, err := openDirectory(path)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := openDirectory(path); err == nil || !strings.Contains(err.Error(), "another bifrost dev") || !strings.Contains(err.Error(), "name another") {
		t.Error(again, err)
	}
	if err := os.WriteFile(d.file("c1.sock"), nil, 0o600); err != nil { // as of a rack that was killed
		t.Fatal(err)
	}
	if err := d.close(); err != nil {
		t.Fatal(err)
	}
	if d, err = openDirectory(path); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(d.file("c1.sock")); !os.IsNotExist(err) {
		t.Error("a socket is left", err)
	}
	if err := d.close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
}

func TestDirectory_Foreign(t *testing.T) {
	path := t.TempDir()
	if err := os.WriteFile(filepath.Join(path, "thesis.tex"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if d, err := openDirectory(path); err == nil || !strings.Contains(err.Error(), "thesis.tex") || !strings.Contains(err.Error(), "name a new directory") {
		t.Error(d, err)
	}
	if there, _ := os.ReadDir(path); len(there) != 1 {
		t.Error("there are files of ours in it", there)
	}
}

func TestDirectory_Temporary(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	d, err := openDirectory("")
	if err != nil {
		t.Fatal(err)
	}
	if err := d.close(); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(os.TempDir()); len(left) > 0 {
		t.Error(left)
	}
}

func TestDirectory_LongPath(t *testing.T) {
	d, err := openDirectory(filepath.Join(t.TempDir(), strings.Repeat("long/", 20)))
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	if path, err := d.socket("c1"); err == nil || !strings.Contains(err.Error(), "shorter path") {
		t.Error(path, err)
	}
}

// A change counts when the files are whole: all there, and as they were at the last look.
func TestLook(t *testing.T) {
	dir := t.TempDir()
	app, program := filepath.Join(dir, "app.yaml"), filepath.Join(dir, "program")
	at := time.Unix(1000, 0)
	write := func(name, text string) {
		t.Helper()
		at = at.Add(time.Second)
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(name, at, at); err != nil {
			t.Fatal(err)
		}
	}
	write(app, "a")
	write(program, "p")
	w := &watched{App: App{File: app}}
	w.took(&resources.Spec{Programs: []resources.Program{{Args: []string{program}}}}, nil)
	looks := func(want ...bool) {
		t.Helper()
		for i := range want {
			if got := w.look(); got != want[i] {
				t.Errorf("look %d says %v", i, got)
			}
		}
	}
	looks(false, false)
	write(program, "half")
	looks(false)
	write(program, "whole")
	looks(false, true)
	w.took(&resources.Spec{Programs: []resources.Program{{Args: []string{program}}}}, w.seen)
	looks(false, false)
	write(app, "b")
	if err := os.Remove(program); err != nil {
		t.Fatal(err)
	}
	looks(false, false, false)
	write(program, "new")
	looks(false, true)
}

func TestBladesFor(t *testing.T) {
	spec := func(nodes, spares int, blades ...string) resources.Spec {
		return resources.Spec{Programs: []resources.Program{{Nodes: nodes, Spares: spares, Blades: blades}}}
	}
	for _, c := range []struct {
		specs []resources.Spec
		want  string
	}{
		{nil, "c1 s1 s2"},
		{[]resources.Spec{spec(1, 1)}, "c1 s1 s2"},
		{[]resources.Spec{spec(1, 0, "s2", "b7"), spec(1, 0, "a", "b7")}, "c1 s1 s2 a b7"},
		{[]resources.Spec{spec(4, 1)}, "c1 s1 s2 s3 s4"},
		{[]resources.Spec{spec(5, 0), spec(1, 0, "s3")}, "c1 s1 s2 s3 s4"},
		{[]resources.Spec{spec(1, 0, "m1")}, "c1 s1 s2"}, // a memory blade: the rack says that there is no such compute blade
	} {
		if got := bladesFor(c.specs); !slices.Equal(got, strings.Fields(c.want)) {
			t.Errorf("%v: %v, want %s", c.specs, got, c.want)
		}
	}
}

// The package is the rack of ordinary users: it needs nothing that has a privilege, or Linux.
func TestDependencies(t *testing.T) {
	cmd := exec.Command("go", "list", "-deps", ".")
	cmd.Env = append(os.Environ(), "GOOS=darwin", "GOARCH=arm64", "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, name := range strings.Fields(string(out)) {
		if strings.HasPrefix(name, "github.com/vishvananda") || strings.HasSuffix(name, "netio/linux") {
			t.Errorf("on macOS it imports %s", name)
		}
	}
}
