package rack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/bifrost-rack/bifrost/p4switch/shared/sdnotify"
	"github.com/bifrost-rack/bifrost/rack/internal/kernel"
	"github.com/bifrost-rack/bifrost/rack/plan"
)

// pollInterval is how often readiness is looked for where nothing announces it.
const pollInterval = 10 * time.Millisecond

// logTail is how many lines of a process's log go into an error.
const logTail = 10

// child is a process that is being started.
type child struct {
	plan.Process
	id     kernel.Process
	log    string             // path of its output
	notify *sdnotify.Listener // for plan.Notifies
	exited chan struct{}      // closed when it has ended
	status error              // how, once exited is closed
}

// startAll starts processes and returns when all are ready. What runs is
// recorded before anything is waited for.
func (h *Host) startAll(ctx context.Context, l *lockedRack, s *state, ps []plan.Process) error {
	var children []*child
	defer func() {
		for _, c := range children {
			c.stopListening()
		}
	}()
	for _, p := range ps {
		c, err := startChild(l.dir, p)
		if err != nil {
			return errors.Join(err, l.save(s))
		}
		children = append(children, c)
		s.Running[p.Name] = c.id
	}
	if err := l.save(s); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	for _, c := range children {
		g.Go(func() error { return h.await(ctx, c) })
	}
	return g.Wait()
}

// startChild starts one process, detached from this one: in a session of its
// own, with its output in a file.
func startChild(dir string, p plan.Process) (_ *child, err error) {
	c := &child{Process: p, log: logPath(dir, p.Name), exited: make(chan struct{})}
	cmd := exec.Command(p.Args[0], p.Args[1:]...)
	cmd.Env = environment(p.Env)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := os.OpenFile(c.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("log of %s: %w", p.Name, err)
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	cmd.Stdout, cmd.Stderr = out, out
	if p.Ready == plan.Notifies {
		path := notifyPath(dir, p.Name)
		removeSocket(path)
		if c.notify, err = sdnotify.Listen(path); err != nil {
			return nil, fmt.Errorf("start %s: %w", p.Name, err)
		}
		cmd.Env = append(cmd.Env, sdnotify.Variable+"="+path)
	}
	removeSocket(p.Socket)
	if p.Listen != "" {
		socket, err := listening(p.Listen)
		if err != nil {
			c.stopListening()
			return nil, fmt.Errorf("start %s: %w", p.Name, err)
		}
		defer socket.Close()
		cmd.ExtraFiles = []*os.File{socket} // plan.Inherited
	}
	if err := c.start(cmd); err != nil {
		c.stopListening()
		return nil, fmt.Errorf("start %s: %w", p.Name, err)
	}
	return c, nil
}

// listening is a TCP socket that listens in the network of this program.
func listening(address string) (*os.File, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	f, err := l.(*net.TCPListener).File()
	return f, errors.Join(err, l.Close())
}

// start starts the command in its namespace. A goroutine reaps it when it ends,
// if this program is still there by then; otherwise init does.
func (c *child) start(cmd *exec.Cmd) error {
	ns, err := kernel.OpenNamespace(c.Namespace)
	if err != nil {
		return err
	}
	err = ns.Do(cmd.Start)
	if err = errors.Join(err, ns.Close()); err != nil {
		return err
	}
	c.id, err = kernel.Identify(cmd.Process.Pid) // its id is its own until it is reaped
	go func() {
		c.status = cmd.Wait()
		close(c.exited)
	}()
	return err
}

// removeSocket removes what a killed process has left, so that the address is
// free. If it cannot, binding to it will say why.
func removeSocket(path string) {
	if path != "" {
		_ = os.Remove(path)
	}
}

func (c *child) stopListening() {
	if c.notify != nil {
		_ = c.notify.Close() // the rack's directory goes as a whole in the end
	}
}

// environment is this program's own with additions.
func environment(add map[string]string) []string {
	var env []string
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		if _, replaced := add[name]; !replaced && name != sdnotify.Variable {
			env = append(env, kv)
		}
	}
	for name, value := range add {
		env = append(env, name+"="+value)
	}
	return env
}

// await waits until the child is ready. Its end, or the time-out, is an error
// that shows the last it has printed.
func (h *Host) await(ctx context.Context, c *child) error {
	ready := make(chan error, 1)
	waiting, cancel := context.WithTimeout(ctx, h.timeout())
	defer cancel()
	go func() { ready <- c.waitReady(waiting) }()
	select {
	case err := <-ready:
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			return c.failed(fmt.Sprintf("%s is not ready after %v", c.Name, h.timeout()))
		}
		return err
	case <-c.exited:
		if c.finished() {
			return nil
		}
		return c.failed(fmt.Sprintf("%s has ended: %s", c.Name, describe(c.status)))
	}
}

// finished reports whether an ended child is a program that has done its work.
func (c *child) finished() bool {
	return c.Stage == plan.StagePrograms && c.status == nil && (c.Ready == plan.Started || printed(c.log, c.Text))
}

func describe(status error) string {
	if status == nil {
		return "exit status 0"
	}
	return status.Error()
}

func (c *child) waitReady(ctx context.Context) error {
	switch c.Ready {
	case plan.Notifies:
		return c.notify.Wait(ctx)
	case plan.Listens:
		return poll(ctx, func() bool { return connects(c.Socket) })
	case plan.Prints:
		return poll(ctx, func() bool { return printed(c.log, c.Text) })
	default: // it is ready when it has started
		return nil
	}
}

// poll calls done now and then until it returns true or ctx ends.
func poll(ctx context.Context, done func() bool) error {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for !done() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
	return nil
}

func connects(socket string) bool {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return false
	}
	return conn.Close() == nil
}

// printed reports whether a complete line of a log holds text.
func printed(log, text string) bool {
	b, err := os.ReadFile(log)
	if err != nil {
		return false
	}
	end := bytes.LastIndexByte(b, '\n')
	return end >= 0 && bytes.Contains(b[:end], []byte(text))
}

// failed makes the error of a child that did not come up.
func (c *child) failed(msg string) error {
	if last := lastLines(c.log, logTail); last != "" {
		msg += "; it printed last:\n" + indent(last)
	}
	return &Error{Msg: msg, Err: ErrNotReady}
}

// lastLines returns the last n lines of a file, "" if it cannot be read.
func lastLines(path string, n int) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	var b strings.Builder
	if tail(&b, f, n) != nil {
		return ""
	}
	return strings.TrimRight(b.String(), "\n")
}

func indent(s string) string { return "    " + strings.ReplaceAll(s, "\n", "\n    ") }
