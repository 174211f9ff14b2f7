package rack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/shared/privilege"
	"github.com/bifrost-rack/bifrost/rack/config"
	"github.com/bifrost-rack/bifrost/rack/internal/kernel"
	"github.com/bifrost-rack/bifrost/rack/plan"
)

// testRack is a host with state of its own and the name of a rack on it that no
// other test uses. When the test ends, nothing of the rack may be left.
func testRack(t *testing.T) (*Host, string) {
	t.Helper()
	privilege.Need(t)
	base, err := os.MkdirTemp("", "bf") // short: the path of a socket has 108 bytes at most
	if err != nil {
		t.Fatal(err)
	}
	h := &Host{Dir: filepath.Join(base, "r"), Bifrost: executable(t)}
	name := fmt.Sprintf("t%dn%d", os.Getpid(), testNumber)
	testNumber++
	t.Cleanup(func() {
		if err := h.Down(context.Background(), name); err != nil && !errors.Is(err, ErrNotUp) {
			t.Error(err)
		}
		checkNothingLeft(t, h, name)
		os.RemoveAll(base)
	})
	return h, name
}

var testNumber int

func executable(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// up brings the small rack up.
func up(t *testing.T, h *Host, name string) {
	t.Helper()
	if err := h.Up(t.Context(), smallRack(name)); err != nil {
		t.Fatal(err)
	}
}

// checkNothingLeft looks for whatever a rack can leave behind.
func checkNothingLeft(t *testing.T, h *Host, name string) {
	t.Helper()
	namespaces, err := kernel.Namespaces(plan.Prefix(name))
	if err != nil || len(namespaces) != 0 {
		t.Errorf("namespaces left: %v, %v", namespaces, err)
	}
	if _, err := os.Stat(h.Dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("state left: %v", err)
	}
	links, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if strings.HasPrefix(l.Name, "port") {
			t.Errorf("link left on the host: %s", l.Name)
		}
	}
	for _, p := range processesMentioning(t, h.Dir) {
		t.Errorf("process left: %s", p)
	}
}

// processesMentioning returns the command lines and environments that hold text.
func processesMentioning(t *testing.T, text string) []string {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, dir := range dirs {
		env, _ := os.ReadFile(filepath.Join(dir, "environ"))
		args, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		if bytes.Contains(env, []byte(text)) || bytes.Contains(args, []byte(text)) {
			found = append(found, fmt.Sprintf("%s %q", dir, args))
		}
	}
	return found
}

// eventually waits until done returns true.
func eventually(t *testing.T, done func() bool) {
	t.Helper()
	if !eventuallyTrue(t, done) {
		t.Fatal("it does not come to pass")
	}
}

func eventuallyTrue(t *testing.T, done func() bool) bool {
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	return poll(ctx, done) == nil
}

// states returns the state of every process of the rack by name.
func states(t *testing.T, h *Host, name string) map[string]string {
	t.Helper()
	st, err := h.Status(name)
	if err != nil {
		t.Fatal(err)
	}
	m := map[string]string{}
	for _, b := range st.Blades {
		for _, p := range b.Processes {
			m[p.Name] = p.State
		}
	}
	return m
}

