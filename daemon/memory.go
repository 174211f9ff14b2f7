package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/bifrost-rack/bifrost/dsm/memory"
	"github.com/bifrost-rack/bifrost/dsm/memory/store"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// MemoryConfig describes a memory blade.
type MemoryConfig struct {
	Blade
	// Machine is the machine id to ask for; 0 leaves it to the Gatekeeper.
	Machine uint8
	// Capacity is how many bytes of regions the blade holds at most.
	Capacity uint64
	// Limits are memory.Config.Limits.
	Limits store.Limits
	// Ledgers is memory.Config.Ledgers. A Birth of 0 stands for Blade.Boot, which must be what [memory.LedgerDisk.Boot] says; if the disk has a birth
	// number, that counts. The disk is the caller's, to be closed after Run.
	Ledgers memory.LedgerConfig
}

// Memory is the daemon of a memory blade.
type Memory struct {
	cfg MemoryConfig
	reg *registrar

	mu      turn
	ask     chan struct{}  // there is something to ask the Gatekeeper; has room for one
	machine uint8          // assigned; 0 before the first welcome
	began   uint64         // of the rack: control.Welcome.Began
	server  *memory.Server // nil before the first welcome
	stop    func()         // ends the server, and waits for that

	serving sync.WaitGroup
	failure error              // the server's; to be read after serving
	cancel  context.CancelFunc // ends Run
}

// turn is a lock that may be held while a disk is awaited: it has a token while somebody has it. In virtual time, whoever waits for a
// mutex holds up all others.
type turn chan struct{}

func (t turn) lock()   { t <- struct{}{} }
func (t turn) unlock() { <-t }

// NewMemory returns a daemon whose endpoint is open; whoever gets it must Run it.
func NewMemory(cfg MemoryConfig) (*Memory, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	if cfg.Capacity == 0 {
		return nil, fmt.Errorf("memory blade %s has no capacity", cfg.Name)
	}
	if boot := cfg.Ledgers.Disk.Boot(cfg.Boot); boot != cfg.Boot {
		return nil, fmt.Errorf("memory blade %s has boot number %#x, but its restored regions need boot number %#x", cfg.Name, cfg.Boot, boot)
	}
	cfg.Ledgers.Birth = cmp.Or(cfg.Ledgers.Birth, cfg.Boot)
	m := &Memory{cfg: cfg, mu: make(turn, 1), ask: make(chan struct{}, 1)}
	reg, err := newRegistrar(cfg.Blade, m)
	if err != nil {
		return nil, fmt.Errorf("memory blade %s: %w", cfg.Name, err)
	}
	m.reg = reg
	return m, nil
}

// Run serves until ctx ends; then all regions are gone. It returns nil unless the
// blade cannot be registered or its endpoints fail.
func (m *Memory) Run(ctx context.Context) error {
	if err := m.begin(); err != nil {
		return errors.Join(fmt.Errorf("memory blade %s: %w", m.cfg.Name, err), m.reg.conn.Close())
	}
	ctx, m.cancel = context.WithCancel(ctx)
	m.serving.Go(func() { m.askForOwners(ctx) })
	err := m.reg.run(ctx)
	m.cancel()
	m.serving.Wait()
	if err == nil {
		err = m.failure
	}
	return err
}

// mayAsk has the Gatekeeper asked what the server wants to know.
func (m *Memory) mayAsk() {
	select {
	case m.ask <- struct{}{}:
	default:
	}
}

// askForOwners asks the Gatekeeper whose nodes are, until ctx ends: one question after the other.
func (m *Memory) askForOwners(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.ask:
		}
		s := m.Server()
		for s != nil && ctx.Err() == nil && m.askOnce(ctx, s) {
		}
	}
}

// askOnce asks one question, and reports whether there was one.
func (m *Memory) askOnce(ctx context.Context, s *memory.Server) bool {
	q := s.Asking()
	if len(q.Nodes) == 0 {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, heartbeatPatience)
	defer cancel()
	var a control.OwnersReply
	if err := m.reg.ask.AskInTurn(ctx, control.KindOwners, q, &a); err != nil {
		m.reg.log.Debug("ask for owners", "err", err)
	}
	s.Told(q, a)
	return true
}

