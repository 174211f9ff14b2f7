package simrack

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"

	"github.com/bifrost-rack/bifrost/daemon"
	"github.com/bifrost-rack/bifrost/dsm/memory"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/datapath"
)

// blade is one blade of a rack from its first boot on.
type blade struct {
	Blade
	host *wire.Host

	mu   sync.Mutex
	life *life // since the last boot
}

// life is what a blade does from boot to crash.
type life struct {
	ready   chan struct{} // closed when the blade is registered
	crashed bool          // guarded by blade.mu
	ended   chan struct{} // closed when the daemon and its programs have ended
	compute *daemon.Compute
	memory  *daemon.Memory
	runner  *runner // of a compute blade
	cfg     daemon.Blade
	witness sync.WaitGroup // of a memory blade's daemon
}

// plug puts a blade on the wire and boots it.
func (r *Rack) plug(n int, b Blade) error {
	port := datapath.Port(n)
	host, err := r.wire.AddHost(wire.HostConfig{Name: b.Name, Port: port, Address: rackaddr.Blade(uint64(n))})
	if err != nil {
		return err
	}
	host.Impair(r.cfg.Impair, r.cfg.Impair)
	if err := r.attach(r.Switch(), port); err != nil {
		return err
	}
	placed := &blade{Blade: b, host: host}
	r.blades[b.Name] = placed
	placed.mu.Lock()
	defer placed.mu.Unlock()
	return r.boot(placed)
}

// boot starts the blade's daemon.
// The caller holds b.mu.
func (r *Rack) boot(b *blade) error {
	l := &life{ready: make(chan struct{}), ended: make(chan struct{})}
	cfg := daemon.Blade{
		Boot: 1 + rand.Uint64()>>1, Name: b.Name, Stack: b.host, Address: b.host.Address(), MAC: b.host.MAC(), Log: r.cfg.Log.With("blade", b.Name),
		Registered: sync.OnceFunc(func() { close(l.ready) }),
	}
	l.cfg = cfg
	run, err := r.daemonOf(l, cfg, b.Blade)
	if err != nil {
		return err
	}
	b.life = l
	r.groupOf(b.Kind).run(b.Name, func(ctx context.Context) error {
		defer close(l.ended)
		err := run(ctx)
		l.witness.Wait()
		b.mu.Lock()
		defer b.mu.Unlock()
		if l.crashed {
			return nil // it has lost its network, and nobody hears what it has to say
		}
		return err
	})
	return nil
}

// groupOf is what the daemons of a kind of blades end with.
func (r *Rack) groupOf(kind string) *group {
	if kind == control.Memory {
		return r.storing
	}
	return r.running
}

// daemonOf makes the daemon of a kind of blade.
func (r *Rack) daemonOf(l *life, cfg daemon.Blade, b Blade) (run func(context.Context) error, err error) {
	if b.Kind == control.Memory {
		return r.memoryDaemon(l, cfg, b)
	}
	l.runner = &runner{programs: r.cfg.Programs, group: r.running, running: map[string]*process{}}
	c := daemon.ComputeConfig{Blade: cfg, Nodes: computeNodes, Runner: l.runner}
	if r.cfg.Compute != nil {
		if err := r.cfg.Compute(&c); err != nil {
			return nil, err
		}
	}
	l.compute, err = daemon.NewCompute(c)
	if err != nil {
		return nil, err
	}
	l.runner.host = l.compute
	return l.compute.Run, nil
}

// memoryDaemon makes the daemon of a memory blade.
func (r *Rack) memoryDaemon(l *life, cfg daemon.Blade, b Blade) (run func(context.Context) error, err error) {
	m := daemon.MemoryConfig{Blade: cfg, Capacity: b.Capacity, Machine: r.cfg.machineOf(b.Name), Limits: r.cfg.MemoryLimits}
	m.Ledgers.Space = r.cfg.LedgerSpace
	closing := func() error { return nil }
	if disk := r.cfg.LedgerDisks[b.Name]; disk != nil {
		m.Ledgers.Disk, err = memory.MemoryLedgerDisk(disk)
	} else if r.cfg.LedgerDir != "" {
		m.Ledgers.Disk, err = memory.OpenLedgerDisk(filepath.Join(r.cfg.LedgerDir, b.Name), false)
	}
	if err != nil {
		return nil, err
	}
	if m.Ledgers.Disk != nil {
		closing = m.Ledgers.Disk.Close
		m.Boot = m.Ledgers.Disk.Boot(m.Boot)
		l.cfg.Boot = m.Boot
	}
	if l.memory, err = daemon.NewMemory(m); err != nil {
		return nil, errors.Join(err, closing())
	}
	return func(ctx context.Context) error {
		return errors.Join(l.memory.Run(ctx), closing())
	}, nil
}

// now is the blade's life.
func (b *blade) now() *life {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.life
}

// compute returns the life of a compute blade.
func (r *Rack) compute(name string) (*life, error) {
	b := r.blades[name]
	if b == nil || b.Kind != control.Compute {
		return nil, fmt.Errorf("simrack: no compute blade %q", name)
	}
	return b.now(), nil
}

// CrashBlade ends a blade with all that runs on it, as a power cut does: nobody is told.
// What a memory blade holds is lost. CrashBlade does not wait for anything, so OnFrame may
// call it. A blade that has crashed stays as it is.
func (r *Rack) CrashBlade(name string) error {
	b := r.blades[name]
	if b == nil {
		return fmt.Errorf("simrack: no blade %q", name)
	}
	b.mu.Lock()
	l := b.life
	r.crashDisk(b, l)
	l.crashed = true
	b.mu.Unlock()
	b.host.Crash()
	if l.runner != nil {
		l.runner.killAll()
	}
	return nil
}

// KillDaemon ends the daemon of a memory blade, as kill -9 does: what it holds is lost, and
// its witness tells the Gatekeeper. It does not wait for anything, so OnFrame may call it. A
// blade that has crashed stays as it is.
func (r *Rack) KillDaemon(name string) error {
	b := r.blades[name]
	if b == nil || b.Kind != control.Memory {
		return fmt.Errorf("simrack: no memory blade %q", name)
	}
	b.mu.Lock()
	l, crashed := b.life, b.life.crashed
	r.crashDisk(b, l)
	l.crashed = true
	if !crashed {
		l.witness.Add(1) // before the life can end
	}
	b.mu.Unlock()
	if crashed {
		return nil
	}
	b.host.Crash()
	b.host.SetLink(true)
	r.storing.run("witness of "+name, func(ctx context.Context) error {
		defer l.witness.Done()
		_ = daemon.TellEnded(ctx, l.cfg) // if nobody hears it, silence tells
		return nil
	})
	return nil
}

// crashDisk ends the commits of a blade's disk that are under way, unless the blade has crashed before. The caller holds b.mu.
func (r *Rack) crashDisk(b *blade, l *life) {
	if disk := r.cfg.LedgerDisks[b.Name]; disk != nil && !l.crashed {
		disk.Crash()
	}
}

// BootBlade boots a blade that has crashed: its daemon says hello, and nothing runs on it.
// It returns before the Gatekeeper knows the blade. For a blade that is up it does nothing.
func (r *Rack) BootBlade(name string) error {
	b := r.blades[name]
	if b == nil {
		return fmt.Errorf("simrack: no blade %q", name)
	}
	b.mu.Lock()
	l, crashed := b.life, b.life.crashed
	b.mu.Unlock()
	if !crashed {
		return nil
	}
	<-l.ended
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.life != l { // booted meanwhile
		return nil
	}
	b.host.SetLink(true)
	return r.boot(b)
}
