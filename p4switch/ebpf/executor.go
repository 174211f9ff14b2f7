//go:build linux

package ebpf

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
)

// DropPort is the egress port that means to drop.
const DropPort datapath.Port = 511

// Config is what an executor needs beside its program.
type Config struct {
	// CPUPort is the port to the control plane; 0 means there is none.
	CPUPort datapath.Port
	// Sink gets packets and digests; nil discards them.
	Sink datapath.Sink
	// Inherit is where another executor of the same program is pinned (Pin), running
	// or not: the new one goes on with its counters, registers, meters and digests, and
	// is given its entries anew. Empty: everything begins at zero.
	Inherit string
	// Former is another executor, running or not, with whose registers the new one goes on if both programs have the same ones: each sees at once
	// what packets change at the other. Nil: only Inherit says so.
	Former *Executor
	// Links is the directory of the BPF file system where the ports' attachments are
	// pinned, so that they outlive the process, and where those of the executor before
	// are taken over from. Empty: they end with the process.
	Links string
	// RegisterCells is how many cells a register has at most, whatever the program says: those beyond are not there. A
	// test's registers need not take the memory of a rack's. 0 leaves them as they are.
	RegisterCells int
	// Log receives notable events; nil discards them.
	Log *slog.Logger
	// Copies is how many copies of a packet Test shows at most, if it becomes more than one packet; 0 is one.
	Copies int
	// Stale has each packet of Test begin with a state full of what an earlier packet could have left: it must make no difference.
	Stale bool

	edit func(asm.Instructions) asm.Instructions // a test's change of the code
	// noTCX makes a test attach programs as on kernels before 6.6.
	noTCX bool
}

// Executor runs a program in the kernel. All methods may be called
// concurrently.
type Executor struct {
	prog    *v1model.Program
	cells   int     // Config.RegisterCells
	placed  []array // where the program's registers lie
	sink    datapath.Sink
	log     *slog.Logger
	cpu     datapath.Port
	prefix  int // of a frame from the CPU port
	counted int // where the tables' counters lie in the state

	maps     maps
	main     *ebpf.Program
	access   *ebpf.Program // of registers; nil if there are none
	slot     *ebpf.Map     // program array that the stubs call through
	tables   map[string]*table
	sets     []*valueSet
	profiles []*profile
	epochs   epochs

	inherit, linkDir string
	former           *Executor // Config.Former until the registers are made
	pins             pins

	tap      *tap
	held     *held // nil unless packets to the control plane outlive the process
	digest   *digestReader
	messages []message // that the program sends beside digests
	links    links
	watcher  watcher
	sweeper  sweeper
	tcx      atomic.Bool // the kernel has it, as far as is known

	mu    sync.Mutex // guards what follows
	ports map[datapath.Port]*port
	// detached are ports that were attached, for what they have counted.
	detached map[datapath.Port]*port
	pinned   string   // where; empty if Pin was not called
	tracing  *session // nil unless packets are traced
	closed   bool

	testing sync.Mutex    // one test packet at a time
	tests   atomic.Uint64 // digests that tests have sent
	stale   bool          // Config.Stale
	// testOutputs is how many copies of a packet a test is shown.
	testOutputs int
}

var (
	_ datapath.Datapath = (*Executor)(nil)
	_ datapath.Replayer = (*Executor)(nil)
)

// New generates and loads a program. It refuses what it cannot run with an
// *UnsupportedError, and a program that is too large for the kernel's verifier
// with datapath.ErrUnsupported.
func New(prog *v1model.Program, cfg Config) (*Executor, error) {
	x := &Executor{
		prog: prog, cells: cfg.RegisterCells, sink: cfg.Sink, log: cfg.Log, cpu: cfg.CPUPort,
		tables: map[string]*table{}, ports: map[datapath.Port]*port{}, detached: map[datapath.Port]*port{},
		inherit: cfg.Inherit, former: cfg.Former, linkDir: cfg.Links, pins: pins{}, testOutputs: max(cfg.Copies, 1), stale: cfg.Stale,
	}
	if x.sink == nil {
		x.sink = discard{}
	}
	if x.log == nil {
		x.log = slog.New(slog.DiscardHandler)
	}
	x.tcx.Store(!cfg.noTCX)
	if _, err := layoutOfSkb(); err != nil {
		return nil, fmt.Errorf("ebpf: %w", err)
	}
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("ebpf: %w", err)
	}
	var err error
	if x.links, err = newLinks(); err != nil {
		return nil, fmt.Errorf("ebpf: %w", err)
	}
	err = x.watcher.start(x)
	if err == nil {
		err = x.load(cfg.edit)
	}
	if err != nil {
		return nil, errors.Join(err, x.Close())
	}
	return x, nil
}

// load makes everything in the kernel.
func (x *Executor) load(edit func(asm.Instructions) asm.Instructions) error {
	g := newGen(x.prog, x.cpu, x.cells)
	x.prefix, x.counted = g.st.prefix, g.st.tables
	if lacks := Lacks(x.prog, x.cpu); len(lacks) > 0 {
		return &UnsupportedError{lacks}
	}
	if err := x.makeMaps(g); err != nil {
		return err
	}
	g.objs = x.objects()
	g.program()
	x.messages = g.messages
	code := g.finish()
	if edit != nil {
		code = longJumps(edit(code))
	}
	if err := x.loadMain(code); err != nil {
		return err
	}
	if err := x.fillTables(); err != nil {
		return err
	}
	if len(x.prog.Digests)+len(x.messages) > 0 {
		var err error
		if x.digest, err = newDigestReader(x); err != nil {
			return err
		}
	}
	x.sweeper.start(x)
	if x.cpu == 0 {
		return nil
	}
	var err error
	if x.maps.held != nil {
		if x.held, err = openHeld(x.maps.held, x.inherit != ""); err != nil {
			return err
		}
	}
	x.tap, err = newTap(x)
	return err
}