// begin has the disk take the birth number before hello announces it: the Gatekeeper places ledgers where that number is.
func (m *Memory) begin() (err error) {
	m.mu.lock()
	defer m.mu.unlock()
	if d := m.cfg.Ledgers.Disk; d != nil {
		m.cfg.Ledgers.Birth, err = d.Begin(m.cfg.Ledgers.Birth)
	}
	return err
}

// Server is the blade's memory server, nil before the blade is registered.
func (m *Memory) Server() *memory.Server {
	m.mu.lock()
	defer m.mu.unlock()
	return m.server
}

func (m *Memory) hello() control.Hello {
	m.mu.lock()
	defer m.mu.unlock()
	machine := m.cfg.Machine
	if m.machine != 0 {
		machine = m.machine
	}
	return control.Hello{
		Blade: m.cfg.Name, Kind: control.Memory, MAC: m.cfg.MAC.String(), Machine: machine,
		Capacity: m.cfg.Capacity, Spec: m.cfg.Spec, Boot: m.cfg.Boot, Generation: m.generation(), Birth: m.birth(),
	}
}

// generation is the highest of the server's regions. The caller holds m.mu.
func (m *Memory) generation() uint32 {
	if m.server == nil {
		return 0
	}
	return m.server.Generation()
}

// birth is what the memory of ledgers has begun with, or will. The caller holds m.mu.
func (m *Memory) birth() uint64 {
	if m.server == nil {
		return m.cfg.Ledgers.Birth
	}
	return m.server.Birth()
}

func (m *Memory) heartbeat() control.Heartbeat {
	h := control.Heartbeat{Blade: m.cfg.Name, Boot: m.cfg.Boot}
	if s := m.Server(); s != nil {
		h.Used, h.Generation = s.Used(), s.Generation()
		h.Diverged, h.MirrorEpoch = s.Diverged()
		ledgers := s.Ledgers()
		h.Ledgers = &ledgers
		h.Fill = s.FillProgress()
	}
	return h
}

// welcomed starts the server, the first time. One that has belonged to another rack
// begins anew: nobody knows its regions any more, and this rack's nodes may have the
// addresses of that one's.
func (m *Memory) welcomed(ctx context.Context, w control.Welcome) error {
	if err := m.cfg.Stack.AddAddress(w.Address); err != nil {
		return err
	}
	m.mu.lock()
	defer m.mu.unlock()
	floor := w.Floor
	if m.server != nil && w.Machine != m.machine {
		m.reg.log.Warn("the blade serves another machine: all regions go", "blade", m.cfg.Name, "machine", w.Machine, "before", m.machine)
		floor = max(floor, m.server.Generation())
		m.stop()
		m.server = nil
	}
	if m.server != nil {
		if w.Began != m.began {
			m.reg.log.Warn("the rack has begun anew: all regions go", "blade", m.cfg.Name)
			if err := m.server.Forget(w.Began); err != nil {
				return err
			}
			m.began = w.Began
		}
		if err := become(m.server, w.Mirror); err != nil {
			return err
		}
		if err := m.server.Grant(control.Grant{Batches: w.Batches}); err != nil {
			return err
		}
		return m.server.KeepUndo(w.Undo)
	}
	m.cfg.Ledgers.Rack = w.Began
	server, err := memory.NewServer(memory.Config{
		Stack: m.cfg.Stack, Prefix: w.Rack.DSMPrefix, Machine: w.Machine, Capacity: m.cfg.Capacity, Floor: floor, Lost: w.Lost,
		Limits:      m.cfg.Limits,
		Ledgers:     m.cfg.Ledgers,
		FillChanged: m.reg.hurry, Ask: m.mayAsk,
	})
	if err != nil {
		return err
	}
	if err := server.KeepUndo(w.Undo); err != nil {
		return err
	}
	if loaded, err := server.LoadSaved(); err != nil {
		return err
	} else if loaded {
		m.reg.log.Info("the blade begins with regions of a backup", "blade", m.cfg.Name, "bytes", server.Used())
	}
	if err := become(server, w.Mirror); err != nil {
		return err
	}
	if err := server.Grant(control.Grant{Batches: w.Batches}); err != nil {
		return err
	}
	running, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	m.serving.Go(func() {
		defer close(ended)
		err := server.Run(running)
		if running.Err() == nil || ctx.Err() != nil { // else another server takes its place
			m.failure = err
			m.cancel()
		}
	})
	m.stop = func() { cancel(); <-ended }
	m.server, m.machine, m.began = server, w.Machine, w.Began
	return nil
}

