package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/internal/join"
)

// nobody is who an ordinary user is in these tests, if they run as root.
const nobody = 65534

// asNobody is how root runs a command as an ordinary user without capabilities.
var asNobody = []string{"setpriv", fmt.Sprint("--reuid=", nobody), fmt.Sprint("--regid=", nobody), "--clear-groups", "--inh-caps=-all", "--bounding-set=-all", "--"}

// home is what an ordinary user has: programs that were built, and directories of their own.
type home struct {
	*testing.T
	dir, state string
}

// newHome builds bifrost, and packages of examples, each with its directory's name.
func newHome(t *testing.T, packages ...string) *home {
	t.Helper()
	dir, err := os.MkdirTemp("", "bifrost-dev-test-") // of T's, others could not read it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	h := &home{t, dir, filepath.Join(dir, "state")}
	h.tool("", "go", append([]string{"build", "-ldflags=-s -w", "-o", filepath.Join(dir, "bin") + "/", "."}, packages...)...)
	h.must(os.Mkdir(h.file("tmp"), 0o755))
	h.own()
	return h
}

// own gives all to the user.
func (h *home) own() {
	h.Helper()
	h.must(filepath.WalkDir(h.dir, func(name string, _ os.DirEntry, err error) error {
		if err == nil && os.Geteuid() == 0 {
			err = os.Lchown(name, nobody, nobody)
		}
		return err
	}))
}

func (h *home) must(err error) {
	h.Helper()
	if err != nil {
		h.Fatal(err)
	}
}

func (h *home) file(name ...string) string { return filepath.Join(append([]string{h.dir}, name...)...) }

// tool runs a command as this user, in a directory.
func (h *home) tool(dir, name string, args ...string) {
	h.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		h.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
}

// patience bounds what a rack takes its time for on a busy machine.
const patience = 2 * time.Minute

// command is one of the user's; its name is that of a program that was built.
func (h *home) command(name string, args ...string) *exec.Cmd {
	args = append([]string{h.file("bin", name)}, args...)
	if os.Geteuid() == 0 {
		args = append(append([]string(nil), asNobody...), args...)
	}
	ctx, cancel := context.WithTimeout(h.Context(), patience)
	h.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = h.dir
	cmd.Env = append(os.Environ(), "TMPDIR="+h.file("tmp"), "HOME="+h.dir, "NO_COLOR=1",
		join.SocketVariable+"="+filepath.Join(h.state, "c1.sock"), addressVariable+"=unix:"+filepath.Join(h.state, "admin.sock"))
	return cmd
}

// run runs a command to its end and returns what it prints.
func (h *home) run(name string, args ...string) string {
	h.Helper()
	out, err := h.command(name, args...).CombinedOutput()
	if err != nil {
		h.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
	return string(out)
}

// printed is a command that runs, and what it prints.
type printed struct {
	*home
	cmd   *exec.Cmd
	lines chan string
	all   []string
}

func (h *home) start(name string, args ...string) *printed {
	h.Helper()
	p := &printed{h, h.command(name, args...), make(chan string, 10000), nil}
	out, err := p.cmd.StdoutPipe()
	h.must(err)
	p.cmd.Stderr = p.cmd.Stdout
	h.must(p.cmd.Start())
	go func() {
		defer close(p.lines)
		for in := bufio.NewScanner(out); in.Scan(); {
			p.lines <- in.Text()
		}
	}()
	return p
}

// until waits for a line with a text.
func (p *printed) until(text string) {
	p.Helper()
	for line := range p.lines {
		p.all = append(p.all, line)
		if strings.Contains(line, text) {
			return
		}
	}
	p.Fatalf("it has ended without %q: %s", text, strings.Join(p.all, "\n"))
}

// fromOutside makes a call by HTTP, always with the same key, and returns its answer.
func (p *printed) fromOutside(method, body string) string {
	p.Helper()
	return p.call(method, body, "one")
}

// call makes a call by HTTP with a key, and returns its answer.
func (p *printed) call(method, body, key string) string {
	p.Helper()
	got, err := post(p.Context(), p.calls(), method, body, key)
	p.must(err)
	return got
}

// calls is where the rack takes calls by HTTP.
func (p *printed) calls() (at string) {
	for _, line := range p.all {
		if _, url, ok := strings.Cut(line, "  calls     "); ok {
			at, _, _ = strings.Cut(url, " ")
		}
	}
	return at
}

// post makes a call by HTTP with a key, and returns its answer.
func post(ctx context.Context, at, method, body, key string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, at+"call/"+method, strings.NewReader(body))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return string(b), err
}

// end interrupts the command, as Ctrl-C does, and waits for its end.
func (p *printed) end() {
	p.Helper()
	p.must(p.cmd.Process.Signal(os.Interrupt))
	p.ended()
}

// kill kills the command.
func (p *printed) kill() {
	p.Helper()
	p.must(p.cmd.Process.Kill())
	for range p.lines {
		continue
	}
	_ = p.cmd.Wait() // it was killed
}

func (p *printed) ended() {
	p.Helper()
	for line := range p.lines {
		p.all = append(p.all, line)
	}
	if err := p.cmd.Wait(); err != nil {
		p.Fatalf("%v: %s", err, strings.Join(p.all, "\n"))
	}
}

