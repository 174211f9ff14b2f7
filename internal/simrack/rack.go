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
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/bifrost-rack/bifrost/daemon"
	"github.com/bifrost-rack/bifrost/dsm/memory"
	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/softswitch"
	"github.com/bifrost-rack/bifrost/rpc"
)

// Rack is a running rack. Its methods may be called concurrently.
type Rack struct {
	cfg  Config
	wire *wire.Net
	line *line
	conn *grpc.ClientConn

	registers softswitch.Registers // what the switch's machine has in memory

	turn       chan struct{} // who holds its token crashes or restarts the Gatekeeper
	mu         sync.Mutex
	sw         *softswitch.Switch // nil when it has crashed
	controller *controller        // nil when it has crashed
	ousted     []*controller      // Gatekeepers that another one has taken the log from
	refuses    atomic.Bool        // the switch refuses writes
	refused    atomic.Uint64      // of them, how many it has refused
	sessions   sync.Map           // join.Session by netip.Addr: see Session

	blades map[string]*blade // does not change

	// Programs and compute blades end first, so that they can say goodbye, then memory blades, then the rest.
	running, storing, core *group
	fail                   func() // closes failed
	failed                 chan struct{}
}

// Start brings a rack up and returns when every blade is registered. Whoever
// gets it must Close it.
func Start(ctx context.Context, cfg Config) (*Rack, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	r := &Rack{cfg: cfg, blades: map[string]*blade{}, turn: make(chan struct{}, 1), line: newLine(), failed: make(chan struct{})}
	r.fail = sync.OnceFunc(func() { close(r.failed) })
	r.running, r.storing, r.core = newGroup(ctx, r.fail), newGroup(ctx, r.fail), newGroup(ctx, r.fail)
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
	if err := r.startSwitch(); err != nil {
		return err
	}
	r.core.run("wire", func(ctx context.Context) error { r.wire.Run(ctx); return nil })
	var err error
	if r.conn, err = r.dial(); err != nil {
		return err
	}
	if r.controller, err = r.startGatekeeper(); err != nil {
		return err
	}
	for i, b := range r.cfg.Blades {
		if err := r.plug(i+1, b); err != nil {
			return fmt.Errorf("blade %s: %w", b.Name, err)
		}
	}
	return nil
}

// registered waits until the Gatekeeper has welcomed every blade, and every pair of memory
// blades holds two copies.
func (r *Rack) registered(ctx context.Context) error {
	for _, b := range r.cfg.Blades {
		select {
		case <-r.blades[b.Name].now().ready:
		case <-ctx.Done():
			return fmt.Errorf("simrack: blade %s is not registered: %w", b.Name, ctx.Err())
		}
	}
	return r.mirrored(ctx)
}

// mirrored waits until every pair of memory blades holds two copies. Without a Gatekeeper
// there is nobody to wait for.
func (r *Rack) mirrored(ctx context.Context) error {
	single := func(m gatekeeper.MachineState) bool { return len(m.Blades) > 1 && (m.InService < 2 || m.Why != "") }
	for len(r.cfg.Machines) > 0 {
		g := r.Gatekeeper()
		if g == nil {
			return nil
		}
		s, err := g.Snapshot(ctx)
		if err != nil || !slices.ContainsFunc(s.Machines, single) {
			return err
		}
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("simrack: the memory machines do not have their copies: %w", ctx.Err())
		}
	}
	return nil
}

// Join makes a node on a compute blade.
func (r *Rack) Join(ctx context.Context, blade, name string) (*rpc.Node, error) {
	j, err := r.Joiner(blade)
	if err != nil {
		return nil, err
	}
	return rpc.Join(join.NewContext(ctx, j), rpc.WithName(name), rpc.WithLogger(r.cfg.Log))
}

// Joiner is whom a program on a compute blade asks to join.
func (r *Rack) Joiner(blade string) (join.Joiner, error) {
	c, err := r.Compute(blade)
	return noting{r, c}, err
}

// Silent is a joiner whose programs give no account of their rights when the switch has lost them.
type Silent struct{ join.Joiner }

// Join implements join.Joiner. The session is no join.Accountant.
func (s Silent) Join(ctx context.Context, name string) (join.Session, error) {
	session, err := s.Joiner.Join(ctx, name)
	return struct{ join.Session }{session}, err
}

// noting is a joiner whose nodes' sessions the rack knows.
type noting struct {
	rack *Rack
	join.Joiner
}

// Join implements join.Joiner.
func (n noting) Join(ctx context.Context, name string) (join.Session, error) {
	s, err := n.Joiner.Join(ctx, name)
	if err == nil {
		n.rack.sessions.Store(s.Node().Address, s)
	}
	return s, err
}

// Session is that of a node which a Joiner has made, so that packets can be sent in the node's name. It is nil for other nodes.
func (r *Rack) Session(node netip.Addr) join.Session {
	if s, ok := r.sessions.Load(node); ok {
		return s.(join.Session)
	}
	return nil
}

// Compute is the daemon of a compute blade, as of its last boot.
func (r *Rack) Compute(blade string) (*daemon.Compute, error) {
	l, err := r.compute(blade)
	if err != nil {
		return nil, err
	}
	return l.compute, nil
}

// Gatekeeper is the rack's controller; nil if it has crashed.
func (r *Rack) Gatekeeper() *gatekeeper.Gatekeeper {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.controller == nil {
		return nil
	}
	return r.controller.Gatekeeper
}

// Host is a blade's place on the wire.
func (r *Rack) Host(blade string) *wire.Host { return r.wire.Host(blade) }

// MemoryServer is the memory server of a blade; nil if it is none.
func (r *Rack) MemoryServer(name string) *memory.Server {
	if b := r.blades[name]; b != nil && b.Kind == control.Memory {
		return b.now().memory.Server()
	}
	return nil
}

// Failed is closed when a part of the rack has ended of its own accord, with an error, which Close returns. A Gatekeeper that was crashed
// counts, too.
func (r *Rack) Failed() <-chan struct{} { return r.failed }

// CloseCompute stops the programs and compute blades, for good, and returns what went wrong there. The rest of the rack goes on until Close.
func (r *Rack) CloseCompute() error { return r.running.close() }

// Close stops everything and returns what went wrong in any part.
func (r *Rack) Close() error {
	errs := []error{r.CloseCompute(), r.storing.close()}
	for _, k := range r.ousted {
		_ = k.end() // why it ended: somebody else has its log, and the switch
	}
	if r.controller != nil {
		errs = append(errs, r.controller.end())
	}
	r.core.stop()
	if sw := r.Switch(); sw != nil {
		errs = append(errs, sw.Close())
	}
	if r.conn != nil {
		errs = append(errs, r.conn.Close())
	}
	errs = append(errs, r.core.close())
	if r.cfg.LedgerDir != "" { // Pebble keeps channels in pools, and no other bubble of a test may use those of this one
		runtime.GC() // which empties a pool
		runtime.GC() // when it is done twice
	}
	return errors.Join(errs...)
}