// become makes a server the copy that a welcome says it is. A command of a newer epoch may
// have overtaken the welcome; it counts.
func become(s *memory.Server, mirror *control.Mirror) error {
	if mirror == nil {
		return nil
	}
	if err := s.Become(*mirror); fault.CodeOf(err) != fault.Stale {
		return err
	}
	return nil
}

func (m *Memory) updated(control.Heartbeat, control.HeartbeatReply) {}

// lost keeps everything: the Gatekeeper asks for the regions when it knows the
// blade again.
func (m *Memory) lost() {}

// handle carries out a command of the Gatekeeper's. A blade that does not serve memory
// yet has nothing that a command could be about, unless it has ledgers on disk.
func (m *Memory) handle(ctx context.Context, msg control.Message) (any, error) {
	s := m.Server()
	if s == nil && (m.cfg.Ledgers.Disk != nil || needsServer(msg.Kind)) { // the welcome is still on its way, and what it says is older
		return nil, fault.New(fault.Unavailable, msg.Kind.String(), "blade %s does not serve yet", m.cfg.Name)
	}
	switch msg.Kind {
	case control.KindFence:
		return query(s, msg, (*memory.Server).Fence)
	case control.KindReclaim:
		return command(m, s, msg, (*memory.Server).Reclaim, func(r *control.Reclaim) uint64 { return r.Boot })
	case control.KindMirror:
		return query(s, msg, outcome((*memory.Server).Become))
	case control.KindGrant:
		return query(s, msg, func(s *memory.Server, g control.Grant) (any, error) { return nil, s.Grant(g) })
	case control.KindFill:
		return query(s, msg, outcome((*memory.Server).Fill))
	case control.KindComplete:
		return query(s, msg, outcome(func(s *memory.Server, q control.Complete) error { return s.Complete(ctx, q) }))
	case control.KindLevel:
		return query(s, msg, outcome(func(s *memory.Server, q control.Level) error { return s.Level(ctx, q) }))
	case control.KindLedgerGrant:
		return query(s, msg, (*memory.Server).GrantLedger)
	case control.KindLedgerDelete:
		return query(s, msg, (*memory.Server).DeleteLedger)
	case control.KindLedgers:
		return query(s, msg, (*memory.Server).ListLedgers)
	case control.KindBackup:
		return query(s, msg, (*memory.Server).Backup)
	case control.KindRegions:
		return query(s, msg, (*memory.Server).Regions)
	}
	return nil, fault.New(fault.Unsupported, msg.Kind.String(), "a memory blade does not take this command")
}

// needsServer reports whether a command makes no sense to a blade that has nothing.
func needsServer(k control.Kind) bool {
	switch k {
	case control.KindMirror, control.KindGrant, control.KindFill, control.KindComplete, control.KindLevel, control.KindBackup:
		return true
	}
	return false
}

// command carries out what a message asks of this start of the daemon.
func command[B, A any](m *Memory, s *memory.Server, msg control.Message, do func(*memory.Server, B) (A, error), boot func(*B) uint64) (any, error) {
	return query(s, msg, func(s *memory.Server, body B) (answer A, err error) {
		if b := boot(&body); b != m.cfg.Boot {
			return answer, fault.New(fault.Stale, msg.Kind.String(), "the command is for start %#x of blade %s, and this is start %#x", b, m.cfg.Name, m.cfg.Boot)
		}
		return do(s, body)
	})
}

// outcome makes an answer of a command's error: it is carried out, or refused for good,
// so that it is not to be asked for again.
func outcome[B any](do func(*memory.Server, B) error) func(*memory.Server, B) (control.Outcome, error) {
	return func(s *memory.Server, body B) (control.Outcome, error) {
		if err := do(s, body); err != nil {
			return control.Outcome{Code: fault.CodeOf(err), Message: err.Error()}, nil
		}
		return control.Outcome{}, nil
	}
}

// query answers what a message asks; with nothing if there is no server yet.
func query[B, A any](s *memory.Server, msg control.Message, ask func(*memory.Server, B) (A, error)) (any, error) {
	var body B
	if err := msg.Decode(&body); err != nil {
		return nil, err
	}
	if s == nil {
		var none A
		return none, nil
	}
	return ask(s, body)
}
