// Package outage measures how long a service that keeps state is not there when its
// program dies, and when its blade does, on a rack of real processes: from the kill to
// the first right answer that comes after it, as a client sees it who calls all the
// time. It also measures what the same client sees while there is no Gatekeeper.
package outage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin/client"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/rack"
	"github.com/bifrost-rack/bifrost/rack/config"
	"github.com/bifrost-rack/bifrost/rack/plan"
)

// Config says what to measure.
type Config struct {
	// Host is where the rack is made, and Name what it is called.
	Host *rack.Host
	Name string
	// Rounds is how often each is killed.
	Rounds int
	// Heartbeat is how often blades report; 0 stands for config.DefaultHeartbeat.
	Heartbeat time.Duration
	// Out receives each result as it comes; nil for nothing.
	Out io.Writer
	// Explain is from which outage on of a program Out also receives what the Gatekeeper
	// says about it; 0 for never.
	Explain time.Duration
}

// Result has the outages, shortest first.
type Result struct {
	Heartbeat time.Duration
	// Program is after SIGKILL to the service's process; Blade after the death of all
	// of its blade, which nobody but a missing heartbeat tells of.
	Program, Blade []time.Duration
	// Usual are the times between two answers when nobody dies.
	Usual []time.Duration
}

// Median of durations in order; 0 of none.
func Median(sorted []time.Duration) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[len(sorted)/2]
}

// Longest of durations in order; 0 of none.
func Longest(sorted []time.Duration) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[len(sorted)-1]
}

// calm is how long the service runs between two deaths: what dies more often is not
// started again at once.
const calm = 1200 * time.Millisecond

// patience bounds an outage.
const patience = 30 * time.Second

// service is the instance that is killed.
const service = "rack/counter/1"

// Measure makes a rack, measures, and removes it.
func Measure(ctx context.Context, cfg Config) (r Result, err error) {
	m, end, err := begin(ctx, cfg)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, end()) }()
	r.Heartbeat = m.heartbeat
	defer m.follow(ctx)()
	for range cfg.Rounds {
		if err := m.round(ctx, "program", m.killProgram, &r.Program); err != nil {
			return r, err
		}
	}
	for range cfg.Rounds {
		if err := m.round(ctx, "blade", m.killBlade, &r.Blade); err != nil {
			return r, err
		}
		if err := cfg.Host.Restore(ctx, m.rack, m.dead); err != nil {
			return r, err
		}
	}
	r.Usual = m.usual
	for _, all := range [][]time.Duration{r.Program, r.Blade, r.Usual} {
		slices.Sort(all)
	}
	return r, nil
}

// begin makes the rack and starts the client; end removes both.
func begin(ctx context.Context, cfg Config) (m *measurement, end func() error, err error) {
	c := rackOf(cfg)
	if err := cfg.Host.Up(ctx, c); err != nil {
		return nil, nil, err
	}
	down := func() error { return cfg.Host.Down(context.WithoutCancel(ctx), c.Name) }
	admin, err := client.New(client.Config{Address: "unix:" + cfg.Host.AdminSocket(c.Name)})
	if err != nil {
		return nil, nil, errors.Join(err, down())
	}
	caller, err := startCaller(cfg.Host, c.Name, "--account", "1", "--count", "1000000000")
	if err != nil {
		admin.Close()
		return nil, nil, errors.Join(err, down())
	}
	m = &measurement{cfg: cfg, rack: c.Name, heartbeat: c.Heartbeat, admin: admin, caller: caller, exports: make(chan time.Time, 16)}
	return m, func() error {
		err := caller.stop()
		admin.Close()
		return errors.Join(err, down())
	}, nil
}

// rackOf has one service, two spares for it, and memory that survives a blade: so the
// service's state is in a ledger, and calls to it go direct.
func rackOf(cfg Config) config.Config {
	c := config.Thesis()
	c.Name, c.Blades = cfg.Name, nil
	if cfg.Heartbeat > 0 {
		c.Heartbeat = cfg.Heartbeat
	}
	for _, name := range []string{"c1", "s2", "x1", "x2"} {
		c.Blades = append(c.Blades, config.Blade{Name: name, Kind: control.Compute, Nodes: config.DefaultNodes})
	}
	for _, name := range []string{"m1", "m2"} {
		c.Blades = append(c.Blades, config.Blade{Name: name, Kind: control.Memory, Capacity: 256 << 20})
	}
	c.Programs = []config.Program{{
		Name: "counter", Blade: "s2", Command: []string{"counter", "serve", "Counter"}, Services: []string{"Counter"}, Stateful: true, Spares: []string{"x1", "x2"},
	}}
	return c
}

// measurement is one run.
type measurement struct {
	cfg       Config
	rack      string
	heartbeat time.Duration
	admin     *client.Client
	caller    *caller
	dead      string // the blade that was killed last
	usual     []time.Duration
	// exports are the times at which the service came up.
	exports chan time.Time
}

// follow listens for exports of the service until the function that it returns is called.
func (m *measurement) follow(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = m.admin.Follow(ctx, client.FollowOptions{Filter: client.EventFilter{Kinds: []string{"service.exported"}}}, func(e client.Message) error {
			if e.Event != nil {
				select {
				case m.exports <- e.Event.Time:
				default: // nobody has looked for a long time
				}
			}
			return nil
		})
	}()
	return func() { cancel(); <-ended }
}

// back waits until the service is up again after a death, and returns when that was: what
// is answered later, the new incarnation has answered. (Before, answers of the old one may
// still come, which were logged.)
func (m *measurement) back(ctx context.Context, death time.Time) (time.Time, error) {
	for {
		select {
		case at := <-m.exports:
			if at.After(death) {
				return at, nil
			}
		case <-ctx.Done():
			return time.Time{}, ctx.Err()
		}
	}
}

// round lets the service run for a while, kills, and waits for the next answers.
func (m *measurement) round(ctx context.Context, what string, kill func(context.Context) (time.Time, error), into *[]time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	gaps, err := m.caller.calm(ctx, calm)
	if err != nil {
		return err
	}
	m.usual = append(m.usual, gaps...)
	began, err := kill(ctx)
	if err != nil {
		return err
	}
	back, err := m.back(ctx, began)
	if err != nil {
		return fmt.Errorf("after the death of the %s: %w", what, err)
	}
	at, err := m.caller.after(ctx, back)
	if err != nil {
		return fmt.Errorf("after the death of the %s: %w", what, err)
	}
	took := at.Sub(began)
	*into = append(*into, took)
	if m.cfg.Out != nil {
		fmt.Fprintf(m.cfg.Out, "%s dies: an answer after %v\n", what, took.Round(10*time.Microsecond))
		if m.cfg.Explain > 0 && took >= m.cfg.Explain {
			return m.explain(ctx, began, at)
		}
	}
	return nil
}

// killProgram returns when; to find the process takes a while.
func (m *measurement) killProgram(context.Context) (at time.Time, err error) {
	pids, err := m.cfg.Host.ProgramPIDs(m.rack, service)
	if err == nil && len(pids) != 1 {
		err = fmt.Errorf("%d processes of %s", len(pids), service)
	}
	if err != nil {
		return at, err
	}
	return time.Now(), unix.Kill(pids[0], unix.SIGKILL)
}

func (m *measurement) killBlade(ctx context.Context) (at time.Time, err error) {
	app, err := m.admin.App(ctx, plan.App)
	if err != nil {
		return at, err
	}
	m.dead = app.Instances[0].Blade
	return time.Now(), m.cfg.Host.Fail(ctx, m.rack, m.dead, rack.Kill)
}
