package rack

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
	"github.com/bifrost-rack/bifrost/gatekeeper/admin/client"
	"github.com/bifrost-rack/bifrost/rack/config"
	"github.com/bifrost-rack/bifrost/rack/plan"
)

// The real thing: the thesis's rack with its daemons and the arrays example.
// What clients see of failures is other packages' business; here they show that
// a failure is one, and that what is restored works again.
func TestRealRack(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the binaries")
	}
	bifrost := build(t)
	for _, sw := range []config.Switch{config.Bifrost, config.BMv2} {
		t.Run(string(sw), func(t *testing.T) {
			if _, err := exec.LookPath(plan.BMv2Program); sw == config.BMv2 && err != nil {
				t.Skip("bmv2 is not installed: ", err)
			}
			h, name := testRack(t)
			h.Bifrost = bifrost
			c := config.Thesis()
			c.Name, c.Switch = name, sw
			if err := h.Up(t.Context(), c); err != nil {
				t.Fatal(err)
			}
			r := realRack{t, h, name}
			if err := r.works(); err != nil {
				t.Fatal(err)
			}
			r.moves("arrays", "s2")
			r.losesDaemon("m1")
			for _, f := range []struct {
				blade string
				how   How
			}{{"c1", Link}, {"switch", Kill}} {
				err := h.Fail(t.Context(), name, f.blade, f.how)
				if sw == config.BMv2 && f.how == Link {
					if err == nil {
						t.Error("bmv2 would stop altogether, but the link was taken down")
					}
					continue
				}
				if err != nil {
					t.Fatal(err)
				}
				if out, err := r.run(time.Second, "arrays", "echo", "--count", "1", "--by", "value"); err == nil {
					t.Errorf("a call passes although %s has failed (%s): %s", f.blade, f.how, out)
				}
				if err := h.Restore(t.Context(), name, f.blade); err != nil {
					t.Fatal(err)
				}
				r.worksAgain(f.blade)
			}
		})
	}
}