// program is the process of the only program that the rack runs.
func (h *home) program() int {
	h.Helper()
	var all []join.ProgramStatus
	for _, blade := range []string{"c1", "s1", "s2"} {
		cmd := h.command("bifrost", "compute", "status", "--json")
		cmd.Env = append(cmd.Env, join.SocketVariable+"="+filepath.Join(h.state, blade+".sock"))
		out, err := cmd.Output()
		h.must(err)
		var s join.Status
		h.must(json.Unmarshal(out, &s))
		all = append(all, s.Programs...)
	}
	if len(all) != 1 {
		h.Fatalf("the rack runs %+v", all)
	}
	return all[0].PID
}

// processes are those that run a program of the user's.
func (h *home) processes() (all []string) {
	h.Helper()
	programs, err := filepath.Glob("/proc/[0-9]*/exe")
	h.must(err)
	for _, exe := range programs {
		if name, err := os.Readlink(exe); err == nil && strings.HasPrefix(name, h.dir) { // one that has ended has none
			all = append(all, exe+" "+name)
		}
	}
	return all
}

const counterApp = `
name: shop
programs:
  - name: counter
    command: [./counter, serve, Counter]
    services: [{name: Counter, stateful: true}]
    blades: [s1]
`

// An ordinary user has a rack with one command: every call happens once though its program is killed, what has changed is rolled out,
// and the state is there in the next run.
func TestDev(t *testing.T) {
	h := newHome(t, "../../examples/counter")
	h.must(os.WriteFile(h.file("app.yaml"), []byte(counterApp), 0o644)) //nolint:gosec // for the other user
	h.must(os.Rename(h.file("bin", "counter"), h.file("counter")))
	h.must(os.Link(h.file("counter"), h.file("bin", "counter")))
	dev := h.start("bifrost", "dev", "--dir", h.state, "app.yaml")
	dev.until("serves Counter")
	if len(h.processes()) < 2 {
		t.Error("the rack and its program do not count as processes:", h.processes())
	}
	if os.Geteuid() == 0 {
		for _, process := range []int{dev.cmd.Process.Pid, h.program()} {
			status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", process))
			h.must(err)
			if !strings.Contains(string(status), "CapBnd:\t0000000000000000") || !strings.Contains(string(status), fmt.Sprintf("Uid:\t%d", nobody)) {
				t.Errorf("process %d has privileges: %s", process, status)
			}
		}
	}
	calls := h.start("counter", "add", "--account", "7", "--count", "300", "--verbose")
	for _, at := range []string{"100", "200"} {
		calls.until(at)
		h.must(syscall.Kill(h.program(), syscall.SIGKILL))
	}
	calls.ended()
	for n := range 2 {
		if got := dev.fromOutside("Counter/add", `{"account": 8, "amounts": "AQI="}`); got != "3" {
			t.Errorf("from outside: %s", got)
		}
		if n == 0 {
			h.must(syscall.Kill(h.program(), syscall.SIGKILL))
		}
	}
	second := h.command("bifrost", "dev", "--dir", h.state)
	if out, err := second.CombinedOutput(); err == nil || !strings.Contains(string(out), "another bifrost dev") {
		t.Errorf("a second rack in the directory: %v, %s", err, out)
	}
	b, err := os.ReadFile(h.file("counter"))
	h.must(err)
	h.must(os.WriteFile(h.file("counter.new"), append(b, 0), 0o755)) //nolint:gosec // for the other user
	h.must(os.Rename(h.file("counter.new"), h.file("counter")))
	dev.until("shop runs as it is now")
	if out := h.run("bifrost", "apps"); !strings.Contains(out, "shop/counter/1") || !strings.Contains(out, "running") {
		t.Errorf("bifrost apps: %s", out)
	}
	dev.end()
	if left := h.processes(); len(left) > 0 {
		t.Error("processes are left:", left)
	}
	if left, _ := filepath.Glob(filepath.Join(h.state, "*.sock")); len(left) > 0 {
		t.Error("sockets are left:", left)
	}
	if left, _ := os.ReadDir(h.file("tmp")); len(left) > 0 {
		t.Error("files are left:", left)
	}
	dev = h.start("bifrost", "dev", "--dir", h.state, "app.yaml")
	dev.until("serves Counter")
	if got := dev.fromOutside("Counter/add", `{"account": 8, "amounts": "AQI="}`); got != "3" {
		t.Errorf("from outside, after a restart: %s", got)
	}
	if out := h.run("counter", "totals"); strings.TrimSpace(out) != "7 300\n8 3" {
		t.Errorf("after a restart: %s", out)
	}
	if out := h.run("counter", "add", "--account", "7", "--amount", "5", "--verbose"); !strings.Contains(out, "305") {
		t.Errorf("after a restart: %s", out)
	}
	dev.end()
}

// What is wrong is said before anything starts, and leaves nothing.
func TestDev_Mistakes(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	app := filepath.Join(t.TempDir(), "app.yaml")
	if err := os.WriteFile(app, []byte(counterApp), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		"build it":       {app},
		"no such file":   {"none.yaml"},
		"shorter path":   {"--dir", filepath.Join(t.TempDir(), strings.Repeat("long/", 30))},
		"TLS":            {"--page", "0.0.0.0:0"},
		"want HOST:PORT": {"--page", "x"},
		"--ingress":      {"--ingress", "0.0.0.0:0"},
	} {
		root := newRoot()
		root.SetArgs(append([]string{"dev"}, args...))
		if err := root.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", args, err, want)
		}
	}
	if left, _ := os.ReadDir(os.TempDir()); len(left) > 0 {
		t.Error("files are left:", left)
	}
}
