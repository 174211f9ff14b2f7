package bifrosttest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/gatekeeper/appfile"
	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/pairing"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
	"github.com/bifrost-rack/bifrost/rpc"
)

// ClientBlade is the compute blade that every rack has for the test's own clients. Programs
// whose app file names no blades do not run there.
const ClientBlade = "c1"

// lifetime is how long a test may take, in virtual time.
const lifetime = 10 * time.Minute

// Config describes a rack. Its zero value is a rack with the compute blades c1, s1 and s2,
// the mirrored memory blades m1 and m2, and a perfect network.
type Config struct {
	// Seed decides what is drawn at random: the fate of packets, and what [Rack.Trouble] does.
	// A test with the same seed meets the same packets in the same order.
	Seed uint64
	// Network is what every link does to packets.
	Network Network
	// Compute and Memory are the names of the blades; [ClientBlade] is there beside those of
	// Compute, and need not be among them. Memory blades are paired in the
	// order of their names; the last one of an odd number is not mirrored.
	Compute, Memory []string
	// Programs are what app files can start: the first argument of a program there is a
	// key here. A path stands for its last element.
	Programs map[string]Program
	// Log receives what happens; nil discards it.
	Logger *slog.Logger
}

// Network is what every link does to packets, in each direction. Probabilities are
// between 0 and 1, and drawn for each packet. The zero value delivers every packet once, in
// order and at once.
type Network struct {
	// Delay is how long a packet takes, and Jitter what is added at random.
	Delay, Jitter time.Duration
	// A reordered packet, and the copy of a doubled one, arrives up to a millisecond later
	// than it should; a late one up to five seconds.
	Loss, Duplicate, Reorder, Late float64
}

// Bad is a network that loses, doubles, reorders and delays 3 % of the packets each.
var Bad = Network{
	Delay: 20 * time.Microsecond, Jitter: 20 * time.Microsecond, Loss: 0.03, Duplicate: 0.03, Reorder: 0.03, Late: 0.03,
}

// Program stands for an executable of the app. Its node has joined the rack; args are
// those of the app file, without the program's name. If it returns nil, its node leaves as
// [rpc.Node.Close] does. An error ends it like an exit status that is not 0: the rack starts
// it again, unless it is a job. A program ends when ctx ends.
type Program func(ctx context.Context, node *rpc.Node, args []string) error

// Serve is the end of a [Program] that serves: it waits until ctx ends, unless err says
// that nothing could be exported.
func Serve(ctx context.Context, err error) error {
	if err == nil {
		<-ctx.Done()
	}
	return err
}

// Rack is a rack that runs. Its methods end the test if they fail, so call them from the
// test's goroutine, all but [Rack.Trouble].
type Rack struct {
	t   *testing.T
	rig *simrack.Rack
	ctx context.Context
	rng *rand.Rand // of Trouble
	// servers are the blades of programs whose app file names none.
	servers []string

	mu  sync.Mutex
	own map[string]bool // the blades with nodes of the test's own
}

// Run makes a rack, calls f in a bubble of virtual time (testing/synctest), and stops the
// rack. The test fails if the rack does not stop in order, or a goroutine that f has
// started is left.
func Run(t *testing.T, cfg Config, f func(t *testing.T, r *Rack)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(context.Background(), lifetime)
		defer cancel()
		rig, err := simrack.Start(ctx, cfg.simulated())
		if err != nil {
			t.Fatalf("bifrosttest: the rack does not start: %v", err)
		}
		defer func() {
			if err := rig.Close(); err != nil {
				t.Errorf("bifrosttest: the rack does not stop in order: %v", err)
			}
		}()
		f(t, &Rack{
			t: t, rig: rig, ctx: ctx, rng: rand.New(rand.NewPCG(cfg.Seed, 11)), servers: cfg.servers(), own: map[string]bool{ClientBlade: true},
		})
	})
}

// servers are the compute blades beside ClientBlade.
func (c *Config) servers() []string {
	names := slices.DeleteFunc(slices.Clone(c.Compute), func(name string) bool { return name == ClientBlade })
	if len(names) == 0 {
		return []string{"s1", "s2"}
	}
	return names
}

// simulated is the configuration of the simulated rack.
func (c *Config) simulated() simrack.Config {
	memory := c.Memory
	if len(memory) == 0 {
		memory = []string{"m1", "m2"}
	}
	s := simrack.Config{
		Disk: new(wal.Disk), Schedule: &wire.Schedule{Seed: c.Seed, Quiesce: synctest.Wait},
		Impair: wire.Impairment{
			Delay: c.Network.Delay, Jitter: c.Network.Jitter,
			Loss: c.Network.Loss, Duplicate: c.Network.Duplicate, Reorder: c.Network.Reorder, Late: c.Network.Late,
		},
		Programs: map[string]simrack.Program{}, Log: c.Logger,
	}
	for _, name := range append([]string{ClientBlade}, c.servers()...) {
		s.Blades = append(s.Blades, simrack.Blade{Name: name, Kind: control.Compute})
	}
	for _, name := range memory {
		s.Blades = append(s.Blades, simrack.Blade{Name: name, Kind: control.Memory})
	}
	for _, machine := range pairing.Machines(nil, memory) {
		if len(machine) == pairing.MaxBlades {
			s.Machines = append(s.Machines, machine)
		}
	}
	for name, p := range c.Programs {
		s.Programs[name] = c.program(name, p)
	}
	return s
}

