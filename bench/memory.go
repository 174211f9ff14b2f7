package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/bifrost-rack/bifrost/bench/agent"
	"github.com/bifrost-rack/bifrost/bench/peer"
	"github.com/bifrost-rack/bifrost/bench/report"
	"github.com/bifrost-rack/bifrost/bench/stats"
	"github.com/bifrost-rack/bifrost/bench/topology"
	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
	"github.com/bifrost-rack/bifrost/gatekeeper/admin/client"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/rack"
	"github.com/bifrost-rack/bifrost/rack/config"
)

var mirroredMemory = Experiment{
	Experiment: report.Experiment{
		Name: "mirrored-memory", Question: "What does a second copy of memory cost?",
		Method: "A blade reads and writes a region that it controls, on a memory blade that is alone, and on two of which each holds a copy; and sets a value of Redis with " +
			"one replica, and waits until that has it (WAIT 1). All in turns on one rack; memory daemons and both servers of Redis have the same CPUs.",
		X: report.Axis{Title: "size", Unit: "bytes", Scale: report.Log}, Y: microseconds,
	},
	NoRack: true,
	Run: func(ctx context.Context, l *Lab, e *report.Experiment) error {
		return l.onPairs(ctx, config.DefaultHeartbeat, config.DefaultCapacity, func(l *Lab, _ *topology.Namespaces) error {
			for _, op := range []string{peer.Write, peer.Read} {
				c := contest{
					peers: []string{"memory-single", "memory-mirrored", "redis-replica"}, memory: true, suffix: op,
					replicas: map[string][]string{"redis-replica": {"m2"}}, points: []point{
						{x: 4 << 10, work: peer.Work{Op: op, Size: 4 << 10}}, {x: 64 << 10, work: peer.Work{Op: op, Size: 64 << 10}},
						{x: 2 << 20, work: peer.Work{Op: op, Size: 2 << 20}},
					},
				}
				if err := c.run(ctx, l, e); err != nil {
					return err
				}
			}
			return nil
		})
	},
}

var memoryBladeDies = Experiment{
	Experiment: report.Experiment{
		Name: "memory-blade-dies", Question: "What does a program notice when a memory blade dies, and when its successor is filled?",
		Method: "Two memory blades hold a copy each of the same memory, 1 GiB of which is in use. A client reads 4 KiB of it all the time. The blade that answers dies, " +
			"and later it is back, empty, and is filled. The longest read is the time from the death to the first right answer; in the end the other blade's daemon is killed alone, which its witness tells. Blades report every 250 ms; a silent one is given up " +
			"after three reports, so the death is detected after 500 to 750 ms. The percentiles of reads are medians of rounds of one second each, with both copies, and for as long as one is filled.",
		X: report.Axis{Title: "what", Scale: report.Category}, Y: report.Axis{Title: "time", Unit: "ms", Scale: report.Linear},
	},
	NoRack: true,
	Run:    measureMemoryDeath,
}

// onPairs makes a rack whose memory machine 1 has two copies, and 2 has one.
func (l *Lab) onPairs(ctx context.Context, heartbeat time.Duration, capacity uint64, f func(l *Lab, n *topology.Namespaces) error) error {
	c := l.Rack
	c.Heartbeat, c.Blades = heartbeat, slices.Clone(c.Blades)
	for i := range c.Blades {
		if c.Blades[i].Kind == control.Memory {
			c.Blades[i].Capacity = capacity
		}
	}
	return l.onOwn(ctx, c, f)
}

// held is how much memory is in use when a blade dies: so many regions of the size that a
// peer takes at most. A quick run holds less.
const (
	heldBytes      = 1 << 30
	heldBytesQuick = 64 << 20
)

func measureMemoryDeath(ctx context.Context, l *Lab, e *report.Experiment) error {
	regions := heldBytes / peer.MaxSize
	if l.Pace.Fewer {
		regions = heldBytesQuick / peer.MaxSize
	}
	return l.onPairs(ctx, recoveryHeartbeat, 2*heldBytes, func(l *Lab, n *topology.Namespaces) error {
		admin, err := client.New(client.Config{Address: "unix:" + n.Host.AdminSocket(n.Config.Name)})
		if err != nil {
			return err
		}
		defer admin.Close()
		p, err := peer.Find("memory-mirrored")
		if err != nil {
			return err
		}
		reader, err := l.pair(ctx, p, false, serverBlade)
		if err != nil {
			return err
		}
		defer reader.close()
		holder, err := l.start("who holds memory", otherBlade)
		if err != nil {
			return err
		}
		defer holder.Close()
		server, err := l.Address(serverBlade)
		if err != nil {
			return err
		}
		if _, err := holder.Ask(ctx, agent.Request{Dial: &agent.Role{Peer: p.Name, Site: peer.NewSite(p.Name, false, server)}}); err != nil {
			return err
		}
		d := death{Lab: l, n: n, admin: admin, reader: reader.client, e: e}
		return d.run(ctx, holder, regions)
	})
}

