package host

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/bifrost-rack/bifrost/host/hostwire"
	"github.com/bifrost-rack/bifrost/internal/child"
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

// process is the child of a host.
type process struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error // valid once done is closed
}

// childFD is the number of the child's descriptor.
const childFD = 3

// start starts a process with one end of a stream.
func start(command []string) (conn *net.UnixConn, p *process, err error) {
	conn, theirs, err := child.Pair()
	if err != nil {
		return nil, nil, err
	}
	defer theirs.Close()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = os.Stdout, os.Stderr, []*os.File{theirs}
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, hostwire.Variable+"=") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, hostwire.Variable+"="+strconv.Itoa(childFD))
	p = &process{cmd: cmd, done: make(chan struct{})}
	if err := child.Start(cmd, nil, p.ended); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("start the child: %w", err), conn.Close())
	}
	go func() { // others may have the descriptor, too
		<-p.done
		_ = conn.CloseRead() // after what has been sent
	}()
	return conn, p, nil
}

// ended takes how the process has ended, and ends what it has left behind of its group.
func (p *process) ended(err error) {
	p.kill()
	if p.err = err; err == nil {
		p.err = errors.New("exit status 0")
	}
	close(p.done)
}

// kill kills the process and those of its group; one that is gone is no error.
func (p *process) kill() { _ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) }

// end waits for so long until the process has ended, and kills it then, with those of its group. It returns how the process has ended;
// nil, of one that was killed here.
func (p *process) end(patience time.Duration) error {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-p.done:
		return p.err
	case <-timer.C:
	}
	p.kill()
	<-p.done
	return nil
}
