package kernel

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netns"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/bifrost-rack/bifrost/p4switch/shared/privilege"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// needRoot skips a test that makes namespaces when it may not; CI runs as root.
func needRoot(t *testing.T) {
	t.Helper()
	privilege.Need(t)
}

// newNamespace makes a namespace for the test's duration; its processes are
// killed at the end.
func newNamespace(t *testing.T, name string) *Namespace {
	t.Helper()
	needRoot(t)
	name = fmt.Sprintf("bftest%d-%s", os.Getpid(), name)
	if err := CreateNamespace(name); err != nil {
		t.Fatal(err)
	}
	ns, err := OpenNamespace(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(Group{ns}.Kill(context.Background()), ns.Close(), DeleteNamespace(name)); err != nil {
			t.Error(err)
		}
	})
	return ns
}

// start runs a shell script in ns and returns once it has printed a line.
func start(t *testing.T, ns *Namespace, script string) (*exec.Cmd, Process) {
	t.Helper()
	cmd := exec.Command("sh", "-c", script)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := ns.Do(cmd.Start); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("%q printed %q, %v", script, line, err)
	}
	p, err := Identify(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return cmd, p
}

func TestNamespaceLifecycle(t *testing.T) {
	ns := newNamespace(t, "life")
	if err := CreateNamespace(ns.name); !errors.Is(err, fs.ErrExist) {
		t.Errorf("made twice: %v", err)
	}
	names, err := Namespaces(ns.name)
	if err != nil || !slices.Equal(names, []string{ns.name}) {
		t.Errorf("listed %q, %v", names, err)
	}
	if err := ns.Do(func() error { // its loopback is up
		l, err := net.Listen("tcp6", "[::1]:0")
		if err == nil {
			err = l.Close()
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	if err := DeleteNamespace(ns.name); err != nil {
		t.Error(err)
	}
	if Exists(ns.name) {
		t.Error("still there")
	}
	if err := DeleteNamespace(ns.name); err != nil {
		t.Errorf("deleted twice: %v", err)
	}
}

// A killed run can leave the file without the mount.
func TestDeleteHalfMade(t *testing.T) {
	needRoot(t)
	name := fmt.Sprintf("bftest%d-half", os.Getpid())
	if err := os.MkdirAll(directory, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(directory, name), nil, 0o444); err != nil {
		t.Fatal(err)
	}
	ns, err := OpenNamespace(name)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	if err := ns.Do(func() error { return nil }); err == nil {
		t.Error("entered a plain file")
	}
	if err := DeleteNamespace(name); err != nil || Exists(name) {
		t.Errorf("deleted: %v, exists %v", err, Exists(name))
	}
}

// Do moves one thread only for as long as it takes.
func TestDoComesBack(t *testing.T) {
	ns := newNamespace(t, "do")
	home, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	defer home.Close()
	want := errors.New("from inside")
	if err := ns.Do(func() error {
		here, err := netns.Get()
		if err != nil {
			return err
		}
		defer here.Close()
		if !here.Equal(ns.handle) {
			t.Error("f did not run inside")
		}
		return want
	}); !errors.Is(err, want) {
		t.Errorf("error %v", err)
	}
	// All threads are home again, the process's first one above all.
	threads, err := filepath.Glob("/proc/self/task/[0-9]*/ns/net")
	if err != nil || len(threads) == 0 {
		t.Fatalf("%d threads, %v", len(threads), err)
	}
	for _, thread := range threads {
		if there, err := netns.GetFromPath(thread); err == nil { // else it has ended
			if !there.Equal(home) {
				t.Errorf("%s is elsewhere", thread)
			}
			there.Close()
		}
	}
}

func TestIdentify(t *testing.T) {
	self, err := Identify(os.Getpid())
	if err != nil || self.Start == 0 || self.State() != Running {
		t.Fatalf("self %+v %s, %v", self, self.State(), err)
	}
	// The same id with another start time is another process: it is left alone.
	recycled := Process{PID: self.PID, Start: self.Start - 1}
	if recycled.State() != Gone {
		t.Errorf("a recycled id is %s", recycled.State())
	}
	if err := recycled.Signal(unix.SIGKILL); err != nil { // this test would not survive a hit
		t.Error(err)
	}
	if err := recycled.Wait(t.Context()); err != nil {
		t.Errorf("wait for what is gone: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := self.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("wait for what is not: %v", err)
	}
}

func TestMembersAndKill(t *testing.T) {
	ns, other := newNamespace(t, "kill"), newNamespace(t, "other")
	_, bystander := start(t, other, "echo up; sleep 1000")
	// A shell that ignores SIGTERM and starts a new child whenever one dies.
	cmd, p := start(t, ns, `trap "" TERM; echo up; while :; do sleep 1000; done`)
	members, err := Group{ns}.Members()
	if err != nil || !slices.Contains(members, p) || slices.Contains(members, bystander) {
		t.Fatalf("members %v of %v, %v", members, p, err)
	}
	if err := (Group{ns}).Stop(t.Context(), 20*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if members, err := (Group{ns}).Members(); err != nil || len(members) != 0 {
		t.Errorf("left behind: %v, %v", members, err)
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.Sys().(interface{ Signal() unix.Signal }).Signal() != unix.SIGKILL {
		t.Errorf("it ended with %v", err)
	}
	if bystander.State() != Running {
		t.Error("another namespace's process was hit")
	}
}

// A paused process ends too, and in good order.
func TestStopPaused(t *testing.T) {
	ns := newNamespace(t, "paused")
	cmd, p := start(t, ns, `trap "exit 7" TERM; echo up; while :; do sleep 0.01; done`)
	if err := p.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	var status unix.WaitStatus
	if _, err := unix.Wait4(p.PID, &status, unix.WUNTRACED, nil); err != nil || !status.Stopped() {
		t.Fatalf("status %v, %v", status, err)
	}
	if p.State() != Paused {
		t.Fatalf("it is %s", p.State())
	}
	if err := (Group{ns}).Stop(t.Context(), 10*time.Second); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 7 {
		t.Errorf("it ended with %v", err)
	}
}
