package daemon

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/internal/control"
)

// run starts a shell script and returns its output's lines as they come.
func run(t *testing.T, script string, env map[string]string) (Process, <-chan string) {
	t.Helper()
	r, w := io.Pipe()
	p, err := Exec{}.Run(control.Start{Name: "prog", Args: []string{"/bin/sh", "-c", script}, Env: env}, w)
	if err != nil {
		t.Fatal(err)
	}
	out := make(chan string, 10)
	go func() {
		defer close(out)
		for s := bufio.NewScanner(r); s.Scan(); {
			out <- s.Text()
		}
	}()
	t.Cleanup(func() {
		p.Kill()
		<-p.Done()
		w.Close()
		for range out {
		}
	})
	return p, out
}

func TestExecEnvironmentAndOutput(t *testing.T) {
	t.Setenv("INHERITED", "yes")
	p, out := run(t, `echo $BIFROST_PROGRAM $INHERITED $GIVEN; echo to stderr >&2; exit 3`, map[string]string{"GIVEN": "too"})
	for _, want := range []string{"prog yes too", "to stderr"} {
		if got := <-out; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	<-p.Done()
	if err := p.Err(); err == nil || err.Error() != "exit status 3" {
		t.Errorf("ended with %v", err)
	}
	p.Terminate() // after the end: nothing
	p.Kill()
}

// Here the daemon's own program is the test: an heir tells how it was called.
func init() {
	if len(os.Args) > 2 && os.Args[1] == "compute" && os.Args[2] == "heir" {
		fmt.Println(strings.Join(os.Args[1:], " "), os.Getenv("BIFROST_PROGRAM"), os.Getenv("GIVEN"))
		os.Exit(0)
	}
}

// TestExecHeir: an heir is the daemon's own program, whatever the node's program was.
func TestExecHeir(t *testing.T) {
	var out strings.Builder
	p, err := Exec{}.Run(control.Start{
		Name: "prog", Args: []string{"/missing"}, Env: map[string]string{"GIVEN": "too"}, Binary: "x", Services: []string{"S", "T"}, Heir: true,
	}, &out)
	if err != nil {
		t.Fatal(err)
	}
	if <-p.Done(); p.Err() != nil || out.String() != "compute heir S T prog \n" {
		t.Errorf("%q, %v", out.String(), p.Err())
	}
}

func TestExecSignals(t *testing.T) {
	p, out := run(t, `trap 'echo bye; exit 0' TERM; echo ready; sleep 1000 & wait`, nil)
	if got := <-out; got != "ready" {
		t.Fatalf("got %q", got)
	}
	p.Terminate()
	if got := <-out; got != "bye" {
		t.Errorf("got %q", got)
	}
	if <-p.Done(); p.Err() != nil {
		t.Errorf("ended with %v", p.Err())
	}

	p, out = run(t, `trap '' TERM; echo ready; sleep 1000`, nil)
	<-out
	p.Terminate()
	p.Kill()
	if <-p.Done(); p.Err() == nil || !strings.Contains(p.Err().Error(), "killed") {
		t.Errorf("ended with %v", p.Err())
	}
}

// TestExecEndsTheGroup: a process that the program leaves behind ends with it.
func TestExecEndsTheGroup(t *testing.T) {
	p, out := run(t, `sleep 1000 & echo $!; exit 0`, nil)
	child := <-out
	<-p.Done()
	limit := time.After(time.Minute)
	for alive(child) {
		select {
		case <-limit:
			t.Fatalf("process %s lives on", child)
		default:
		}
	}
}

// alive reports whether a process runs; a zombie does not.
func alive(pid string) bool {
	b, err := os.ReadFile("/proc/" + pid + "/stat")
	return err == nil && !strings.Contains(string(b), ") Z ")
}

// TestExecDoesNotOutliveTheDaemon kills a daemon, which this test's binary is
// when helperVariable is set, and finds its program dead.
func TestExecDoesNotOutliveTheDaemon(t *testing.T) {
	cmd := exec.Command(os.Args[0], "-test.run=none")
	cmd.Env = append(os.Environ(), helperVariable+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s := bufio.NewScanner(out)
	if !s.Scan() || !alive(s.Text()) {
		t.Fatalf("program %q does not run", s.Text())
	}
	cmd.Process.Kill()
	cmd.Wait()
	limit := time.After(time.Minute)
	for alive(s.Text()) {
		select {
		case <-limit:
			t.Fatalf("process %s lives on", s.Text())
		default:
		}
	}
}

const helperVariable = "BIFROST_TEST_DAEMON"

// helper is the daemon: it starts a program, prints its id, and waits for death.
func helper() {
	p, err := Exec{}.Run(control.Start{Name: "prog", Args: []string{"sleep", "1000"}}, io.Discard)
	if err != nil {
		panic(err)
	}
	runtime.GC() // threads come and go; the program's stays
	fmt.Println(p.PID())
	<-p.Done()
}

func TestExecMissing(t *testing.T) {
	_, err := Exec{}.Run(control.Start{Name: "x", Args: []string{"/no/such/program"}}, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "/no/such/program") {
		t.Errorf("error %v", err)
	}
}

// TestExecLocates: a bare name is a program beside the daemon's binary first.
func TestExecLocates(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for program, want := range map[string]string{filepath.Base(self): self, "./x": "./x", "/bin/sh": "/bin/sh", "sh": "sh"} {
		if got := locate(program); got != want {
			t.Errorf("%s: %s, want %s", program, got, want)
		}
	}
}