// program is what the simulated rack runs for a Program.
func (c *Config) program(name string, p Program) simrack.Program {
	logger := c.Logger
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	return func(ctx context.Context, j join.Joiner, s control.Start) error {
		node, err := rpc.Join(join.NewContext(ctx, j), rpc.WithName(name), rpc.WithLogger(logger))
		if err != nil {
			return err
		}
		err = p(ctx, node, s.Args[1:])
		if err != nil || errors.Is(context.Cause(ctx), simrack.ErrKilled) {
			return err // the node has crashed, or crashes now: it takes no leave
		}
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		return node.Close(closing)
	}
}

// Context ends when the test has taken ten minutes of virtual time.
func (r *Rack) Context() context.Context { return r.ctx }

// must ends the test on an error.
func (r *Rack) must(what string, err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatalf("bifrosttest: %s: %v", what, err)
	}
}

// Node joins a node of the test's own on a compute blade. It ends with the rack, or the
// blade; the test may close it before. [Rack.Trouble] spares the blade from then on.
func (r *Rack) Node(blade, name string) *rpc.Node {
	r.t.Helper()
	r.mu.Lock()
	r.own[blade] = true
	r.mu.Unlock()
	n, err := r.rig.Join(r.ctx, blade, name)
	r.must("joining "+name+" on "+blade, err)
	return n
}

// Client joins a node on [ClientBlade].
func (r *Rack) Client() *rpc.Node {
	r.t.Helper()
	return r.Node(ClientBlade, "client")
}

// Deploy deploys the app of a file, as `bifrost deploy` does, and waits until all of it
// runs. The file's executables are [Config.Programs].
func (r *Rack) Deploy(file string) {
	r.t.Helper()
	spec, err := appfile.Read(file)
	r.must("reading the app", err)
	r.deploy(&spec)
}

// DeployText deploys an app whose file would read so, and waits until all of it runs.
func (r *Rack) DeployText(yaml string) {
	r.t.Helper()
	spec, err := appfile.Parse("app.yaml", []byte(yaml))
	r.must("reading the app", err)
	r.deploy(&spec)
}

func (r *Rack) deploy(spec *resources.Spec) {
	r.t.Helper()
	for i := range spec.Programs {
		if len(spec.Programs[i].Blades) == 0 {
			spec.Programs[i].Blades = r.servers
		}
	}
	g, err := r.gatekeeper()
	if err == nil {
		err = g.Deploy(r.ctx, *spec)
	}
	if err == nil {
		err = r.wait(r.allRun)
	}
	r.must("deploying "+spec.Name, err)
}

// gatekeeper is the one that runs.
func (r *Rack) gatekeeper() (*gatekeeper.Gatekeeper, error) {
	if g := r.rig.Gatekeeper(); g != nil {
		return g, nil
	}
	return nil, errors.New("the Gatekeeper has crashed; call RestartGatekeeper")
}

// allRun reports whether every instance runs what it is to run, or is done.
func (r *Rack) allRun() (bool, error) {
	all, err := r.deployments()
	return !slices.ContainsFunc(all, func(d resources.Deployment) bool {
		return !d.Rollout.Done || slices.ContainsFunc(d.Instances, func(i resources.Instance) bool {
			return i.Status != resources.Running && !i.Done
		})
	}), err
}

// deployments are the apps that are there.
func (r *Rack) deployments() ([]resources.Deployment, error) {
	g, err := r.gatekeeper()
	if err != nil {
		return nil, err
	}
	return g.Deployments(context.WithoutCancel(r.ctx))
}

// instances are what runs, or is about to.
func (r *Rack) instances() (all []resources.Instance, err error) {
	ds, err := r.deployments()
	for i := range ds {
		all = append(all, ds[i].Instances...)
	}
	return all, err
}

// wait looks again and again, in virtual time, until something is so.
func (r *Rack) wait(is func() (bool, error)) error {
	for {
		if so, err := is(); so || err != nil {
			return err
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-r.ctx.Done():
			all, _ := r.instances()
			return fmt.Errorf("the test's context ended before it was so; programs: %+v", all)
		}
	}
}

// Regions returns how many regions of distributed memory there are once all that was
// under way has settled: a test that has freed all it allocated finds 0. It takes a minute
// of virtual time.
func (r *Rack) Regions() int {
	r.t.Helper()
	<-time.After(time.Minute)
	g, err := r.gatekeeper()
	r.must("asking for the regions", err)
	s, err := g.Snapshot(r.ctx)
	r.must("asking for the regions", err)
	return len(s.Regions)
}
