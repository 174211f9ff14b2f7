package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/duration"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/join"
)

// Runner starts programs. Exec is the one for processes.
type Runner interface {
	// Run starts a program. What the program prints goes to out, in lines.
	Run(s control.Start, out io.Writer) (Process, error)
	// Check says why a program could not be started, nil if nothing is known against it.
	Check(s control.Start) error
}

// Process is a running program. Methods may be called concurrently, and after
// its end.
type Process interface {
	PID() int
	// UID is the user that the program runs as.
	UID() uint32
	// Terminate asks the program to end; Kill ends it.
	Terminate()
	Kill()
	// Done is closed when the program has ended and its output is written; Err
	// then tells how.
	Done() <-chan struct{}
	Err() error
}

// program is one that the daemon has started.
type program struct {
	start   control.Start
	process Process
	out     io.WriteCloser // where it prints
	gone    chan struct{}  // closed when nothing of it is left here

	// Guarded by Compute.mu:
	spent bool   // its node has ended, so it is about to
	hung  string // why it was killed; "" if it was not
}

// goesOn reports whether the program is what a command to start it wants, or wanted:
// one that was overtaken by the start of a later incarnation must not end that.
func (p *program) goesOn(s control.Start) bool {
	same := p.start.Address == s.Address && p.start.After == s.After && p.start.Heir == s.Heir
	return !p.spent && (same || s.After < p.start.After)
}

// stop asks the program to end, and kills it when ctx ends.
func (p *program) stop(ctx context.Context) {
	p.process.Terminate()
	select {
	case <-p.process.Done():
		return
	case <-ctx.Done():
	}
	p.process.Kill()
	<-p.process.Done()
}

// start runs a program, after what is left of one of the same name has ended.
func (c *Compute) start(ctx context.Context, s control.Start) error {
	op := "start " + s.Name
	if err := c.starts(op); err != nil {
		return err
	}
	if s.Name == "" || len(s.Args) == 0 {
		return fault.New(fault.BadRequest, op, "a program needs a name and a command")
	}
	for {
		old, err := c.startOrGet(op, s)
		if old == nil {
			return err
		}
		old.process.Kill()
		select {
		case <-old.gone:
		case <-ctx.Done():
			return fault.FromContext(op, ctx.Err())
		}
	}
}

// starts reports why the blade starts no programs, nil if it does.
func (c *Compute) starts(op string) error {
	if c.cfg.Runner == nil {
		return fault.New(fault.Unsupported, op, "blade %s starts no programs", c.cfg.Name)
	}
	return nil
}

// check says why a program could not be started here.
func (c *Compute) check(s control.Start) error {
	op := "check " + s.Name
	if err := c.starts(op); err != nil {
		return err
	}
	if len(s.Args) == 0 {
		return fault.New(fault.BadRequest, op, "a program needs a command")
	}
	if err := c.cfg.Runner.Check(s); err != nil {
		return fault.New(fault.Unavailable, op, "%v", err)
	}
	return nil
}

// startOrGet starts a program that does not run, or returns the one that has to end
// before.
func (c *Compute) startOrGet(op string, s control.Start) (old *program, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return nil, stopping(op)
	}
	if old := c.programs[s.Name]; old != nil {
		if old.goesOn(s) {
			return nil, nil
		}
		return old, nil
	}
	out := c.outputOf(s.Name)
	process, err := c.cfg.Runner.Run(s, out)
	if err != nil {
		fmt.Fprintf(out, "bifrost: %s does not start: %v\n", s.Name, err) // for those who look for its output
		err = errors.Join(err, out.Close())
		return nil, &fault.Error{Code: fault.Unavailable, Op: op, Err: err}
	}
	p := &program{start: s, process: process, out: out, gone: make(chan struct{})}
	c.programs[s.Name] = p
	c.reg.log.Info("program started", "program", s.Name, "pid", process.PID(), "command", strings.Join(s.Args, " "))
	c.tasks.Go(func() { c.watch(p) })
	c.tasks.Go(func() { c.awaitReady(c.work, p) })
	return nil, nil
}

// watch takes note of a program's end.
func (c *Compute) watch(p *program) {
	select {
	case <-p.process.Done():
	case <-c.work.Done(): // the farewell is over
		p.process.Kill()
		<-p.process.Done()
	}
	if err := errors.Join(p.out.Close(), c.lastWords(p)); err != nil {
		c.reg.log.Warn("program's output", "program", p.start.Name, "err", err)
	}
	c.reg.log.Info("program ended", "program", p.start.Name, "pid", p.process.PID(), "err", p.process.Err())
	c.mu.Lock()
	if c.programs[p.start.Name] == p {
		delete(c.programs, p.start.Name)
	}
	close(p.gone)
	c.mu.Unlock()
	c.bury(p)
}

// lastWords tells those who look for a program's output how it has failed, on a line of its own.
func (c *Compute) lastWords(p *program) error {
	if p.process.Err() == nil {
		return nil
	}
	out := c.outputOf(p.start.Name)
	_, err := fmt.Fprintf(out, "bifrost: %s has ended: %s\n", p.start.Name, ending(p.process.Err()))
	return errors.Join(err, out.Close())
}

// bury ends the node of a program that has ended without a leave.
func (c *Compute) bury(p *program) {
	for _, n := range c.allNodes() {
		if n.started == p {
			n.Exited(fmt.Sprintf("program %s has ended: %s", p.start.Name, ending(p.process.Err())))
		}
	}
}

// ending says how a program has ended.
func ending(err error) string {
	if err == nil {
		return "exit status 0"
	}
	return err.Error()
}

// stopProgram ends a program; one that does not run is no error.
func (c *Compute) stopProgram(ctx context.Context, s control.Stop) error {
	p := c.program(s.Name)
	if p == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, duration.Times(int64(s.GraceMS), time.Millisecond))
	defer cancel()
	p.stop(ctx)
	return nil
}

// mayJoin refuses a program that says it is one that the daemon has started, and is
// not: it would be a deployment's node, and answer in its stead. The caller holds c.mu.
func (c *Compute) mayJoin(p join.Program) error {
	if p.Instance == "" {
		return nil
	}
	started := c.programs[p.Instance]
	switch {
	case started == nil:
		return fault.New(fault.PermissionDenied, "join", "blade %s runs no program %s; unset %s to join under a name of your own",
			c.cfg.Name, p.Instance, join.ProgramVariable)
	case started.process.UID() != p.UID:
		return fault.New(fault.PermissionDenied, "join", "program %s runs as user %d, not %d; unset %s to join under a name of your own",
			p.Instance, started.process.UID(), p.UID, join.ProgramVariable)
	}
	return nil
}

// program returns a running program by name, nil if there is none.
func (c *Compute) program(name string) *program {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.programs[name]
}

func (c *Compute) allPrograms() []*program {
	c.mu.Lock()
	defer c.mu.Unlock()
	return sortedValues(c.programs, strings.Compare)
}

// sortedValues returns a map's values in the order of their keys.
func sortedValues[K comparable, V any](m map[K]V, compare func(a, b K) int) []V {
	out := make([]V, 0, len(m))
	for _, k := range slices.SortedFunc(maps.Keys(m), compare) {
		out = append(out, m[k])
	}
	return out
}