// build makes bifrost and the arrays example, beside each other, once for all tests.
func build(t *testing.T) string {
	t.Helper()
	path, err := built()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// buildDir is what TestMain removes in the end.
var buildDir string

var built = sync.OnceValues(func() (string, error) {
	var err error
	if buildDir, err = os.MkdirTemp("", "bf-build"); err != nil {
		return "", err
	}
	// Without what a debugger needs linking takes half the time.
	cmd := exec.Command("go", "build", "-ldflags=-s -w", "-o", buildDir+"/", "../cmd/bifrost", "../examples/arrays")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return filepath.Join(buildDir, "bifrost"), nil
})

type realRack struct {
	t    *testing.T
	h    *Host
	name string
}

// patience is how long a command may take that is to succeed, on a busy machine.
const patience = time.Minute

// run runs a command on c1 for a limited time.
func (r realRack) run(limit time.Duration, args ...string) (string, error) {
	r.t.Helper()
	path, err := r.h.Locate(args[0])
	if err != nil {
		r.t.Fatal(err)
	}
	cmd := exec.Command(path, args[1:]...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := r.h.Start(r.name, "c1", cmd); err != nil {
		r.t.Fatal(err)
	}
	defer time.AfterFunc(limit, func() { _ = cmd.Process.Kill() }).Stop()
	err = cmd.Wait()
	return out.String(), err
}

// moves kills a program, which goes on where it was, and then its blade: the program
// goes on on another one, and stays there when the blade is back.
func (r realRack) moves(program, blade string) {
	r.t.Helper()
	if at := r.at(program); at != blade {
		r.t.Fatalf("%s runs on %s, not on %s", program, at, blade)
	}
	for _, how := range []How{Pause, Kill} {
		if err := r.h.Fail(r.t.Context(), r.name, program, how); err != nil {
			r.t.Fatal(err)
		}
		if err := r.h.Restore(r.t.Context(), r.name, program); err != nil {
			r.t.Fatal(err)
		}
		r.worksAgain(program)
	}
	if at := r.at(program); at != blade {
		r.t.Errorf("%s was killed on %s, and goes on on %s", program, blade, at)
	}
	if err := r.h.Fail(r.t.Context(), r.name, blade, Kill); err != nil {
		r.t.Fatal(err)
	}
	r.worksAgain(blade)
	spare := r.at(program)
	if err := r.h.Restore(r.t.Context(), r.name, blade); err != nil {
		r.t.Fatal(err)
	}
	if at := r.at(program); spare == blade || at != spare {
		r.t.Errorf("%s went on on %s, and is on %s when %s is back", program, spare, at, blade)
	}
	logs, err := r.h.Logs(r.name, program)
	if err != nil || len(logs) != 1 {
		r.t.Fatalf("logs %v, %v", logs, err)
	}
	var out bytes.Buffer
	if err := logs[0].Print(r.t.Context(), &out, 10, false); err != nil || strings.Count(out.String(), " is served") != 3 {
		r.t.Errorf("%s printed %q, %v", program, &out, err)
	}
}

// losesDaemon kills the daemon of a memory blade, and nothing else: the machine goes on with its
// other copy because the Gatekeeper is told of that, not because heartbeats are missed.
func (r realRack) losesDaemon(blade string) {
	r.t.Helper()
	admin, err := client.New(client.Config{Address: "unix:" + r.h.AdminSocket(r.name)})
	if err != nil {
		r.t.Fatal(err)
	}
	defer admin.Close()
	copies := func(want int) bool {
		all, err := admin.Machines(r.t.Context())
		return err == nil && all[0].InService == want && len(all[0].Copies) == want
	}
	if err := r.h.Fail(r.t.Context(), r.name, blade, Daemon); err != nil {
		r.t.Fatal(err)
	}
	if !eventuallyTrue(r.t, func() bool { return copies(1) }) {
		r.t.Fatalf("the machine of %s has two copies still", blade)
	}
	var why []api.Event // which comes after the change
	eventually(r.t, func() bool {
		why, err = admin.Recent(r.t.Context(), 1, client.EventFilter{Kinds: []string{"blade.failed"}, Blade: blade})
		return err != nil || len(why) > 0
	})
	if err != nil || why[0].Message != "its daemon has ended" {
		r.t.Errorf("the machine goes on without %s, because of %+v, %v", blade, why, err)
	}
	if err := r.works(); err != nil {
		r.t.Error(err)
	}
	if err := r.h.Restore(r.t.Context(), r.name, blade); err != nil {
		r.t.Fatal(err)
	}
	if !eventuallyTrue(r.t, func() bool { return copies(2) }) {
		r.t.Fatalf("%s has not got its copy back", blade)
	}
}

// at says on which blade a program runs.
func (r realRack) at(program string) string {
	r.t.Helper()
	st, err := r.h.Status(r.name)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, b := range st.Blades {
		for _, p := range b.Processes {
			if p.Name == program && p.State == "running" {
				return b.Name
			}
		}
	}
	r.t.Fatalf("%s does not run: %+v", program, st)
	return ""
}

// A program that does not stay alive keeps the rack from coming up, and nothing of
// it stays.
func TestRealRollBack(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the binaries")
	}
	h, name := testRack(t)
	h.Bifrost = build(t)
	c := config.Thesis()
	c.Name = name
	c.Programs[0].Command = []string{"sh", "-c", "echo no luck; exit 3"}
	err := h.Up(t.Context(), c)
	if !errors.Is(err, ErrNotReady) || !strings.Contains(err.Error(), "ping ends again and again; it printed last:\n    no luck") {
		t.Errorf("error %v", err)
	}
	checkNothingLeft(t, h, name)
}

// works checks ping through the switch, and calls by value and by reference.
func (r realRack) works() error {
	for _, command := range []string{
		"ping -c 1 -W 5 fd00:b1f0:0:1::2",
		"arrays ping --count 3",
		"arrays add --size 4096 --count 3 --by value",
		"arrays add --size 100000 --count 3 --by reference",
	} {
		if out, err := r.run(patience, strings.Fields(command)...); err != nil {
			return fmt.Errorf("%s: %w\n%s", command, err, out)
		}
	}
	return nil
}

// worksAgain waits until everything works. Where a failure lasted for more than
// some heartbeats, the servers' nodes have been given up, and their programs started
// again.
func (r realRack) worksAgain(blade string) {
	r.t.Helper()
	var last error
	if !eventuallyTrue(r.t, func() bool { last = r.works(); return last == nil }) {
		r.t.Fatalf("after the failure of %s: %v", blade, last)
	}
}
