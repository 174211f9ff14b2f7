package simrack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"sync"

	"github.com/bifrost-rack/bifrost/daemon"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/rpc/heir"
)

// Program is what a rack runs in place of a binary: a function that joins by the
// joiner it is given, and ends soon after ctx has ended. A node that it has not
// closed by then has crashed.
type Program func(ctx context.Context, j join.Joiner, s control.Start) error

// runner starts programs for the daemon of one blade: a daemon.Runner.
type runner struct {
	programs map[string]Program
	host     join.Host // set before the daemon runs
	group    *group

	mu      sync.Mutex
	lastPID int
	running map[string]*process // by the names of their starts
}

// Run implements daemon.Runner.
func (r *runner) Run(s control.Start, _ io.Writer) (daemon.Process, error) {
	f := r.programs[filepath.Base(s.Args[0])]
	if s.Heir {
		f = func(ctx context.Context, j join.Joiner, s control.Start) error {
			return heir.Run(join.NewContext(ctx, j), s.Services...)
		}
	}
	if f == nil {
		return nil, fmt.Errorf("there is no program %q", s.Args[0])
	}
	return r.run(f, s, s.Name), nil
}

// Check implements daemon.Runner.
func (r *runner) Check(s control.Start) error {
	if name := filepath.Base(s.Args[0]); r.programs[name] == nil {
		return fmt.Errorf("there is no program %q", name)
	}
	return nil
}

// run starts a program; instance is the name under which the daemon has started
// it, "" if somebody else has.
func (r *runner) run(f Program, s control.Start, instance string) *process {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lastPID++
	p := &process{pid: r.lastPID, host: r.host, instance: instance, done: make(chan struct{})}
	ctx, stop := context.WithCancelCause(r.group.ctx)
	p.stop = stop
	r.running[s.Name] = p
	r.group.wg.Go(func() {
		defer close(p.done)
		p.err = f(ctx, p, s)
		stop(nil)
		p.crash("the program has ended")
	})
	return p
}

// killAll kills what runs.
func (r *runner) killAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.running {
		p.Kill()
	}
}

// ErrKilled is the cause of a killed program's context.
var ErrKilled = errors.New("killed")

// process is a program that runs: a daemon.Process, and the join.Joiner of the
// program.
type process struct {
	pid      int
	host     join.Host
	instance string
	stop     context.CancelCauseFunc
	done     chan struct{}
	err      error // after done

	mu    sync.Mutex
	nodes []join.Hosted
}

// Join implements join.Joiner.
func (p *process) Join(ctx context.Context, name string) (join.Session, error) {
	n, err := p.host.Host(ctx, join.Program{Name: name, Instance: p.instance})
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.nodes = append(p.nodes, n)
	return n, nil
}

func (p *process) crash(why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, n := range p.nodes {
		n.Exited(why) // nothing, for one that was closed
	}
}

func (p *process) PID() int { return p.pid }

func (p *process) UID() uint32 { return 0 }

func (p *process) Terminate() { p.stop(nil) }

// Kill ends the program's nodes at once, and tells it.
func (p *process) Kill() {
	p.crash("killed")
	p.stop(ErrKilled)
}

func (p *process) Done() <-chan struct{} { return p.done }

func (p *process) Err() error { return p.err }

// Run runs a program on a compute blade as a person does, under a name that no
// other program of the blade has. The Gatekeeper does not start it again.
func (r *Rack) Run(blade, name string, f Program) (daemon.Process, error) {
	l, err := r.compute(blade)
	if err != nil {
		return nil, err
	}
	return l.runner.run(f, control.Start{Name: name}, ""), nil
}

// Kill kills the program that a blade runs under a name, as kill -9 does, and
// waits for its end.
func (r *Rack) Kill(blade, name string) error {
	p, err := r.kill(blade, name)
	if err != nil {
		return err
	}
	<-p.done
	return nil
}

// KillSoon is Kill without waiting, so OnFrame may call it.
func (r *Rack) KillSoon(blade, name string) error {
	_, err := r.kill(blade, name)
	return err
}

func (r *Rack) kill(blade, name string) (*process, error) {
	l, err := r.compute(blade)
	if err != nil {
		return nil, err
	}
	l.runner.mu.Lock()
	p := l.runner.running[name]
	l.runner.mu.Unlock()
	if p == nil {
		return nil, fmt.Errorf("simrack: blade %s runs no %q", blade, name)
	}
	p.Kill()
	return p, nil
}
