package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/examples/arrays/service"
	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/rpc"
)

// A program's path is relative to the file of the deployment, wherever bifrost and the
// blades' daemons run.
func TestReadApp(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	must(t, os.Mkdir("sub", 0o700))
	for _, name := range []string{"server", "sub/server"} {
		must(t, os.WriteFile(name, nil, 0o700)) //nolint:gosec // it could be run
	}
	for path, want := range map[string]string{
		"app.yaml": filepath.Join(dir, "server"), "sub/app.yaml": filepath.Join(dir, "sub", "server"), dir + "/app.yaml": filepath.Join(dir, "server"),
	} {
		must(t, os.WriteFile(path, []byte("name: a\nprograms:\n  - name: p\n    command: [./server, x]\n"), 0o600))
		if name, spec, absent, err := readApp(path, false); len(absent) > 0 || err != nil || name != "a" || spec.Programs[0].Args[0] != want {
			t.Errorf("%s: %s, %+v, %v; want %s", path, name, spec, err, want)
		}
	}
	must(t, os.WriteFile("missing.yaml", []byte("name: a\nprograms:\n  - name: p\n    command: [./missing]\n"), 0o600))
	if _, _, _, err := readApp("missing.yaml", false); err == nil || !strings.Contains(err.Error(), dir+"/missing") {
		t.Errorf("a program that is not where the file says: %v", err)
	}
	must(t, os.WriteFile("missing.yaml", []byte("name: a\nprograms:\n  - name: p\n    command: [/opt/missing/p]\n"), 0o600))
	if _, _, absent, err := readApp("missing.yaml", false); err != nil || !slices.Equal(absent, []string{"/opt/missing/p"}) {
		t.Errorf("a program of the blades: %q, %v", absent, err)
	}
}

// TestDeploy_Stuck: what cannot start ends --wait with the reason, and is shown; a rollback to a
// program that cannot go on ends with what ran before.
func TestDeploy_Stuck(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	t.Cleanup(cancel)
	var broken atomic.Bool
	serve := func(old bool) simrack.Program {
		return func(ctx context.Context, j join.Joiner, _ control.Start) error {
			n, err := rpc.Join(join.NewContext(ctx, j), rpc.WithName("p"))
			if err == nil && old && broken.Load() {
				return errors.New("cannot read the state")
			}
			if err == nil {
				err = n.Export(ctx, "A", arrays.NewPingProcessor(service.Ping{}), rpc.WithState(nothing{}))
			}
			if err == nil {
				<-ctx.Done()
				err = ctx.Err()
			}
			return err
		}
	}
	rack, err := simrack.Start(ctx, simrack.Config{
		Heartbeat: time.Minute, Machines: [][]string{{"m1", "m2"}}, Programs: map[string]simrack.Program{
			"old": serve(true), "new": serve(false), "ends": func(ctx context.Context, j join.Joiner, _ control.Start) error {
				_, err := rpc.Join(join.NewContext(ctx, j), rpc.WithName("p"))
				return errors.Join(err, errors.New("no"))
			},
		},
	})
	must(t, err)
	t.Cleanup(func() { must(t, rack.Close()) })
	address := serveRackAdmin(ctx, t, rack)
	t.Chdir(t.TempDir())
	deploy := func(command string) (string, error) {
		app := map[bool]string{true: "b", false: "a"}[command == "/opt/ends"]
		must(t, os.WriteFile("app.yaml", []byte("name: "+app+"\nprograms: [{name: p, command: ["+command+"], services: [{name: "+strings.ToUpper(app)+", stateful: true}]}]\n"), 0o600))
		return bifrost(t, "deploy", "app.yaml", "--wait", "--any-binary", "--admin-addr", address)
	}
	out, err := deploy("/opt/ends")
	if err == nil || !strings.Contains(err.Error(), "b does not become ready: ") || !strings.Contains(err.Error(), "b/p/1: the program has ended") || !strings.Contains(err.Error(), "bifrost logs b") {
		t.Errorf("a program that ends at once: %s, %v", out, err)
	}
	if out, err = bifrost(t, "apps", "--admin-addr", address); err != nil || !strings.Contains(out, "LAST FAILURE") || !strings.Contains(out, "the program has ended") {
		t.Errorf("apps: %s, %v", out, err)
	}
	if out, err = bifrost(t, "events", "--kind", "program.failed", "--admin-addr", address); err != nil || !strings.Contains(out, "b/p/1  the program has ended") {
		t.Errorf("events: %s, %v", out, err)
	}
	for _, command := range []string{"/opt/old", "/opt/new"} {
		if out, err = deploy(command); err != nil {
			t.Fatalf("%s: %s, %v", command, out, err)
		}
	}
	broken.Store(true)
	out, err = bifrost(t, "rollback", "a", "--wait", "--admin-addr", address)
	if err == nil || !strings.Contains(err.Error(), "a was rolled back: nodes with these programs have failed 3 times, last a/p/1: ") {
		t.Errorf("rollback: %s, %v", out, err)
	}
	if out, err = bifrost(t, "apps", "--json", "--admin-addr", address); err != nil || !strings.Contains(out, `"/opt/new"`) || !strings.Contains(out, `"status":"running"`) || !strings.Contains(out, `"failure":"the program has ended`) {
		t.Errorf("apps: %s, %v", out, err)
	}
	out, err = bifrost(t, "apps", "--admin-addr", address)
	running := strings.Split(out, "\n")[1]
	if err != nil || !strings.Contains(running, "a/p/1") || !strings.Contains(running, "the program has ended") ||
		!strings.Contains(out, "a was rolled back: nodes with these programs have failed 3 times") || !strings.Contains(out, "b does not become ready: ") {
		t.Errorf("apps: %s, %v", out, err)
	}
}

// TestDeploy_CannotStart: what no blade could start, and what names a blade that is not there, is refused, and nothing is deployed.
func TestDeploy_CannotStart(t *testing.T) {
	address, _ := watched(t)
	t.Chdir(t.TempDir())
	for app, want := range map[string]string{
		"command: [/opt/missing/p]":               `program p cannot start: on c1, s1, s2: there is no program "p". Put that right, or name the blades that can run it (blades: in the app file)`,
		"command: [/opt/missing/p], blades: [s1]": `program p cannot start: on s1: there is no program "p"`,
		"command: [/bin/true], blades: [s3]":      `program p: no blade is called "s3" (did you mean s1 or s2?); bifrost blades lists them`,
		"command: [/bin/true], blades: [m1]":      "program p: m1 is a memory blade: programs run on compute blades",
	} {
		must(t, os.WriteFile("app.yaml", []byte("name: a\nprograms: [{name: p, "+app+"}]\n"), 0o600))
		if out, err := bifrost(t, "deploy", "app.yaml", "--any-binary", "--admin-addr", address); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %s, %v; want %s", app, out, err, want)
		}
	}
	if out, err := bifrost(t, "apps", "--admin-addr", address); err != nil || strings.Contains(out, "\na ") {
		t.Errorf("apps: %s, %v", out, err)
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
