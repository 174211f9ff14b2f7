package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"github.com/bifrost-rack/bifrost/bench/agent"
	"github.com/bifrost-rack/bifrost/bench/machine"
	"github.com/bifrost-rack/bifrost/bench/peer"
	"github.com/bifrost-rack/bifrost/bench/report"
	"github.com/bifrost-rack/bifrost/bench/topology"
	"github.com/bifrost-rack/bifrost/rack"
	"github.com/bifrost-rack/bifrost/rack/config"
)

// DefaultRack is the name of the rack that a run makes.
const DefaultRack = "bench"

// ownSuffix makes of a run's rack name that of a second rack.
const ownSuffix = "x"

// Options say what to measure, and on what.
type Options struct {
	Experiments []Experiment
	Pace        Pace
	// Bifrost is the path of the bifrost binary; Version is its own.
	Bifrost, Version string
	// Rack and Switch are of the rack that is made for the run.
	Rack   string
	Switch config.Switch
	// Mininet is the path of the description of a rack that is up; "" makes one.
	Mininet string
	// LowLatency keeps idle CPUs from sleeping while the run lasts; see machine.Awake.
	LowLatency bool
	// Progress is told what is being done; never nil.
	Progress func(format string, args ...any)
}

// ErrNotRoot is that the run needs root.
var ErrNotRoot = errors.New("bench makes network namespaces, which needs root: run it with sudo")

// Run runs experiments. On an error everything that was made for the run is gone,
// too, and the report holds what had been measured before.
func Run(ctx context.Context, o Options) (r report.Report, err error) {
	if os.Geteuid() != 0 {
		return r, ErrNotRoot
	}
	cpus := AssignCPUs(runtime.NumCPU())
	r = report.Report{
		Schema: report.Schema, Started: time.Now().UTC().Truncate(time.Second), Machine: machine.Describe(),
		Versions: machine.Versions(o.Version), Pinned: cpus.pinned(), Peers: map[string]string{},
	}
	if o.LowLatency {
		sleep, err := machine.Awake()
		if err != nil {
			return r, err
		}
		defer sleep()
		r.LowLatency = true
	}
	for _, p := range peer.All {
		r.Peers[p.Title] = p.Setup
	}
	if err := agent.Pin(cpus.Rack); err != nil { // what is started from here on, too
		return r, err
	}
	l := &Lab{Bifrost: o.Bifrost, Rack: o.rack(o.Rack + ownSuffix), CPUs: cpus, Pace: o.Pace, Progress: o.Progress}
	defer func() {
		if l.Topology != nil {
			err = errors.Join(err, l.Close())
		}
		r.Seconds = time.Since(r.Started).Seconds()
	}()
	for i := range o.Experiments {
		if err := o.one(ctx, l, &r, &o.Experiments[i]); err != nil {
			return r, err
		}
	}
	return r, nil
}

// one runs an experiment and adds it to the report; the first that needs a rack
// gets it made.
func (o *Options) one(ctx context.Context, l *Lab, r *report.Report, x *Experiment) (err error) {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("interrupted: %w", err)
	}
	if l.Topology == nil && !x.NoRack {
		if l.Topology, err = o.topology(ctx); err != nil {
			return err
		}
		r.Topology = l.Describe()
	}
	if x.NoRack && o.Mininet != "" {
		return fmt.Errorf("%s makes network namespaces of its own: it is not for Mininet", x.Name)
	}
	e := x.Experiment
	start := time.Now()
	e.LoadBefore = machine.Load()
	e.WarmupSeconds, e.MeasureSeconds, e.Repeats = o.Pace.Warmup.Seconds(), o.Pace.Measure.Seconds(), o.Pace.Repeats
	if err := x.Run(ctx, l, &e); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("interrupted: %w", ctx.Err())
		}
		return fmt.Errorf("%s: %w", e.Name, err)
	}
	e.LoadAfter, e.Seconds = machine.Load(), time.Since(start).Seconds()
	r.Experiments = append(r.Experiments, e)
	return nil
}

// topology makes the rack, or takes the one that is there.
func (o *Options) topology(ctx context.Context) (topology.Topology, error) {
	if o.Mininet != "" {
		m, err := topology.ReadMininet(o.Mininet)
		if err != nil {
			return nil, err
		}
		return m, nil
	}
	c := o.rack(o.Rack)
	c.Unmirrored() // what copies cost, an experiment of its own says
	n, err := topology.Up(ctx, host(o.Bifrost), c, o.Progress)
	if err != nil {
		return nil, err
	}
	return n, nil
}

// rack describes a rack on which peers other than Bifröst can be measured, too: TCP passes.
func (o *Options) rack(name string) config.Config {
	c := config.Thesis()
	c.Name, c.Switch, c.TCP = name, o.Switch, true
	return c
}

// host is this machine, with racks in memory.
func host(bifrost string) *rack.Host {
	return &rack.Host{Bifrost: bifrost, Dir: topology.DefaultDir}
}
