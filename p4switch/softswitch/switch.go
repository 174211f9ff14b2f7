package softswitch

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/interp"
	"github.com/bifrost-rack/bifrost/p4switch/p4rt"
	"github.com/bifrost-rack/bifrost/p4switch/p4rt/p4info"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
)

// ErrClosed is returned for a switch that has been closed.
var ErrClosed = errors.New("softswitch: closed")

// DropPort is the port that v1model's mark_to_drop sends to: nowhere.
const DropPort datapath.Port = 511

// Config is what a Switch needs.
type Config struct {
	// DeviceID is the P4Runtime device id.
	DeviceID uint64
	// CPUPort is the port whose frames go to the controller as PacketIns; 0
	// means that there is none.
	CPUPort datapath.Port
	// Load builds executors: LoadGo, LoadEBPF or LoadAuto. nil means LoadGo, the
	// portable executor.
	Load Loader
	// CaptureDir, if not empty, is where what each port receives and sends is
	// captured, in files NAME_in.pcap and NAME_out.pcap. It must exist. Where the
	// executor runs in the kernel, these are frames as the kernel has them:
	// super-packets are whole, and checksums may be left to the hardware.
	CaptureDir string
	// Keep, if not empty, names what is kept while no process runs: the pipeline, what
	// was written to it, and in the kernel the program and its maps, which go on
	// forwarding when this process is killed. Restore takes it over. Close removes it.
	Keep string
	// Registers, if not nil, is where a Go executor's registers outlive this Switch, as a machine's memory outlives a process: another Switch with
	// the same Registers goes on with them.
	Registers *Registers
	// TLS secures P4Runtime; nil means plain text.
	TLS *tls.Config
	// Log receives notable events; nil discards them.
	Log *slog.Logger
}

// Switch is one software switch. All methods may be called concurrently.
type Switch struct {
	cfg Config
	log *slog.Logger
	srv *p4rt.Server

	keep    *persister // nil if nothing is kept
	inherit string     // while Restore loads: where the executor before is pinned
	// restored: ports of a process before may still be attached; for AttachInterfaces.
	restored bool

	exec atomic.Pointer[Executor] // nil before the first pipeline is committed
	runs atomic.Uint64            // how many pipelines were committed

	changes changes // of the state of ports
	ports   [numPorts]atomic.Pointer[port]
	emit    func(datapath.Port, []byte) // sends a frame out of a port at once
	lost    atomic.Uint64               // frames before there was a pipeline, or at or for no port

	moving sync.Mutex // held while interfaces are attached or change executors; before mu
	mu     sync.Mutex // makes changes of ports one at a time
	closed bool
	watch  *portWatch // nil before the first interface

	queues queues
}

// New makes a switch without ports and without a pipeline.
func New(cfg Config) (*Switch, error) {
	if cfg.CPUPort >= DropPort {
		return nil, fmt.Errorf("softswitch: CPU port %d is not below the drop port %d", cfg.CPUPort, DropPort)
	}
	if cfg.Load == nil {
		cfg.Load = LoadGo
	}
	s := &Switch{cfg: cfg, log: cfg.Log}
	s.emit = s.transmit
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	serve := p4rt.Config{
		DeviceID: cfg.DeviceID, Load: s.load, Commit: s.commit, Services: s.services, TLS: cfg.TLS, Log: s.log,
	}
	if cfg.Keep != "" {
		var err error
		if s.keep, err = newPersister(cfg.Keep); err != nil {
			return nil, err
		}
		serve.Persister = s.keep
	}
	srv, err := p4rt.New(serve)
	if err != nil {
		if s.keep != nil {
			err = errors.Join(err, s.keep.lock.Close())
		}
		return nil, err
	}
	s.srv = srv
	return s, nil
}

// Server is the switch's P4Runtime server.
func (s *Switch) Server() *p4rt.Server { return s.srv }

// Serve answers controllers on a listener until Close.
func (s *Switch) Serve(l net.Listener) error { return s.srv.Serve(l) }