// death is one measurement of what is noticed of a memory blade's death.
type death struct {
	*Lab
	n      *topology.Namespaces
	admin  *client.Client
	reader *agent.Process
	e      *report.Experiment
}

// How long reads are measured: in rounds, and around a death. holdTime bounds what the
// rack takes to become what is waited for.
const (
	roundTime   = time.Second
	usualRounds = 5
	deathTime   = 4 * time.Second
	holdTime    = time.Minute
)

func (d *death) run(ctx context.Context, holder *agent.Process, regions int) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		_, err := holder.Ask(ctx, agent.Request{Measure: &agent.Measure{Work: peer.Work{Op: peer.Hold, Size: peer.MaxSize}, Callers: regions, For: holdTime}})
		cancel(fmt.Errorf("who holds memory has ended: %w", err))
	}()
	d.Progress("%s: %d MiB are put into memory", d.e.Name, regions*peer.MaxSize>>20)
	if _, err := d.machine(ctx, func(m *api.Machine) bool { return m.Used >= uint64(regions)*peer.MaxSize }); err != nil {
		return err
	}
	if _, err := d.reads(ctx, roundTime); err != nil { // which wait behind the holder's writes
		return err
	}
	usual, err := d.rounds(ctx, func(round int) bool { return round < usualRounds })
	if err != nil {
		return err
	}
	m, err := d.machine(ctx, func(m *api.Machine) bool { return len(m.Copies) == 2 })
	if err != nil {
		return err
	}
	victim := m.Copies[0]
	dying, late, err := d.dies(ctx, victim, rack.Kill)
	if err != nil {
		return err
	}
	took, filling, err := d.fill(ctx, victim)
	if err != nil {
		return err
	}
	if m, err = d.machine(ctx, func(m *api.Machine) bool { return len(m.Copies) == 2 }); err != nil {
		return err
	}
	killed, _, err := d.dies(ctx, m.Copies[0], rack.Daemon)
	if err != nil {
		return err
	}
	series := report.Series{Name: "noticed", Title: "reads of 4 KiB"}
	add := func(label string, ms ...float64) {
		p := report.Point{X: float64(len(series.Points)), Label: label}
		p.Value, p.Low, p.High = stats.Spread(ms)
		series.Points = append(series.Points, p)
	}
	add("read, median", medians(usual)...)
	add("read, 99 %", p99s(usual)...)
	add("first answer after the death", dying.Longest/1e3)
	add("read while filled, median", medians(filling)...)
	add("read while filled, 99 %", p99s(filling)...)
	add(fmt.Sprintf("filling of %d MiB", regions*peer.MaxSize>>20), milliseconds([]time.Duration{took})...)
	add("of it, after the detection", milliseconds([]time.Duration{late})...)
	add("first answer after the daemon's death", killed.Longest/1e3)
	d.e.Repeats, d.e.WarmupSeconds, d.e.MeasureSeconds = 1, 0, 0
	d.e.Series = []report.Series{series}
	return nil
}

// dies measures reads while a memory blade dies. The longest one ends with the first answer
// after the death; late is how long after the Gatekeeper had detected the death.
func (d *death) dies(ctx context.Context, victim string, how rack.How) (reads *stats.Summary, late time.Duration, err error) {
	d.Progress("%s: %s dies: %s", d.e.Name, victim, how)
	start := time.Now()
	reads, err = d.during(ctx, deathTime, func() error { return d.n.Host.Fail(ctx, d.n.Config.Name, victim, how) })
	if err != nil {
		return nil, 0, err
	}
	events, err := d.admin.Recent(ctx, recentEvents, client.EventFilter{Kinds: []string{string(gatekeeper.BladeFailed)}})
	if err != nil {
		return nil, 0, err
	}
	i := slices.IndexFunc(events, func(e api.Event) bool { return e.Blade == victim && e.Time.After(start) })
	if i < 0 {
		return nil, 0, fmt.Errorf("the Gatekeeper has not noticed that %s is dead: %+v", victim, events)
	}
	return reads, reads.LongestEnd.Sub(events[i].Time), nil
}

// recentEvents is how many of its latest events the Gatekeeper is asked for.
const recentEvents = 100