func TestUpAndDown(t *testing.T) {
	h, name := testRack(t)
	var steps []string
	h.Progress = func(s string) { steps = append(steps, s) }
	up(t, h, name)
	want := []string{"network: 3 namespaces, 2 wires", "switch: ready", "gatekeeper: ready", "blades: ready", "programs: ready"}
	if !slices.Equal(steps, want) {
		t.Errorf("steps %q, want %q", steps, want)
	}
	for process, state := range states(t, h, name) {
		if state != "running" {
			t.Errorf("%s is %s", process, state)
		}
	}
	if racks, err := h.Racks(); err != nil || !slices.Contains(racks, name) {
		t.Errorf("racks %v, %v", racks, err)
	}
	members := rackMembers(t, name)
	if len(members) != 6 { // switch, Gatekeeper, two daemons, the program and the child it forgot
		t.Errorf("%d processes in the rack's namespaces: %v", len(members), members)
	}
	if err := h.Down(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	for _, p := range members {
		if p.State() != kernel.Gone {
			t.Errorf("process %d survived", p.PID)
		}
	}
	if err := h.Down(t.Context(), name); !errors.Is(err, ErrNotUp) {
		t.Errorf("down twice: %v", err)
	}
}

func rackMembers(t *testing.T, name string) []kernel.Process {
	t.Helper()
	names, err := kernel.Namespaces(plan.Prefix(name))
	if err != nil {
		t.Fatal(err)
	}
	g, err := kernel.OpenGroup(names)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	members, err := g.Members()
	if err != nil {
		t.Fatal(err)
	}
	return members
}

// A command on a blade sees that blade's network and nothing else.
func TestStartOnBlade(t *testing.T) {
	h, name := testRack(t)
	up(t, h, name)
	cmd := exec.Command("cat", "/proc/net/if_inet6")
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := h.Start(name, "m1", cmd); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if lines := strings.Count(out.String(), "\n"); lines != 2 || !strings.Contains(out.String(), "fd00b1f0000000010000000000000002") {
		t.Errorf("addresses on m1:\n%s", &out)
	}
	if err := h.Start(name, "m9", exec.Command("true")); !errors.Is(err, ErrNoBlade) || !strings.Contains(err.Error(), "c1, m1") {
		t.Errorf("on a blade that is not there: %v", err)
	}
}

// Exec becomes the command: input, output and exit code are the command's own.
func TestExec(t *testing.T) {
	h, name := testRack(t)
	up(t, h, name)
	cmd := exec.Command(executable(t), "execfake", h.Dir, name, "c1", "sh", "-c", "cat; cat /proc/net/if_inet6; echo wrong >&2; exit 42")
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader("given\n"), &out, &errs
	err := cmd.Run()
	if cmd.ProcessState.ExitCode() != 42 || errs.String() != "wrong\n" {
		t.Errorf("exit %v, printed on the side %q", err, &errs)
	}
	if !strings.HasPrefix(out.String(), "given\n") || !strings.Contains(out.String(), "fd00b1f0000000010000000000000001") {
		t.Errorf("printed %q", &out)
	}
	// One that is interrupted, or whose terminal goes, ends its command.
	for _, sig := range []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		if signal.Ignored(sig) {
			continue // the tests run under nohup: so would the command
		}
		cmd := exec.Command(executable(t), "execfake", h.Dir, name, "c1", "sh", "-c", "echo runs; exec sleep 1000")
		said, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(said, make([]byte, len("runs"))); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err == nil || cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != sig {
			t.Errorf("%v: the command ended with %v", sig, err)
		}
	}
	for _, args := range [][]string{{"c9", "true"}, {"c1", "no-such-program"}} {
		cmd := exec.Command(executable(t), append([]string{"execfake", h.Dir, name}, args...)...)
		if out, err := cmd.CombinedOutput(); err == nil || !bytes.Contains(out, []byte(args[0])) && !bytes.Contains(out, []byte(args[1])) {
			t.Errorf("%v: %v, %s", args, err, out)
		}
	}
}

func TestUpTwice(t *testing.T) {
	h, name := testRack(t)
	up(t, h, name)
	err := h.Up(t.Context(), smallRack(name))
	if !errors.Is(err, ErrExists) || !strings.Contains(err.Error(), "rack down --rack "+name) {
		t.Errorf("up twice: %v", err)
	}
	for process, state := range states(t, h, name) {
		if state != "running" {
			t.Errorf("%s of the first is %s", process, state)
		}
	}
}

func TestLogsOfRack(t *testing.T) {
	h, name := testRack(t)
	up(t, h, name)
	logs, err := h.Logs(name, "c1")
	if err != nil || len(logs) != 2 || logs[0].Process != "c1" || logs[1].Process != "p1" {
		t.Fatalf("logs %v, %v", logs, err)
	}
	var out bytes.Buffer
	if err := logs[1].Print(t.Context(), &out, 10, false); err != nil || out.String() != "it is served\n" {
		t.Errorf("printed %q, %v", &out, err)
	}
	if _, err := h.Logs(name, "c9"); !errors.Is(err, ErrNoBlade) {
		t.Errorf("error %v", err)
	}
}

// Without root everything that needs it says so.
func TestNotRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		if err := (&Host{}).Up(t.Context(), config.Thesis()); !errors.Is(err, ErrNotRoot) {
			t.Errorf("error %v", err)
		}
		return
	}
	cmd := exec.Command("/proc/self/exe", "-test.run", "^TestNotRoot$", "-test.v")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	cmd.Dir = "/"
	if out, err := cmd.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("PASS: TestNotRoot")) {
		t.Errorf("as nobody: %v\n%s", err, out)
	}
}
