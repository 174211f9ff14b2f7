package rack

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bifrost-rack/bifrost/p4switch/shared/privilege"
)

// privateVariable marks the process in which a test runs that has /run to itself.
const privateVariable = "BIFROST_TEST_PRIVATE"

// inPrivate runs the test again in a process with a mount namespace of its own, where /run is
// empty: what the test does to mounts there, the machine does not see. It reports whether
// this is that process.
func inPrivate(t *testing.T) bool {
	t.Helper()
	privilege.Need(t)
	if os.Getenv(privateVariable) != "" {
		if err := unix.Mount("none", "/run", "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		return true
	}
	cmd := exec.Command(executable(t), "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), privateVariable+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS} // Go makes it private
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("in a mount namespace of its own: %v\n%s", err, out)
	}
	return false
}

func run(t *testing.T, command ...string) {
	t.Helper()
	if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
		t.Errorf("%q: %v\n%s", command, err, out)
	}
}

// TestBesideIP: somebody else makes a network namespace with iproute2 while a rack is up, and
// both end their own, in either order.
func TestBesideIP(t *testing.T) {
	if !inPrivate(t) {
		return
	}
	h, name := testRack(t)
	up(t, h, name)
	run(t, "ip", "netns", "add", "theirs")
	if err := h.Down(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	up(t, h, name)
	run(t, "ip", "netns", "exec", "theirs", "true")
	run(t, "ip", "netns", "delete", "theirs")
	if err := h.Down(t.Context(), name); err != nil {
		t.Fatal(err)
	}
}

// TestHidden: what is mounted over the directory of namespaces hides a rack's. Down says so,
// with the remedy, as often as it is asked, and removes the rack when it is forced to.
// Other namespaces stay.
func TestHidden(t *testing.T) {
	if !inPrivate(t) {
		return
	}
	h, name := testRack(t)
	up(t, h, name)
	run(t, "ip", "netns", "add", "theirs")
	run(t, "mount", "--make-rprivate", "/run/netns")
	run(t, "mount", "--rbind", "/run/netns", "/run/netns")
	for range 2 {
		err := h.Down(t.Context(), name)
		if !errors.Is(err, ErrHidden) || !strings.Contains(err.Error(), "`bifrost rack down --rack "+name+" --force`") {
			t.Fatalf("down: %v", err)
		}
	}
	if err := h.Up(t.Context(), smallRack(name)); !errors.Is(err, ErrExists) {
		t.Fatalf("up where a hidden rack is: %v", err)
	}
	h.Force = true
	if err := h.Down(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	checkNothingLeft(t, h, name)
	run(t, "ip", "netns", "exec", "theirs", "true")
	up(t, h, name)
}
