package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/bifrost-rack/bifrost/internal/join"
)

// The way of a stranger: a first service is written, builds, passes its test, and runs for an ordinary user; its calls happen once though it
// is killed, and its state outlives the rack, also one that is killed.
func TestNew(t *testing.T) {
	h := newHome(t)
	checkout, err := filepath.Abs("../..")
	h.must(err)
	app := h.file("greet")
	h.tool(h.dir, h.file("bin", "bifrost"), "new", "greet", "--checkout", checkout)
	if out, err := h.command("bifrost", "new", "greet", "--checkout", checkout).CombinedOutput(); err == nil || !strings.Contains(string(out), "has files already") {
		t.Errorf("a second one in the directory: %v, %s", err, out)
	}
	t.Setenv("GOFLAGS", "-trimpath") // as the tests build
	t.Setenv("GOPROXY", "off")       // all that it needs is here
	h.tool(app, "make", "test", "build")
	h.must(os.Rename(filepath.Join(app, "greet"), h.file("bin", "greet")))
	h.must(os.Link(h.file("bin", "greet"), filepath.Join(app, "greet")))
	h.own()
	dev := h.start("bifrost", "dev", "--dir", h.state, filepath.Join(app, "app.yaml"))
	dev.until("serves Greeter")
	hello := func(want string) {
		t.Helper()
		if out := h.run("greet", "hello", "ada"); out != "Hello ada, for the time number "+want+"\n" {
			t.Errorf("want number %s: %s", want, out)
		}
	}
	hello("1")
	h.must(syscall.Kill(h.program(), syscall.SIGKILL))
	hello("2")
	dev.end()
	dev = h.start("bifrost", "dev", "--dir", h.state, filepath.Join(app, "app.yaml"))
	dev.until("serves Greeter")
	hello("3")
	dev.kill()
	dev = h.start("bifrost", "dev", "--dir", h.state, filepath.Join(app, "app.yaml"))
	dev.until("serves Greeter")
	hello("4")
	if out := h.run("greet", "visits"); out != "ada 4\n" {
		t.Errorf("visits: %s", out)
	}
	cmd := h.command("greet", "visits")
	cmd.Env = append(cmd.Env, join.SocketVariable+"="+h.file("none.sock"))
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "start `bifrost dev` again") {
		t.Errorf("without a rack: %v, %s", err, out)
	}
	dev.end()
}

func TestNew_Mistakes(t *testing.T) {
	for want, args := range map[string][]string{
		"is no name":      {filepath.Join(t.TempDir(), "1st"), "--checkout", "../.."},
		"is no path":      {filepath.Join(t.TempDir(), "a"), "--checkout", "../..", "--module", "fmt"},
		"has files":       {t.TempDir() + "/..", "--checkout", "../.."},
		"no source":       {filepath.Join(t.TempDir(), "a"), "--checkout", t.TempDir()},
		"with --checkout": {filepath.Join(t.TempDir(), "a")}, // this binary is of no release
		"takes DIRECTORY": {},
	} {
		root := newRoot()
		root.SetArgs(append([]string{"new"}, args...))
		if err := root.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", args, err, want)
		}
	}
}

// What a new module says of Go is what Bifröst's says.
func TestNew_GoVersion(t *testing.T) {
	b, err := os.ReadFile("../../go.mod")
	if err != nil || !strings.Contains(string(b), "\ngo "+goVersion+"\n") {
		t.Errorf("go.mod of Bifröst has another version than %s: %v", goVersion, err)
	}
}
