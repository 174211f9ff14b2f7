// Package torture holds a rack of real processes to its word: services that must
// not count anything twice are called by durable mains and plain clients, while
// programs, compute blades, memory blades, the Gatekeeper and the switch's process are
// killed or paused at random. In the end every account must have exactly what was added to it, every value
// must be the one that was set, and nothing may be left.
//
//	c1  tellers: durable mains ─┐          ┌─ s1  Front ─▶ Counter
//	c2  clients: die for good   ├▶ switch ─┼─ s2  Counter: state and memory
//	    clients of the Store   ─┘          ├─ x1  Store: values in memory; a spare, as x2 is
//	                                       └─ m1, m2  a copy each of the rack's memory
//
// The seed decides who is hit, how, and in which order. At which moment of the work a
// strike comes depends on the machine.
package torture

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin/client"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/rack"
	"github.com/bifrost-rack/bifrost/rack/config"
)

// Config says how to torture.
type Config struct {
	// Host is where the rack is made, and Name what it is called.
	Host *rack.Host
	Name string
	// Switch joins the blades; "" stands for config.Bifrost.
	Switch config.Switch
	// For is how long, and Seed what happens. Each act is done once at least, also if
	// that takes longer.
	For  time.Duration
	Seed uint64
	// Heartbeat is how often blades report; 0 stands for DefaultHeartbeat and, with Hostile, for HostileHeartbeat.
	Heartbeat time.Duration
	// Hostile kills nothing, and has a program attack the rack instead; see hostile.go.
	Hostile bool
	// MTU is the rack's largest IPv6 packet in bytes; 0 stands for the default.
	MTU int
	// Keep leaves a rack that has failed up, to look at.
	Keep bool
	// Out receives what is done to whom; io.Discard for nothing.
	Out io.Writer
}

// DefaultHeartbeat leaves a loaded machine some room.
const DefaultHeartbeat = 200 * time.Millisecond

// HostileHeartbeat leaves any machine room: nothing is killed, so nothing waits until a blade's silence is noticed.
const HostileHeartbeat = 3 * time.Second

// settleTimeout bounds how long the rack may take to come to rest in the end.
const settleTimeout = 2 * time.Minute

// Report is what came of it.
type Report struct {
	OK   bool   `json:"ok"`
	Seed uint64 `json:"seed"`
	// Done counts what was done, by what it was.
	Done map[string]int `json:"done"`
	// Calls is how many calls the accounts say have been made: of durable mains all,
	// of plain clients those that were acknowledged, and Unknown, which had been made
	// when their client was killed.
	Calls   int64 `json:"calls"`
	Unknown int64 `json:"unknown"`
	// GivenUp is how many calls of plain clients have failed since too many nodes were killed while they executed them.
	GivenUp int64 `json:"given_up,omitempty"`
	Clients int   `json:"clients"`
	// Updates is how many changes the key-value service has acknowledged; not with Hostile.
	Updates int `json:"updates,omitempty"`
	// Left is what was left when the rack was looked at for the last time; nil if that was
	// not done.
	Left *Left `json:"left,omitempty"`
	// Sent is how many packets of each attack have left the hostile blades; with Hostile.
	Sent map[string]int `json:"sent,omitempty"`
	// Refused is what the Gatekeeper, switch and daemons have counted of the attacks, by
	// reason; with Hostile.
	Refused map[string]uint64 `json:"refused,omitempty"`
	Seconds float64           `json:"seconds"`
	Error   string            `json:"error,omitempty"`
}

// Run makes a rack, tortures it, looks at what is left, and removes it. The report is
// filled in as far as it got, also when it fails.
func Run(ctx context.Context, cfg Config) (Report, error) {
	if cfg.Heartbeat == 0 && cfg.Hostile {
		cfg.Heartbeat = HostileHeartbeat
	}
	if cfg.Heartbeat == 0 {
		cfg.Heartbeat = DefaultHeartbeat
	}
	start := time.Now()
	t := &torture{cfg: cfg, done: map[string]int{}}
	err := t.run(ctx)
	r := t.report
	r.Seed, r.Done, r.Seconds, r.OK = cfg.Seed, t.done, time.Since(start).Seconds(), err == nil
	if err != nil {
		r.Error = err.Error()
	}
	return r, err
}

