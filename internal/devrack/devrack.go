package devrack

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bifrost-rack/bifrost/daemon"
	"github.com/bifrost-rack/bifrost/daemon/output"
	"github.com/bifrost-rack/bifrost/gatekeeper/admin"
	"github.com/bifrost-rack/bifrost/gatekeeper/history"
	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/ingress"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/join/unixjoin"
	"github.com/bifrost-rack/bifrost/internal/netio/relay"
	"github.com/bifrost-rack/bifrost/internal/simrack"
)

// Every rack has these blades. Programs that somebody starts by hand join on the first compute blade.
var (
	computeBlades = []string{"c1", "s1", "s2"}
	memoryBlades  = []string{"m1", "m2"}
)

const (
	// capacity is how many bytes of regions a memory blade holds. It takes memory from the machine when that is first written to.
	capacity = 1 << 30
	// startPatience bounds how long the rack may take to come up: one memory blade may have to be filled from the other.
	startPatience = 2 * time.Minute
	// nodes is how many nodes a compute blade's socket takes.
	nodes = 96
)

// extra names so many more blades, s3 and so on.
func extra(blades []string, n int) (more []string) {
	taken := strings.Join(append(append([]string{""}, blades...), ""), " ")
	for i := 3; len(more) < n; i++ {
		if name := fmt.Sprintf("s%d", i); !strings.Contains(taken, " "+name+" ") {
			more = append(more, name)
		}
	}
	return more
}

// Config is what a rack is told.
type Config struct {
	// Dir keeps the rack's state; "" keeps none.
	Dir string
	// Apps are deployed when the rack is up, and again when their files change.
	Apps []App
	// Page is where the page is served, with Token.
	Page  admin.Listener
	Token string
	// Ingress is where calls from outside of the rack are taken, from this machine only.
	Ingress net.Listener
	// Version of the program, for people.
	Version string
	// Print takes a line of a program, or, with "" for the program, of the rack. One call is made at a time.
	Print func(program, line string)
	// Ready, if set, is called once, when the rack is up. Programs join, and the apps are deployed, after it has returned.
	Ready func(Addresses)
	// Log receives what happens; nil discards it.
	Log *slog.Logger
}

// Addresses are where a rack is reached.
type Addresses struct {
	// Join is the path of the socket where programs join that nobody has deployed.
	Join string
	// Admin is the address of the admin API for those who may use the directory.
	Admin string
	// Dir has the state, and the sockets.
	Dir string
}

// rack is a rack that runs.
type rack struct {
	cfg     Config
	dir     *directory
	rig     *simrack.Rack
	sockets map[string]socket // of compute blades
	files   *daemon.Binaries
	apps    []*watched
	ending  atomic.Bool
	printMu sync.Mutex
}

// socket is where programs join at a blade.
type socket struct {
	net.Listener
	path  string
	relay *relay.Stack
}

// Run runs a rack until ctx ends, or something in it fails. What it has started has ended then, and of its files those in Config.Dir
// stay. It closes Config.Page and Config.Ingress.
func Run(ctx context.Context, cfg Config) (err error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	r := &rack{cfg: cfg, sockets: map[string]socket{}}
	defer func() { err = errors.Join(err, r.closeSockets()) }()
	specs, err := r.readAll()
	if err != nil {
		return err
	}
	if r.dir, err = openDirectory(cfg.Dir); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.dir.close()) }()
	killed, err := r.dir.begin()
	if err != nil {
		return err
	}
	if killed {
		r.say("the last run was killed: memory regions are gone; states and deployments are there")
	}
	if r.files, err = daemon.OpenBinaries(r.dir.file("programs")); err != nil {
		return err
	}
	path, err := r.dir.socket("admin")
	if err != nil {
		return err
	}
	trusted, err := admin.Listen("unix:"+path, nil)
	if err != nil {
		return err
	}
	blades := bladesFor(specs)
	if err := r.listen(blades); err != nil {
		return errors.Join(err, trusted.Close())
	}
	// A rack that has begun with what was saved has to save it again: it comes up first, and ends then.
	starting, cancel := context.WithTimeout(context.WithoutCancel(ctx), startPatience)
	defer cancel()
	if r.rig, err = simrack.Start(starting, r.simulated(blades)); err != nil {
		return errors.Join(err, trusted.Close())
	}
	err = r.run(ctx, specs, trusted)
	return errors.Join(err, r.rig.Close())
}

// listen opens the sockets of compute blades. Who connects waits until they are served.
func (r *rack) listen(blades []string) error {
	for _, name := range blades {
		path, err := r.dir.socket(name)
		if err != nil {
			return err
		}
		l, err := unixjoin.Listen(path)
		if err != nil {
			return err
		}
		r.sockets[name] = socket{l, path, &relay.Stack{}}
	}
	return nil
}

// closeSockets closes those that nobody serves, and those of the page and the ingress.
func (r *rack) closeSockets() (err error) {
	for _, s := range r.sockets {
		_ = s.Close() // Serve has closed it, if it came to that
	}
	if r.rig == nil {
		err = errors.Join(r.cfg.Page.Close(), r.cfg.Ingress.Close()) // else the servers have
	}
	return err
}

