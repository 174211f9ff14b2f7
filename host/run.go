package host

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/bifrost-rack/bifrost/host/hostwire"
	"github.com/bifrost-rack/bifrost/rpc"
)

// Run starts a command as the child of a host, joins the rack, and serves the child's services until ctx ends; then calls under way finish,
// the node leaves, and Run returns nil. If the child ends before, or says what it may not, Run returns an error: the program must end then at once.
// The child is gone when Run returns. What it prints goes where the program's own output goes.
func Run(ctx context.Context, command []string, cfg Config) error {
	conn, p, err := start(command)
	if err != nil {
		return err
	}
	err = serve(ctx, conn, cfg)
	// A child that has nothing more to do has seen the end of its connection.
	patience := farewell
	if err != nil && !errors.Is(err, ErrChild) {
		patience = 0
	}
	exit := p.end(patience)
	if errors.Is(err, ErrChild) && exit != nil {
		err = fmt.Errorf("%w (%s: %w)", err, filepath.Base(command[0]), exit)
	}
	return err
}

// farewell is how long a child may take to end when its host has closed the connection.
const farewell = 500 * time.Millisecond

func serve(ctx context.Context, conn net.Conn, cfg Config) error {
	c, err := Accept(ctx, conn, cfg)
	if err != nil {
		return err
	}
	node, err := rpc.Join(ctx, c.JoinOptions()...)
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	return c.Serve(ctx, node)
}

// child is a process of a host.
type child struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error // valid once done is closed
}

// childFD is the number of the child's descriptor.
const childFD = 3

// start starts a process with one end of a stream.
func start(command []string) (conn *net.UnixConn, p *child, err error) {
	conn, theirs, err := pair()
	if err != nil {
		return nil, nil, err
	}
	defer theirs.Close()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles, cmd.SysProcAttr = os.Stdout, os.Stderr, []*os.File{theirs}, attributes()
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, hostwire.Variable+"=") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, hostwire.Variable+"="+strconv.Itoa(childFD))
	p = &child{cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go p.live(started)
	if err := <-started; err != nil {
		return nil, nil, errors.Join(fmt.Errorf("start the child: %w", err), conn.Close())
	}
	go func() { // others may have the descriptor, too
		<-p.done
		_ = conn.CloseRead() // after what has been sent
	}()
	return conn, p, nil
}

// live starts the process and waits for its end. Linux kills the process when the thread that has started it ends, so that thread stays.
func (p *child) live(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := p.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	if p.err = p.cmd.Wait(); p.err == nil {
		p.err = errors.New("exit status 0")
	}
	close(p.done)
}

// end waits for so long until the process has ended, and kills it then, with those of its group. It returns how the process has ended;
// nil, of one that was killed here.
func (p *child) end(patience time.Duration) error {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-p.done:
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) // what it has left behind
		return p.err
	case <-timer.C:
	}
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	<-p.done
	return nil
}

// pair makes a stream. The second end is for the child.
func pair() (*net.UnixConn, *os.File, error) {
	syscall.ForkLock.RLock()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fds[0])
		syscall.CloseOnExec(fds[1])
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "child of the host"), os.NewFile(uintptr(fds[1]), "host") //nolint:gosec // descriptors
	defer ours.Close()                                                                                    // FileConn has a copy
	conn, err := net.FileConn(ours)
	if err != nil {
		return nil, nil, errors.Join(err, theirs.Close())
	}
	return conn.(*net.UnixConn), theirs, nil // it is one
}
