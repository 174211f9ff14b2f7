package rack

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/bifrost-rack/bifrost/rack/config"
)

// TestDeploy has a real rack run an app: its calls are answered; when its program
// is killed, another process goes on as the same node; and it is gone after bifrost
// undeploy.
func TestDeploy(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the binaries")
	}
	h, name := testRack(t)
	h.Bifrost = build(t)
	c := config.Thesis()
	c.Name, c.Programs = name, nil // nobody else serves anything
	if err := h.Up(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	r := deployedRack{realRack{t, h, name}}
	app := filepath.Join(t.TempDir(), "app.yaml")
	const spec = `
name: arrays
programs:
  - name: server
    command: [arrays, server, --services, Arrays]
    services: [{name: Arrays}]
    nodes: 2
`
	if err := os.WriteFile(app, []byte(spec), 0o600); err != nil {
		t.Fatal(err)
	}
	r.bifrost("deploy", app)
	before := r.running(2, nil)
	r.calls()

	pid := r.pid(before[0])
	if pid == 0 {
		t.Fatalf("%+v has no process", before[0])
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	after := r.running(2, func([]instance) bool { now := r.pid(before[0]); return now != 0 && now != pid })
	r.calls()
	if !slices.Equal(after, before) {
		t.Errorf("killed %+v, now there are %+v: the node must be the same", before[0], after)
	}

	r.bifrost("undeploy", "arrays")
	if !eventuallyTrue(t, func() bool { return strings.TrimSpace(r.bifrost("apps", "--json")) == "" }) {
		t.Errorf("still there: %s", r.bifrost("apps"))
	}
}

type deployedRack struct{ realRack }

// instance is one as `bifrost apps --json` prints it.
type instance struct {
	Name, Status, Blade, Node string
}

// bifrost runs a bifrost command about the rack and returns its output.
func (r deployedRack) bifrost(args ...string) string {
	r.t.Helper()
	cmd := exec.Command(r.h.Bifrost, append(args, "--admin-addr", "unix:"+r.h.AdminSocket(r.name))...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		r.t.Fatalf("bifrost %s: %v\n%s", strings.Join(args, " "), err, errs.Bytes())
	}
	return out.String()
}

// running waits until so many instances run, and until they are as they should be.
func (r deployedRack) running(nodes int, good func([]instance) bool) (all []instance) {
	r.t.Helper()
	if !eventuallyTrue(r.t, func() bool {
		var app struct{ Instances []instance }
		if err := json.Unmarshal([]byte(r.bifrost("apps", "--json")), &app); err != nil {
			r.t.Fatal(err)
		}
		all = app.Instances
		for _, i := range all {
			if i.Status != "running" {
				return false
			}
		}
		return len(all) == nodes && (good == nil || good(all))
	}) {
		r.t.Fatalf("not %d as they should be: %s", nodes, r.bifrost("apps"))
	}
	return all
}

// pid finds the process that a blade's daemon runs as an instance, 0 if there is
// none.
func (r deployedRack) pid(i instance) int {
	r.t.Helper()
	cmd := exec.Command(r.h.Bifrost, "compute", "status", "--json")
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := r.h.Start(r.name, i.Blade, cmd); err != nil {
		r.t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		r.t.Fatal(err)
	}
	var status struct {
		Programs []struct {
			Name string
			PID  int
		}
	}
	if err := json.Unmarshal(out.Bytes(), &status); err != nil {
		r.t.Fatal(err)
	}
	for _, p := range status.Programs {
		if p.Name == i.Name {
			return p.PID
		}
	}
	return 0
}

// calls waits until calls are answered: a node is running before it exports.
func (r deployedRack) calls() {
	r.t.Helper()
	var last string
	if !eventuallyTrue(r.t, func() bool {
		out, err := r.run(patience, "arrays", "add", "--size", "4096", "--count", "20", "--by", "reference")
		last = out
		return err == nil
	}) {
		r.t.Fatalf("calls fail: %s", last)
	}
}