// simulated describes the rack. The memory blades have the first ports, so that further compute blades change nothing for them.
func (r *rack) simulated(blades []string) simrack.Config {
	cfg := simrack.Config{Machines: [][]string{memoryBlades}, LogDir: r.dir.file("log"), LedgerDir: r.dir.file("ledgers"), Log: r.cfg.Log, Compute: r.compute}
	for _, name := range memoryBlades {
		cfg.Blades = append(cfg.Blades, simrack.Blade{Name: name, Kind: control.Memory, Capacity: capacity})
	}
	for _, name := range blades {
		cfg.Blades = append(cfg.Blades, simrack.Blade{Name: name, Kind: control.Compute})
	}
	return cfg
}

// compute makes a compute blade one whose programs are processes.
func (r *rack) compute(c *daemon.ComputeConfig) error {
	s := r.sockets[c.Name]
	s.relay.Stack, c.Stack = c.Stack, s.relay
	c.Runner = daemon.Exec{Binaries: r.files, Env: []string{join.SocketVariable + "=" + s.path}}
	var err error
	c.Output, err = output.Open(output.Config{Dir: r.dir.file("output", c.Name), Each: func(program string, line []byte) { r.print(program, string(line)) }})
	return err
}

// run serves a rack that is up until ctx ends or the rack fails, and then ends its programs.
func (r *rack) run(ctx context.Context, specs []resources.Spec, trusted admin.Listener) (err error) {
	// Programs hear of the daemons' end after their nodes have left, and the page shows it.
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	watching, end := context.WithCancel(ctx)
	var wg, watchers sync.WaitGroup
	defer func() {
		end()
		watchers.Wait()
		err = errors.Join(err, r.rig.CloseCompute(), r.save())
		stop()
		wg.Wait()
	}()
	events := r.rig.Gatekeeper().Subscribe(serving) // before programs of a former run join, which they do before they are deployed anew
	wg.Go(func() { r.tell(events) })
	past := history.New(r.dir.file("history"), r.cfg.Log)
	server, err := admin.New(admin.Config{
		Backend: r.rig.Gatekeeper(), History: past, Grants: admin.OneToken(r.cfg.Token), Version: r.cfg.Version, Log: r.cfg.Log, Metrics: r.metrics(),
	})
	if err != nil {
		return errors.Join(err, trusted.Close(), r.cfg.Page.Close())
	}
	failed := make(chan error, len(r.sockets)+2)
	serve := func(f func() error) {
		wg.Go(func() {
			if err := f(); err != nil {
				failed <- err
			}
		})
	}
	serve(func() error { return server.Run(serving, r.cfg.Page, trusted) })
	watchers.Go(func() { past.Run(watching, r.rig.Gatekeeper()) })
	if ctx.Err() != nil {
		return nil
	}
	outside, err := r.joinIngress(ctx)
	if err != nil {
		return err
	}
	watchers.Go(func() {
		if err := outside(watching); err != nil {
			failed <- err
		}
	})
	if r.cfg.Ready != nil {
		r.cfg.Ready(Addresses{Join: r.sockets[computeBlades[0]].path, Admin: "unix:" + filepath.Join(r.dir.path, "admin.sock"), Dir: r.dir.path})
	}
	for name, s := range r.sockets {
		host, err := r.rig.Compute(name)
		if err != nil {
			return err
		}
		serve(func() error { return unixjoin.Serve(serving, s, host, unixjoin.NewLimits(nodes), r.cfg.Log) })
	}
	for _, spec := range specs {
		if err := r.rig.Gatekeeper().Deploy(ctx, spec); err != nil {
			return err
		}
	}
	watchers.Go(func() { r.watch(watching) })
	select {
	case <-ctx.Done():
		r.ending.Store(true)
		r.say("the programs are ending; Ctrl-C kills them")
		return nil
	case <-r.rig.Failed():
		return errors.New("the rack has failed") // Close says why
	case err := <-failed:
		return err
	}
}

// save keeps what the next run begins with, unless the rack has failed or keeps nothing.
func (r *rack) save() error {
	select {
	case <-r.rig.Failed():
		return nil
	default:
	}
	if r.dir.temporary {
		return nil
	}
	return r.dir.save(r.rig.Gatekeeper())
}

// ingressLeaves is how long calls from outside may take when the rack ends. The next run goes on with those that take longer.
const ingressLeaves = 5 * time.Second

// joinIngress makes the ingress a node of the rack, the same one in each run. It serves until serve's context ends.
func (r *rack) joinIngress(ctx context.Context) (serve func(context.Context) error, err error) {
	node, err := r.rig.Join(ctx, computeBlades[0], "ingress")
	if err != nil {
		return nil, errors.Join(err, r.cfg.Ingress.Close())
	}
	leave := func() error {
		leaving, cancel := context.WithTimeout(context.Background(), ingressLeaves)
		defer cancel()
		return node.Close(leaving)
	}
	s, err := ingress.New(ctx, node, ingress.Config{Logger: r.cfg.Log})
	if err != nil {
		return nil, errors.Join(err, leave(), r.cfg.Ingress.Close())
	}
	return func(ctx context.Context) error { return errors.Join(s.Serve(ctx, r.cfg.Ingress), leave()) }, nil
}

// say prints a line of the rack's own.
func (r *rack) say(format string, args ...any) { r.print("", fmt.Sprintf(format, args...)) }

func (r *rack) print(program, line string) {
	r.printMu.Lock()
	defer r.printMu.Unlock()
	r.cfg.Print(program, line)
}
