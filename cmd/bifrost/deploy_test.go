package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
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

// A dry run says what is new, gone and different, key by key.
func TestDifference(t *testing.T) {
	store := api.Program{Name: "store", Args: []string{"kv", "serve"}, Nodes: 1, Services: []api.ProgramService{{Name: "Store", Stateful: true}}}
	more := store
	more.Nodes, more.Policy = 2, "recover"
	for name, tc := range map[string]struct {
		before, after []api.Program
		want          []string
	}{
		"nothing":  {[]api.Program{store}, []api.Program{store}, nil},
		"numbers":  {[]api.Program{store}, []api.Program{more}, []string{"- store.nodes: 1", "+ store.nodes: 2", `+ store.policy: "recover"`}},
		"new":      {nil, []api.Program{{Name: "a", Args: []string{"x"}, Nodes: 3}}, []string{"+ program a", `+ a.args: ["x"]`, "+ a.nodes: 3"}},
		"one gone": {[]api.Program{store, {Name: "a"}}, []api.Program{store}, []string{"- program a: give it 0 nodes to stop it"}},
	} {
		if got := difference(tc.before, tc.after); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
	app := api.App{Programs: []api.Program{store, {Name: "a", Services: []api.ProgramService{{Name: "S"}}}}}
	if got := statefulServices(&app); !slices.Equal(got, []string{"Store"}) {
		t.Errorf("services with state: %q", got)
	}
}