// torture is one run.
type torture struct {
	cfg     Config
	report  Report
	done    map[string]int // of the executioner
	start   time.Time
	admin   *client.Client
	tokens  config.Admin   // where it is with tokens; with Hostile
	clients []*plainClient // of their keeper
	stored  keyValue       // of who calls the key-value service
}

// run brings the rack up and down.
func (t *torture) run(ctx context.Context) (err error) {
	c := rackOf(t.cfg)
	if t.cfg.Hostile {
		closed, err := openAdmin(&c)
		if err != nil {
			return err
		}
		t.tokens = c.Admin
		defer func() { _ = closed() }() // a directory of this run alone
	}
	if err := t.cfg.Host.Up(ctx, c); err != nil {
		return err
	}
	defer func() {
		if err == nil || !t.cfg.Keep {
			err = errors.Join(err, t.cfg.Host.Down(context.WithoutCancel(ctx), c.Name))
		}
	}()
	if t.admin, err = client.New(client.Config{Address: "unix:" + t.cfg.Host.AdminSocket(c.Name)}); err != nil {
		return err
	}
	defer t.admin.Close()
	if err := t.deployTellers(ctx); err != nil {
		return err
	}
	t.start = time.Now()
	if err := t.hurt(ctx); err != nil {
		return err
	}
	resting, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	return t.verify(resting)
}

// hurt lets the executioner and the clients loose until the time is over.
func (t *torture) hurt(ctx context.Context) error {
	var a *attacker
	if t.cfg.Hostile {
		var err error
		if a, err = t.infiltrate(ctx); err != nil {
			return err
		}
	}
	g, working := errgroup.WithContext(ctx)
	until, cancel := context.WithTimeout(working, t.cfg.For)
	defer cancel()
	x := newExecutioner(t)
	if t.cfg.Hostile {
		greed := &greedy{t: t, done: map[string]int{}}
		g.Go(func() error { return greed.grab(working) })
		g.Go(func() error { return a.attack(working, until) })
		idle := &visitors{t: t, done: map[string]int{}}
		g.Go(func() error { return idle.crowd(until, t.tokens) })
		defer func() { maps.Copy(t.done, greed.done); maps.Copy(t.done, idle.done) }()
	} else {
		calling, over := context.WithCancel(working)
		g.Go(func() error { defer over(); return x.work(working, until) })
		g.Go(func() error { return t.callKV(working, calling) })
	}
	g.Go(func() error { return t.keepClients(until) })
	err := g.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return errors.Join(err, x.heal(ctx))
}

// rackOf is the rack: two blades for callers, two for services, two spares, and two that
// each hold a copy of the memory, so that either may die.
func rackOf(cfg Config) config.Config {
	c := config.Thesis()
	c.Name, c.Heartbeat, c.Blades, c.Programs = cfg.Name, cfg.Heartbeat, nil, nil
	if cfg.Switch != "" {
		c.Switch = cfg.Switch
	}
	if cfg.MTU != 0 {
		c.MTU = cfg.MTU
	}
	for _, name := range []string{"c1", "c2", "s1", "s2", "x1", "x2"} {
		c.Blades = append(c.Blades, config.Blade{Name: name, Kind: control.Compute, Nodes: config.DefaultNodes})
	}
	for _, name := range []string{"m1", "m2"} {
		c.Blades = append(c.Blades, config.Blade{Name: name, Kind: control.Memory, Capacity: memorySize})
	}
	c.Programs = []config.Program{
		{Name: "counter", Blade: "s2", Command: []string{"counter", "serve", "Counter"}, Services: []string{"Counter"}, Stateful: true, Spares: []string{"x1", "x2", "s1"}},
		{Name: "front", Blade: "s1", Command: []string{"counter", "serve", "Front"}, Services: []string{"Front"}, Spares: []string{"x2", "x1", "s2"}},
		{Name: "store", Blade: "x1", Command: []string{"kv", "serve"}, Services: []string{"Store"}, Stateful: true, Spares: []string{"s1", "x2", "s2"}},
	}
	if cfg.Hostile {
		for _, name := range []string{hostileBlade, wildBlade} {
			c.Blades = append(c.Blades, config.Blade{Name: name, Kind: control.Compute, Nodes: config.DefaultNodes})
		}
	}
	return c
}

// say tells what is done.
func (t *torture) say(format string, args ...any) {
	fmt.Fprintf(t.cfg.Out, "%7.2f s  %s\n", time.Since(t.start).Seconds(), fmt.Sprintf(format, args...))
}
