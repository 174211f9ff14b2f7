package rack

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

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
			for _, f := range []struct {
				blade string
				how   How
			}{{"s2", Kill}, {"c1", Link}, {"switch", Kill}} {
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

// build makes bifrost and the arrays example, beside each other.
func build(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.Command("go", "build", "-o", dir+"/", "../cmd/bifrost", "../examples/arrays")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return filepath.Join(dir, "bifrost")
}

type realRack struct {
	t    *testing.T
	h    *Host
	name string
}

// patience is how long a command may take that is to succeed.
const patience = 10 * time.Second

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
// some heartbeats the servers' nodes have been given up, and they have ended.
func (r realRack) worksAgain(blade string) {
	r.t.Helper()
	var last error
	if !eventuallyTrue(r.t, func() bool {
		last = errors.Join(r.h.Restore(r.t.Context(), r.name, "s1"), r.h.Restore(r.t.Context(), r.name, "s2"), r.works())
		return last == nil
	}) {
		r.t.Fatalf("after %s was restored: %v", blade, last)
	}
}
