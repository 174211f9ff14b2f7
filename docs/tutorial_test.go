package docs_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/shared/privilege"
)

// shell is a shell that runs a page's commands one after the other.
type shell struct {
	*testing.T
	dir    string
	script *os.File
	lines  chan string // what it prints; closed at its end
}

// isolated has a command see no other racks, and nothing of it outlive the test: it
// gets namespaces of its own for mounts and processes. There $1 is sudo's configuration, and
// /usr/local/bin can be installed to; the machine's bifrost is not there.
var isolated = []string{
	"unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-ec",
	`mount -t tmpfs none /run
mkdir /run/local && mount --bind /usr/local/bin /run/local && mount -t tmpfs none /usr/local/bin
ln -s /run/local/* /usr/local/bin/ && rm -f /usr/local/bin/bifrost
mount --bind "$1" /etc/sudoers && shift && exec "$@"`, "sh",
}

// sudoers is how Debian configures sudo: a command finds nothing but these directories, whatever
// PATH its user has.
const sudoers = `Defaults env_reset
Defaults mail_badpass
Defaults secure_path="` + stockPath + `"
Defaults use_pty
root ALL=(ALL:ALL) ALL
%sudo ALL=(ALL:ALL) ALL
`

// stockPath is where programs are before anybody has changed anything.
const stockPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// newShell starts a shell in an empty directory outside of the repository.
func newShell(t *testing.T, root bool) *shell {
	t.Helper()
	checkout, err := filepath.Abs("..")
	must(t, err)
	s := &shell{T: t, dir: t.TempDir(), lines: make(chan string, 1000)}
	args := []string{"bash", "/dev/fd/3"}
	if root {
		privilege.Program(t, "sudo")
		file := filepath.Join(t.TempDir(), "sudoers")
		must(t, os.WriteFile(file, []byte(sudoers), 0o440)) //nolint:gosec // sudo wants this mode
		args = append(append(append([]string{}, isolated...), file), args...)
	}
	goTool, err := exec.LookPath("go")
	must(t, err)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), "BIFROST="+checkout, "PATH="+stockPath+":"+filepath.Dir(goTool))
	script, scriptEnd, err := os.Pipe()
	must(t, err)
	out, outEnd, err := os.Pipe()
	must(t, err)
	s.script = scriptEnd
	cmd.ExtraFiles, cmd.Stdout, cmd.Stderr = []*os.File{script}, outEnd, outEnd
	must(t, cmd.Start())
	script.Close()
	outEnd.Close()
	go func() {
		defer close(s.lines)
		for in := bufio.NewScanner(out); in.Scan(); {
			s.lines <- in.Text()
		}
	}()
	t.Cleanup(func() {
		scriptEnd.Close()
		_ = cmd.Process.Kill() // and with it all that it has started
		_ = cmd.Wait()
		out.Close()
	})
	return s
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// patience bounds how long a command may take on a machine that is busy with other
// tests.
const patience = 5 * time.Minute

// run runs a command and returns what it prints.
func (s *shell) run(command string) (out string, err error) {
	const mark = "@@ end of command, status "
	if _, err := fmt.Fprintf(s.script, "%s\nprintf '\\n%s%%d\\n' $?\n", command, mark); err != nil {
		return "", err
	}
	late := time.After(patience)
	for {
		select {
		case line, more := <-s.lines:
			if !more {
				return out, fmt.Errorf("the shell has ended")
			}
			if status, ok := strings.CutPrefix(line, mark); ok {
				if status != "0" {
					return out, fmt.Errorf("status %s", status)
				}
				return strings.TrimSuffix(out, "\n"), nil
			}
			out += line + "\n"
		case <-late:
			return out, fmt.Errorf("still running after %v", patience)
		}
	}
}

// follow does what a page says until the first command that needs root, if that is
// not allowed. It reports whether it came to the end.
func (s *shell) follow(page string, root bool) (all bool) {
	s.Helper()
	dir := s.dir
	for _, b := range blocks(s.T, page) {
		if b.file != "" {
			must(s.T, os.WriteFile(filepath.Join(dir, b.file), []byte(b.content), 0o600))
			continue
		}
		for _, step := range b.steps() {
			if strings.Contains(step.command, "sudo") && !root {
				return false
			}
			began := time.Now()
			out, err := s.run(step.command)
			if err != nil {
				s.Fatalf("%s:%d: $ %s\n%s%v", page, step.line, step.command, out, err)
			}
			s.Logf("%5.1fs $ %s", time.Since(began).Seconds(), step.command)
			if err := step.check(out); err != nil {
				s.Fatalf("%s: %v", page, err)
			}
		}
		at, err := s.run("pwd")
		must(s.T, err)
		dir = strings.TrimSpace(at)
	}
	return true
}

// TestTutorial is a new user who does what the tutorial says, in an empty directory.
func TestTutorial(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a program, and runs a rack for half a minute")
	}
	privilege.Program(t, "thrift")
	missing := privilege.Missing()
	s := newShell(t, missing == nil)
	if !s.follow("tutorial.md", missing == nil) {
		t.Log("NOT CHECKED from the first sudo on: ", missing)
		return
	}
	for _, mtu := range []int{1280, 1500, 9000} { // the page's rack has 65,535
		s.wallAt(mtu)
	}
}

// wallAt runs the tutorial's service, which the page has built, on a rack of an MTU: it
// is called, killed, and called again.
func (s *shell) wallAt(mtu int) {
	s.Helper()
	for _, step := range []struct{ command, want string }{
		{fmt.Sprintf(`sed "s/^mtu: .*/mtu: %d/; /^programs:/,\$d" $BIFROST/examples/rack.yaml >rack.yaml && grep -x "mtu: %d" rack.yaml`, mtu, mtu), "mtu: "},
		{"sudo bifrost rack up -c rack.yaml", "rack thesis"},
		{"sudo bifrost deploy app.yaml && until sudo bifrost services | grep -q ^Wall; do sleep 0.1; done", "wall"},
		{"sudo bifrost rack exec c1 -- ./wall post ada 40", "picture 40"},
		{"sudo pkill -KILL -x wall; sudo bifrost rack exec c1 -- ./wall look 7", "ada's picture"},
		{"sudo bifrost rack exec c1 -- ./wall post bob 10 && sudo bifrost rack exec c1 -- ./wall count", "map[ada:40 bob:10]"},
		{"sudo bifrost undeploy wall --delete-state && sudo bifrost rack down", ""},
	} {
		began := time.Now()
		out, err := s.run(step.command)
		if err != nil || !strings.Contains(out, step.want) {
			s.Fatalf("MTU %d: $ %s\n%s\nwant %q; %v", mtu, step.command, out, step.want, err)
		}
		s.Logf("%5.1fs $ %s", time.Since(began).Seconds(), step.command)
	}
}
