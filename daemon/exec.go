package daemon

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/bifrost-rack/bifrost/internal/child"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/join"
)

// Exec runs programs as processes. A process gets the daemon's environment, what
// Start adds to it, and join.ProgramVariable; it leads a process group of its own,
// which is ended as a whole; and on Linux it does not outlive the daemon, though that is killed.
type Exec struct {
	// Env is added to the daemon's environment, as KEY=VALUE.
	Env []string
	// Binaries keeps what programs run, for starts that name the content (control.Start.Binary);
	// nil refuses those.
	Binaries *Binaries
}

// Run implements Runner.
func (e Exec) Run(s control.Start, out io.Writer) (Process, error) {
	cmd, err := e.command(&s)
	if err != nil {
		return nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = w, w
	p := &process{cmd: cmd, uid: uint32(os.Geteuid()), output: r, copied: make(chan struct{}), done: make(chan struct{})}
	err = child.Start(cmd, dropPrivileges, p.leave)
	w.Close() // the process has its own
	if err != nil {
		r.Close() // nothing is lost
		return nil, fmt.Errorf("%s: %w", s.Args[0], err)
	}
	go func() {
		defer close(p.copied)
		_, _ = io.Copy(out, r) // ends with the last writer, or the deadline of leave
		_ = r.Close()
	}()
	return p, nil
}

// command is what a start runs. An heir is the daemon's own program, with the arguments compute heir SERVICE...
func (e Exec) command(s *control.Start) (*exec.Cmd, error) {
	env := append(append(os.Environ(), e.Env...), join.ProgramVariable+"="+s.Name)
	if s.Heir {
		self, err := ownProgram()
		if err != nil {
			return nil, err
		}
		cmd := exec.Command(self, append([]string{"compute", "heir"}, s.Services...)...)
		cmd.Env = env
		return cmd, nil
	}
	path, err := e.find(s)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(path, s.Args[1:]...)
	if s.Binary != "" {
		cmd.Args[0] = s.Args[0] // a kept file is called by its hash
	}
	for k, v := range s.Env {
		env = append(env, k+"="+v)
	}
	cmd.Env = env
	return cmd, nil
}

// find returns the file that a start is to run.
func (e Exec) find(s *control.Start) (string, error) {
	switch {
	case s.Binary == "":
		return locate(s.Args[0]), nil
	case e.Binaries == nil:
		return "", fmt.Errorf("%s: the deployment wants the file with SHA-256 %.12s…, and this daemon keeps no files of programs: start the daemon with --program-files, or deploy with --any-binary", s.Args[0], s.Binary)
	}
	return e.Binaries.Find(s.Args[0], s.Binary)
}

// locate finds a program: a path as it is, a bare name beside the daemon's own
// binary, where the examples are built, else on PATH.
func locate(program string) string {
	if strings.Contains(program, "/") {
		return program
	}
	if self, err := os.Executable(); err == nil {
		if path, err := exec.LookPath(filepath.Join(filepath.Dir(self), program)); err == nil {
			return path
		}
	}
	return program
}

// process is a Process of the operating system.
type process struct {
	cmd    *exec.Cmd
	uid    uint32
	output *os.File
	copied chan struct{} // closed when its output has been passed on
	done   chan struct{}
	err    error // after done

	mu    sync.Mutex
	ended bool // its id may belong to another
}

// leave takes how the process has ended.
func (p *process) leave(err error) {
	p.err = err
	p.Kill() // what it has left behind of its group
	p.mu.Lock()
	p.ended = true
	p.mu.Unlock()
	_ = p.output.SetReadDeadline(time.Now().Add(outputPatience)) // pipes have deadlines
	<-p.copied
	close(p.done)
}

func (p *process) PID() int { return p.cmd.Process.Pid }

func (p *process) UID() uint32 { return p.uid }

func (p *process) Terminate() { p.signal(syscall.SIGTERM) }

func (p *process) Kill() { p.signal(syscall.SIGKILL) }

// signal sends a signal to the process group; one that is gone is no error.
func (p *process) signal(s syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.ended {
		_ = syscall.Kill(-p.PID(), s)
	}
}

func (p *process) Done() <-chan struct{} { return p.done }

func (p *process) Err() error { return p.err }
