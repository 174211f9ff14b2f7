package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/bifrost-rack/bifrost/bench/machine"
	"github.com/bifrost-rack/bifrost/bench/topology"
	"github.com/bifrost-rack/bifrost/examples/counter/tally"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/rack"
	"github.com/bifrost-rack/bifrost/rack/config"
	"github.com/bifrost-rack/bifrost/rack/plan"
)

// Times of a run.
const (
	callTimeout  = 30 * time.Second // of a call: the rack is alive or it is not
	leaveTimeout = 10 * time.Second // of a node that leaves
	mostBetween  = 5 * time.Second  // two samples
	leastBetween = 200 * time.Millisecond
)

// options say how to soak.
type options struct {
	duration, every time.Duration
	callers         int
	least           float64 // calls per second
	rack, bifrost   string
	progress        func(format string, args ...any)
}

func (o *options) check() error {
	switch {
	case os.Geteuid() != 0:
		return errors.New("a rack needs network namespaces, which needs root: run it with sudo")
	case o.callers < 2 || o.callers > tally.Accounts:
		return fmt.Errorf("--callers %d: want 2 to %d", o.callers, tally.Accounts)
	case o.duration < 5*time.Second:
		return fmt.Errorf("--for %v: want 5s at least, or there is nothing to compare", o.duration)
	}
	if o.every == 0 {
		o.every = min(max(o.duration/100, leastBetween), mostBetween)
	}
	if o.every < leastBetween || o.every > o.duration/25 {
		return fmt.Errorf("--every %v: want %v to a 25th of --for (%v)", o.every, leastBetween, o.duration/25)
	}
	return nil
}

// clients is how many processes the callers are spread over: one on each of these
// blades.
var clients = []string{"c1", "c2"}

// run is one run of the soak.
type run struct {
	options
	self    string // path of this program
	host    *rack.Host
	sampler *sampler
}

// soak makes a rack, has it called, and removes it. The result is filled in as far as
// it got, also on an error.
func soak(ctx context.Context, o options) (r result, err error) {
	if err := o.check(); err != nil {
		return r, err
	}
	x := &run{options: o}
	if x.self, err = os.Executable(); err != nil {
		return r, err
	}
	if o.bifrost == "" {
		dir, err := os.MkdirTemp("", "soak")
		if err != nil {
			return r, err
		}
		defer func() { _ = os.RemoveAll(dir) }()
		o.progress("building bifrost")
		o.bifrost = filepath.Join(dir, "bifrost")
		if out, err := exec.CommandContext(ctx, "go", "build", "-o", o.bifrost, "github.com/bifrost-rack/bifrost/cmd/bifrost").CombinedOutput(); err != nil {
			return r, fmt.Errorf("build bifrost: %w\n%s", err, out)
		}
	}
	x.host = &rack.Host{Bifrost: o.bifrost, Dir: topology.DefaultDir}
	release, err := topology.Claim(ctx, x.host, o.rack, o.progress)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, release()) }()
	o.progress("making the rack %s", o.rack)
	if err := x.host.Up(ctx, x.config()); err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, x.host.Down(context.WithoutCancel(ctx), o.rack)) }()
	r = result{
		Seconds: o.duration.Seconds(), Callers: o.callers, Machine: machine.Describe(), LoadBefore: machine.Load(), Least: o.least,
	}
	err = x.work(ctx, &r)
	return r, err
}

// dir is where the rack's sockets are.
func (x *run) dir() string { return filepath.Join(x.host.Dir, x.rack) }

// metricsAddr is where a program of the soak serves its metrics.
func (x *run) metricsAddr(program string) string { return "unix:" + plan.MetricsPath(x.dir(), program) }

// config describes the rack: two blades with callers, two with services, and two with
// memory.
func (x *run) config() config.Config {
	c := config.Thesis()
	c.Name, c.Blades, c.Programs = x.rack, nil, nil
	for _, name := range []string{"c1", "c2", "s1", "s2"} {
		c.Blades = append(c.Blades, config.Blade{Name: name, Kind: control.Compute, Nodes: config.DefaultNodes})
	}
	for _, name := range []string{"m1", "m2"} {
		c.Blades = append(c.Blades, config.Blade{Name: name, Kind: control.Memory, Capacity: config.DefaultCapacity})
	}
	for _, p := range []struct {
		name, blade, service string
		stateful             bool
	}{{"ping", "s1", pingService, false}, {"arrays", "s1", arraysService, false}, {"counter", "s2", tally.CounterName, true}} {
		c.Programs = append(c.Programs, config.Program{
			Name: p.name, Blade: p.blade, Services: []string{p.service}, Stateful: p.stateful,
			Command: []string{x.self, "serve", p.service, "--metrics-addr", x.metricsAddr(p.name)},
		})
	}
	return c
}

// client is one process of callers.
type client struct {
	name string
	cmd  *exec.Cmd
	out  bytes.Buffer // what it says when it fails
	done chan struct{}
	err  error // once done is closed
}

// start starts a process of callers on a blade.
func (x *run) start(blade string, first, count int) (*client, error) {
	c := &client{name: "callers-" + blade, done: make(chan struct{})}
	c.cmd = exec.Command(x.self, "call", "--first", strconv.Itoa(first), "--count", strconv.Itoa(count), "--metrics-addr", x.metricsAddr(c.name))
	c.cmd.Stdout, c.cmd.Stderr = &c.out, &c.out
	if err := x.host.Start(x.rack, blade, c.cmd); err != nil {
		return nil, err
	}
	go func() {
		defer close(c.done)
		c.err = c.cmd.Wait()
	}()
	return c, nil
}

// end has the callers finish their calls and leave.
func (c *client) end() error {
	_ = c.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	<-c.done
	if c.err != nil {
		return fmt.Errorf("%s: %w: %s", c.name, c.err, bytes.TrimSpace(c.out.Bytes()))
	}
	return nil
}

// work has the callers call and takes samples, until the time is over or something
// is wrong.
func (x *run) work(ctx context.Context, r *result) (err error) {
	var callers []*client
	defer func() {
		for _, c := range callers {
			err = errors.Join(err, c.end())
		}
		if err == nil {
			err = r.judge()
		}
	}()
	processes := []string{plan.Switch, plan.Gatekeeper, "c1", "c2", "s1", "s2", "m1", "m2", "ping", "arrays", "counter"}
	per := (x.callers + len(clients) - 1) / len(clients)
	ended := make(chan struct{}, len(clients))
	for i, blade := range clients {
		c, err := x.start(blade, i*per, min(per, x.callers-i*per))
		if err != nil {
			return err
		}
		callers = append(callers, c)
		processes = append(processes, c.name)
		go func() { <-c.done; ended <- struct{}{} }()
	}
	x.sampler = newSampler(x.dir(), processes)
	if err := x.sampler.ready(ctx); err != nil {
		return err
	}
	x.progress("%d callers for %v, a sample each %v", x.callers, x.duration, x.every)
	over := time.NewTimer(x.duration)
	defer over.Stop()
	tick := time.NewTicker(x.every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("interrupted: %w", ctx.Err())
		case <-ended:
			return errors.New("callers have ended before the time is over")
		case <-over.C:
			return nil
		case <-tick.C:
			s, err := x.sampler.take(ctx)
			if err != nil {
				return err
			}
			r.add(s)
			x.progress("%s", r.line())
		}
	}
}
