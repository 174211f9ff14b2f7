// Package simrack is a whole rack in one process: the compiled P4 program in the
// software switch, the Gatekeeper behind its P4Runtime server, the blades'
// daemons, and nodes, on a virtual wire with the same packets as anywhere else.
// The demo runs on it, and so do the tests that need everything at once; in a
// testing/synctest bubble with a scheduled wire, a seed replays a run.
//
//	node ─ rpc, dsm ─┐                     ┌─ memory daemon
//	compute daemon ──┴─ wire.Host ─ wire.Net ─ wire.Host ─┘
//	                                  │
//	                        softswitch.Switch ◀─ P4Runtime ─ gatekeeper.Gatekeeper
package simrack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/bifrost-rack/bifrost/daemon"
	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4"
	"github.com/bifrost-rack/bifrost/p4/datapath"
	"github.com/bifrost-rack/bifrost/p4/softswitch"
	"github.com/bifrost-rack/bifrost/rpc"
)

// Rack is a running rack. Its methods may be called concurrently.
type Rack struct {
	cfg  Config
	wire *wire.Net
	sw   *softswitch.Switch
	conn *grpc.ClientConn

	mu     sync.Mutex
	keeper *keeper // nil when it has crashed

	compute map[string]*daemon.Compute
	memory  map[string]*daemon.Memory
	ready   map[string]chan struct{} // closed when the blade is registered
	runners map[string]*runner       // of compute blades

	blades, core *group // the blades end first, so that they can say goodbye
}

// Start brings a rack up and returns when every blade is registered. Whoever
// gets it must Close it.
func Start(ctx context.Context, cfg Config) (*Rack, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	r := &Rack{
		cfg: cfg, blades: newGroup(ctx), core: newGroup(ctx),
		compute: map[string]*daemon.Compute{}, memory: map[string]*daemon.Memory{}, ready: map[string]chan struct{}{}, runners: map[string]*runner{},
	}
	if err := r.start(); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	if err := r.registered(ctx); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// start makes all parts and sets them going.
func (r *Rack) start() error {
	r.wire = wire.New(wire.Config{MTU: r.cfg.MTU, Schedule: r.cfg.Schedule, OnFrame: r.cfg.OnFrame})
	var err error
	if r.sw, err = softswitch.New(softswitch.Config{DeviceID: 1, CPUPort: p4.CPUPort, Log: r.cfg.Log}); err != nil {
		return err
	}
	r.wire.Connect(r.sw.Input)
	r.core.run("wire", func(ctx context.Context) error { r.wire.Run(ctx); return nil })
	if err := r.startGatekeeper(); err != nil {
		return err
	}
	for i, b := range r.cfg.Blades {
		if err := r.startBlade(i+1, b); err != nil {
			return fmt.Errorf("blade %s: %w", b.Name, err)
		}
	}
	return nil
}

// startGatekeeper serves P4Runtime in memory and puts the Gatekeeper behind it.
func (r *Rack) startGatekeeper() error {
	l := bufconn.Listen(1 << 20)
	r.core.run("P4Runtime", func(context.Context) error {
		if err := r.sw.Serve(l); err != nil && !errors.Is(err, softswitch.ErrClosed) {
			return err
		}
		return nil
	})
	var err error
	r.conn, err = grpc.NewClient("passthrough:switch",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		return err
	}
	r.keeper, err = r.startKeeper()
	return err
}

// startBlade puts a blade on the wire and starts its daemon.
func (r *Rack) startBlade(n int, b Blade) error {
	port := datapath.Port(n)
	host, err := r.wire.AddHost(wire.HostConfig{Name: b.Name, Port: port, Address: rackaddr.Blade(uint64(n))})
	if err != nil {
		return err
	}
	host.Impair(r.cfg.Impair, r.cfg.Impair)
	if err := r.sw.Attach(port, func(frame []byte) { r.wire.Output(port, frame) }); err != nil {
		return err
	}
	ready := make(chan struct{})
	r.ready[b.Name] = ready
	blade := daemon.Blade{
		Name: b.Name, Stack: host, Address: host.Address(), MAC: host.MAC(), Log: r.cfg.Log.With("blade", b.Name),
		Registered: sync.OnceFunc(func() { close(ready) }),
	}
	if b.Kind == control.Memory {
		m, err := daemon.NewMemory(daemon.MemoryConfig{Blade: blade, Capacity: b.Capacity})
		if err != nil {
			return err
		}
		r.memory[b.Name] = m
		r.blades.run(b.Name, m.Run)
		return nil
	}
	run := &runner{programs: r.cfg.Programs, group: r.blades, running: map[string]*process{}}
	c, err := daemon.NewCompute(daemon.ComputeConfig{Blade: blade, Nodes: computeNodes, Runner: run})
	if err != nil {
		return err
	}
	run.host = c
	r.compute[b.Name], r.runners[b.Name] = c, run
	r.blades.run(b.Name, c.Run)
	return nil
}

// registered waits until the Gatekeeper has welcomed every blade.
func (r *Rack) registered(ctx context.Context) error {
	for _, b := range r.cfg.Blades {
		select {
		case <-r.ready[b.Name]:
		case <-ctx.Done():
			return fmt.Errorf("simrack: blade %s is not registered: %w", b.Name, ctx.Err())
		}
	}
	return nil
}

// Join makes a node on a compute blade.
func (r *Rack) Join(ctx context.Context, blade, name string) (*rpc.Node, error) {
	d := r.compute[blade]
	if d == nil {
		return nil, fmt.Errorf("simrack: no compute blade %q", blade)
	}
	return rpc.Join(ctx, rpc.WithName(name), rpc.WithJoiner(d), rpc.WithLogger(r.cfg.Log))
}

// Gatekeeper is the rack's controller; nil if it has crashed.
func (r *Rack) Gatekeeper() *gatekeeper.Gatekeeper {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.keeper == nil {
		return nil
	}
	return r.keeper.Gatekeeper
}

// Host is a blade's place on the wire.
func (r *Rack) Host(blade string) *wire.Host { return r.wire.Host(blade) }

// Switch is the rack's switch.
func (r *Rack) Switch() *softswitch.Switch { return r.sw }

// Close stops everything and returns what went wrong in any part.
func (r *Rack) Close() error {
	errs := []error{r.blades.close()}
	if r.keeper != nil {
		errs = append(errs, r.keeper.end())
	}
	r.core.stop()
	if r.sw != nil {
		errs = append(errs, r.sw.Close())
	}
	if r.conn != nil {
		errs = append(errs, r.conn.Close())
	}
	return errors.Join(append(errs, r.core.close())...)
}