// load builds an executor for the P4Runtime server (p4rt.LoadFunc).
func (s *Switch) load(info *p4info.Info, deviceConfig []byte, sink datapath.Sink, goOn bool) (datapath.Datapath, error) {
	env := Env{
		Info: info, CPUPort: s.cfg.CPUPort, Sink: sink, Emit: s.emit,
		Local: s.local(), Inherit: s.inherit, Links: s.links(), Log: s.log,
	}
	if e := s.exec.Load(); e != nil && goOn {
		env.Former = *e
	}
	env.Registers = func(prog *v1model.Program) (*interp.Registers, error) { return s.registers(prog, env.Former, goOn) }
	return s.cfg.Load(deviceConfig, env)
}

// commit makes an executor the path of all frames.
func (s *Switch) commit(dp datapath.Datapath) {
	e, ok := dp.(Executor)
	if !ok {
		panic(fmt.Sprintf("softswitch: committed a %T, which load did not make", dp))
	}
	if g, ok := e.(*goExecutor); ok {
		s.cfg.Registers.are(g.Registers())
	}
	s.moving.Lock()
	defer s.moving.Unlock()
	var old Executor
	if p := s.exec.Swap(&e); p != nil {
		old = *p
	}
	s.runs.Add(1)
	s.move(old, e)
	s.queues.follow(s, e)
}

// Input is a frame that came in at a port. It is run to its end before Input
// returns. The frame is lent for the call.
func (s *Switch) Input(num datapath.Port, frame []byte) {
	p := s.port(num)
	if p == nil {
		s.lost.Add(1)
		return
	}
	p.receive(frame)
	s.process(p, frame, s.emit)
}

func (s *Switch) port(num datapath.Port) *port {
	if num >= numPorts {
		return nil
	}
	return s.ports[num].Load()
}

// Lost counts the frames that came before there was a pipeline, and those at or
// for a port that is not attached.
func (s *Switch) Lost() uint64 {
	n := s.lost.Load()
	if k := s.kernel(); k != nil {
		n += k.lost()
	}
	return n
}

// TableStats is a table's name and counters.
type TableStats struct {
	Table string
	datapath.TableCounts
}

// Tables counts the lookups in every table with a key, by name.
func (s *Switch) Tables() []TableStats {
	var out []TableStats
	if e := s.exec.Load(); e != nil {
		if c, ok := (*e).(tableCounter); ok {
			for name, n := range c.TableStats() {
				out = append(out, TableStats{name, n})
			}
		}
	}
	slices.SortFunc(out, func(a, b TableStats) int { return strings.Compare(a.Table, b.Table) })
	return out
}

// errNoProgram is returned as long as no pipeline was committed.
var errNoProgram = errors.New("softswitch: no program")

// Register reads a cell of a register of the program that runs, big-endian.
func (s *Switch) Register(name string, index int) ([]byte, error) {
	e := s.exec.Load()
	if e == nil {
		return nil, errNoProgram
	}
	return (*e).Register(name, index)
}

// SetRegister writes a cell of a register of the program that runs.
func (s *Switch) SetRegister(name string, index int, v []byte) error {
	e := s.exec.Load()
	if e == nil {
		return errNoProgram
	}
	return (*e).SetRegister(name, index, v)
}

// Close detaches all ports, ends all controllers' connections, and returns when
// nothing of the switch runs any more.
func (s *Switch) Close() error {
	s.mu.Lock()
	s.closed = true
	watch := s.watch
	s.mu.Unlock()
	watch.close()
	// A kernel executor lets go of all its interfaces at the same time, and so do
	// the ports that are left: one takes the kernel some ten milliseconds.
	err := s.srv.Close()
	s.moving.Lock()
	defer s.moving.Unlock()
	s.queues.end()
	s.queues.done.Wait()
	var left sync.WaitGroup
	for i := range s.ports {
		if p := s.ports[i].Swap(nil); p != nil {
			left.Go(p.close)
		}
	}
	left.Wait()
	if s.keep != nil {
		err = errors.Join(err, s.keep.close())
	}
	return err
}

// links is where attachments to interfaces are pinned; empty if they are not.
func (s *Switch) links() string {
	if s.keep == nil {
		return ""
	}
	return s.keep.ports()
}
