package rack

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/rack/config"
	"github.com/bifrost-rack/bifrost/rack/internal/kernel"
	"github.com/bifrost-rack/bifrost/rack/plan"
)

// Whatever goes wrong, nothing stays and the error tells what it was.
func TestRollBack(t *testing.T) {
	for _, tc := range []struct {
		name  string
		fake  string
		edit  func(*config.Config)
		is    error
		wants []string
	}{
		{name: "daemon exits", fake: "exit m1", is: ErrNotReady, wants: []string{"m1 has ended: exit status 3", "no room for m1"}},
		{name: "daemon is never ready", fake: "silent m1", edit: func(c *config.Config) { c.Blades, c.Programs = c.Blades[1:], nil }, is: ErrNotReady, wants: []string{"m1 is not ready after 1s"}},
		{name: "program exits", edit: func(c *config.Config) { c.Programs[0].Command = []string{"false"} }, is: ErrNotReady, wants: []string{"p1 has ended"}},
		{name: "program is missing", edit: func(c *config.Config) { c.Programs[0].Command = []string{"no-such-program"} }, is: ErrMissing, wants: []string{"no-such-program", "build it"}},
		{name: "bmv2 is missing", edit: func(c *config.Config) { c.Switch = config.BMv2 }, is: ErrMissing, wants: []string{"simple_switch_grpc", "--switch bifrost"}},
		{name: "bad config", edit: func(c *config.Config) { c.MTU = 1 }, wants: []string{"mtu"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h, name := testRack(t)
			if strings.HasPrefix(tc.fake, "silent") { // all others are ready by then
				h.Progress = func(step string) {
					if step == "gatekeeper: ready" {
						h.Timeout = time.Second
					}
				}
			}
			t.Setenv(fakeVariable, tc.fake)
			t.Setenv("PATH", "/usr/bin:/bin") // where no bmv2 is
			c := smallRack(name)
			if tc.edit != nil {
				tc.edit(&c)
			}
			err := h.Up(t.Context(), c)
			if err == nil || tc.is != nil && !errors.Is(err, tc.is) {
				t.Fatalf("error %v, want %v", err, tc.is)
			}
			for _, want := range tc.wants {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not say %q", err, want)
				}
			}
			checkNothingLeft(t, h, name)
		})
	}
}

// An interrupt while blades start undoes everything.
func TestInterrupt(t *testing.T) {
	h, name := testRack(t)
	t.Setenv(fakeVariable, "silent m1")
	ctx, cancel := context.WithCancel(t.Context())
	h.Progress = func(step string) {
		if step == "gatekeeper: ready" {
			cancel()
		}
	}
	if err := h.Up(ctx, smallRack(name)); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "interrupted") {
		t.Errorf("error %v", err)
	}
	checkNothingLeft(t, h, name)
}

// What a killed start has left is refused by name, and cleared away by Down; no
// other command interferes while it still runs.
func TestKilledStart(t *testing.T) {
	h, name := testRack(t)
	starter := exec.Command(executable(t), "upfake", h.Dir, name)
	starter.Env = append(os.Environ(), fakeVariable+"=silent m1")
	if err := starter.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = starter.Process.Kill() })                     // if the test stops before it does so itself
	eventually(t, func() bool { return len(rackMembers(t, name)) == 4 }) // m1's daemon, too, is there
	if err := h.Down(t.Context(), name); !errors.Is(err, ErrBusy) {
		t.Errorf("down while it starts: %v", err)
	}
	if err := starter.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = starter.Wait()
	err := h.Up(t.Context(), smallRack(name))
	if !errors.Is(err, ErrExists) || !strings.Contains(err.Error(), "half made") {
		t.Errorf("up on its remains: %v", err)
	}
	if st, err := h.Status(name); err != nil || st.Complete {
		t.Errorf("status %+v, %v", st, err)
	}
	if err := h.Down(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	checkNothingLeft(t, h, name)
	up(t, h, name)
}

// A namespace of the rack's without a record is refused by name, too.
func TestStaleNamespace(t *testing.T) {
	h, name := testRack(t)
	stale := plan.Namespace(name, "c7")
	if err := kernel.CreateNamespace(stale); err != nil {
		t.Fatal(err)
	}
	err := h.Up(t.Context(), smallRack(name))
	if !errors.Is(err, ErrExists) || !strings.Contains(err.Error(), stale) || !strings.Contains(err.Error(), "rack down") {
		t.Errorf("up: %v", err)
	}
	if racks, err := h.Racks(); err != nil || !slices.Contains(racks, name) {
		t.Errorf("racks %v, %v", racks, err)
	}
	if err := h.Down(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	up(t, h, name)
}