// fill brings a blade back, and measures reads until it is filled, and how long that takes.
func (d *death) fill(ctx context.Context, blade string) (took time.Duration, rounds []stats.Summary, err error) {
	d.Progress("%s: %s is filled", d.e.Name, blade)
	if err := d.n.Host.Restore(ctx, d.n.Config.Name, blade); err != nil {
		return 0, nil, err
	}
	if _, err := d.machine(ctx, func(m *api.Machine) bool { return m.Filling != nil }); err != nil {
		return 0, nil, err
	}
	start, over := time.Now(), make(chan error, 1)
	var filled atomic.Int64 // how long it took; 0: it is not yet
	go func() {
		_, err := d.machine(ctx, func(m *api.Machine) bool { return m.InService == 2 && m.Why == "" })
		filled.Store(int64(time.Since(start)))
		over <- err
	}()
	rounds, err = d.rounds(ctx, func(round int) bool { return round == 0 || filled.Load() == 0 })
	if err != nil {
		return 0, nil, err
	}
	if len(rounds) > 1 {
		rounds = rounds[:len(rounds)-1] // it was filled before that one was over
	}
	return time.Duration(filled.Load()), rounds, <-over
}

// rounds measures reads again and again, while more says so.
func (d *death) rounds(ctx context.Context, more func(round int) bool) (all []stats.Summary, err error) {
	for more(len(all)) {
		s, err := d.reads(ctx, roundTime)
		if err != nil {
			return nil, err
		}
		all = append(all, *s)
	}
	return all, nil
}

// medians and p99s are the 50th and 99th percentiles of rounds, in milliseconds.
func medians(rounds []stats.Summary) (ms []float64) {
	for i := range rounds {
		ms = append(ms, rounds[i].P50/1e3)
	}
	return ms
}

func p99s(rounds []stats.Summary) (ms []float64) {
	for i := range rounds {
		ms = append(ms, rounds[i].P99/1e3)
	}
	return ms
}

// reads measures reads for some time.
func (d *death) reads(ctx context.Context, howLong time.Duration) (*stats.Summary, error) {
	a, err := d.reader.Ask(ctx, agent.Request{Measure: &agent.Measure{Work: peer.Work{Op: peer.Read, Size: 4 << 10}, Callers: 1, Warmup: d.Pace.Warmup, For: howLong}})
	if err != nil {
		return nil, err
	}
	return a.Result, nil
}

// beforehand is how long reads go on before something happens to their memory.
const beforehand = 500 * time.Millisecond

// during measures reads while something happens, which must be over when they end.
func (d *death) during(ctx context.Context, howLong time.Duration, happen func() error) (*stats.Summary, error) {
	done := make(chan error, 1)
	timer := time.AfterFunc(beforehand, func() { done <- happen() })
	defer timer.Stop()
	s, err := d.reads(ctx, howLong)
	if err != nil {
		return nil, err
	}
	return s, <-done
}

// lookEvery is how often the Gatekeeper is asked for the memory machine. An answer takes Gatekeeper and switch a millisecond, for they read registers for
// it, and reads that are measured meanwhile wait for that.
const lookEvery = 100 * time.Millisecond

// machine waits until the memory machine with two blades is as it should be.
func (d *death) machine(ctx context.Context, good func(*api.Machine) bool) (m api.Machine, err error) {
	ctx, cancel := context.WithTimeout(ctx, holdTime)
	defer cancel()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		all, err := d.admin.Machines(ctx)
		if err != nil {
			return m, errors.Join(err, context.Cause(ctx))
		}
		if i := slices.IndexFunc(all, func(m api.Machine) bool { return len(m.Blades) == 2 }); i >= 0 && good(&all[i]) {
			return all[i], nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return m, fmt.Errorf("the memory machine is %+v: %w", all, context.Cause(ctx))
		}
	}
}

var memoryOrRedis = Experiment{
	Experiment: report.Experiment{
		Name: "memory-or-redis", Question: "How fast is distributed memory, beside Redis and bare TCP?",
		Method: "A blade reads and writes memory of another: a region that it controls, or a value of Redis by GET and SET, or as many bytes on a TCP " +
			"connection, asked for by one byte. Redis and the memory daemons have the same CPUs.",
		X: report.Axis{Title: "size", Unit: "bytes", Scale: report.Log}, Y: microseconds,
	},
	Run: func(ctx context.Context, l *Lab, e *report.Experiment) error {
		for _, op := range []string{peer.Read, peer.Write} {
			c := contest{peers: []string{"bifrost", "redis", "tcp"}, memory: true, points: l.sizes(op), suffix: op}
			if err := c.run(ctx, l, e); err != nil {
				return err
			}
		}
		return nil
	},
}