func (x *Executor) loadMain(code asm.Instructions) error {
	var err error
	if x.main, err = loadProgram(code); err != nil {
		return err
	}
	return x.slot.Put(uint32(0), x.main)
}

func loadProgram(code asm.Instructions) (*ebpf.Program, error) {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "bifrost", Type: ebpf.SchedCLS, Instructions: code, License: "Apache-2.0"})
	var v *ebpf.VerifierError
	switch {
	case err == nil:
		return p, nil
	case errors.As(err, &v) || errors.Is(err, unix.E2BIG):
		return nil, fmt.Errorf("%w: the kernel refuses the program: %w", datapath.ErrUnsupported, err)
	}
	return nil, fmt.Errorf("ebpf: load program: %w", err)
}

// newGen makes a generator for a program.
func newGen(p *v1model.Program, cpu datapath.Port, cells int) *gen {
	g := &gen{
		cells: cells, prog: p, cpu: cpu, drop: uint64(DropPort), forks: forksOf(p),
		alias: map[string]string{}, emits: map[*v1model.Header]bool{}, stacked: map[*v1model.Header]bool{}, scanned: map[string]*scanPlan{}, spaces: map[string]tupleSearch{},
	}
	for _, h := range p.Deparser.Order {
		g.emits[h] = true
	}
	for _, s := range p.Stacks {
		for _, h := range s.Headers {
			g.stacked[h] = true
		}
	}
	g.codes.none, _ = p.ErrorCode("NoError")
	g.codes.tooShort, _ = p.ErrorCode(v1model.ErrorPacketTooShort)
	g.codes.stackFull, _ = p.ErrorCode(v1model.ErrorStackBounds)
	g.codes.headerTooShort, _ = p.ErrorCode(v1model.ErrorHeaderTooShort)
	g.codes.timeout, _ = p.ErrorCode(v1model.ErrorParserTimeout)
	g.codes.invalid, _ = p.ErrorCode(v1model.ErrorInvalidArgument)
	prefix := prefixOf(p, cpu)
	g.walk = walkParser(p, prefix)
	g.head = align8(max(g.walk.end, minWindow))
	digest := messageBytes(p)
	for _, d := range p.Digests {
		digest = max(digest, digestBytes(d))
	}
	g.st = newState(p, g.forks, prefix, g.head, digest, g.cells)
	return g
}

// minWindow is enough for the headers of a super-packet.
const minWindow = 128

// maxState is how far the code can address.
const maxState = 32000

// Lacks tells everything that a program uses and eBPF lacks, without loading
// anything.
func Lacks(p *v1model.Program, cpu datapath.Port) []Lack {
	g := newGen(p, cpu, 0)
	g.objs = none(p)
	g.check()
	g.program()
	return g.lacks
}

// check notes lacks that generating the code does not come by.
func (g *gen) check() {
	p := g.prog
	for _, h := range p.Headers {
		g.place = fmt.Sprintf("header %q", h.Name)
		g.checkVarbit(h)
		if !h.Metadata && h.Type.Bits/8 > maxHeader {
			g.lack("header of more than %d bytes", maxHeader)
		}
	}
	for _, c := range p.Checksums {
		g.checkChecksum(c)
	}
	g.place = "program"
	if _, size := registerLayout(p, g.cells); size > maxRegisters {
		g.lack("registers of more than %d bytes", maxRegisters)
	}
	if g.st.size > maxState {
		g.lack("headers and metadata of more than %d bytes", maxState)
	}
}

// Program is the program that the executor runs.
func (x *Executor) Program() *v1model.Program { return x.prog }

// Close detaches all ports and removes everything from the kernel.
func (x *Executor) Close() error {
	x.mu.Lock()
	if x.closed {
		x.mu.Unlock()
		return nil
	}
	x.closed = true
	ports, tracing := x.ports, x.tracing
	x.ports = nil
	x.mu.Unlock()
	if tracing != nil {
		tracing.out.Stop()
	}
	x.watcher.stop()
	x.sweeper.stop()
	var todo []func() error
	for _, p := range ports {
		todo = append(todo, p.detach)
	}
	if x.tap != nil {
		todo = append(todo, x.tap.close)
	}
	if x.digest != nil {
		todo = append(todo, x.digest.close)
	}
	if x.held != nil {
		todo = append(todo, x.held.close)
	}
	return errors.Join(together(todo), x.unpin(), x.closeMaps(), x.links.close())
}

// together calls functions at the same time: what they ask of the kernel makes it
// wait for all CPUs, and it can wait for several at once. But not for ports: to
// detach a program it waits, some 16 ms, with the lock of all interfaces held, and
// does the same when a process ends without having detached anything.
func together(fs []func() error) error {
	errs := make([]error, len(fs))
	var all sync.WaitGroup
	for i, f := range fs {
		all.Go(func() { errs[i] = f() })
	}
	all.Wait()
	return errors.Join(errs...)
}

// discard is the sink of an executor without one.
type discard struct{}

func (discard) PacketIn([]byte)        {}
func (discard) Digest(datapath.Digest) {}
func (discard) Idle(datapath.Entry)    {}
