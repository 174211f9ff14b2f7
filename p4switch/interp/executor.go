package interp

import (
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
)

// Emit takes a packet that leaves by a port. It runs on the packet path: it
// must not call the executor back, and the frame is only valid during the call.
type Emit = func(port datapath.Port, frame []byte)

// Config is what an executor needs beside its program. All fields are optional.
type Config struct {
	// CPUPort is the port to the control plane: what leaves by it goes to the
	// sink, what PacketOut hands in comes from it. 0 means there is none.
	CPUPort datapath.Port
	// DropPort is the egress port that means to drop; 0 means DropPort.
	DropPort datapath.Port
	// Sink gets packets, digests and notifications; nil discards them.
	Sink datapath.Sink
	// Output emits packets if Process is given no function, and those that
	// PacketOut leads to; nil discards them.
	Output Emit
	// Now is the clock of timestamps, meters and idle timeouts; time.Now by
	// default.
	Now func() time.Time
	// Random yields uniform 64-bit numbers, from any goroutine; by default
	// math/rand/v2's.
	Random func() uint64
	// Logger gets log_msg, at level info, and failed assertions; slog.Default()
	// by default.
	Logger *slog.Logger
	// Tracer, if not nil, is told everything that happens.
	Tracer Tracer
	// Registers, if not nil, are those of the program (Registers.Of), with what they have: another executor's, or from a file. By default they are
	// the executor's own, and empty.
	Registers *Registers
}

// Executor runs a program. All methods may be called concurrently, but not
// from Emit or from the sink.
type Executor struct {
	c       *compiler
	config  Config
	sink    datapath.Sink
	start   time.Time
	workers sync.Pool
	states  sync.Pool
	tracing tracing
	closed  atomic.Bool

	parser          *parser
	ingress, egress *node
	deparser        *deparser
	std             standard
	depths          []atomic.Uint32 // of the ports' queues, in packets; nil unless the program uses them

	tables    []*table
	profiles  []*profile
	valueSets []*valueSet
	sweeper   sweeper

	// lock guards what packets read and the control plane writes: the tables'
	// entries, members, groups, value sets' members, and these.
	lock     *pathLock
	groups   map[uint32][]datapath.Replica // multicast
	sessions map[uint32]*session           // clone
}

var _ datapath.Datapath = (*Executor)(nil)

// New compiles a program. It refuses what the executor cannot run, naming it,
// with datapath.ErrUnsupported.
func New(prog *v1model.Program, config Config) (*Executor, error) {
	x := &Executor{
		config: config, sink: config.Sink, tracing: tracing{tracer: config.Tracer},
		lock:   newPathLock(len(prog.Tables)),
		groups: map[uint32][]datapath.Replica{}, sessions: map[uint32]*session{},
	}
	if x.sink == nil {
		x.sink = discard{}
	}
	if x.config.Output == nil {
		x.config.Output = func(datapath.Port, []byte) {}
	}
	now, log := config.Now, config.Logger
	if now == nil {
		now = time.Now
	}
	if log == nil {
		log = slog.Default()
	}
	if err := checkKeys(prog); err != nil {
		return nil, err
	}
	if x.config.DropPort == 0 {
		x.config.DropPort = DropPort
	}
	x.start = now()
	x.c = newCompiler(prog, now, log)
	x.c.dropPort = uint64(x.config.DropPort)
	if x.c.memory = config.Registers; x.c.memory == nil {
		x.c.memory = NewRegisters(prog, nil, nil)
	} else if !x.c.memory.Of(prog) {
		return nil, fmt.Errorf("interp: the registers are those of another program: %w", datapath.ErrUnsupported)
	}
	x.c.compileObjects()
	x.valueSets = x.c.valueSets
	x.std = newStandard(x.c)
	if prog.UsesQueues() {
		x.depths = make([]atomic.Uint32, numPorts)
	}
	x.parser, x.deparser = x.c.parser(), x.c.deparser()
	if err := x.newTables(); err != nil {
		return nil, err
	}
	x.workers.New = func() any { return x.newWorker() }
	x.states.New = func() any { return x.newState() }
	return x, nil
}

// newTables makes tables, profiles and pipelines.
func (x *Executor) newTables() error {
	prog := x.c.prog
	for _, def := range prog.Profiles {
		p := &profile{def: def, members: map[uint32]*member{}, groups: map[uint32]*group{}}
		if def.Selector != nil {
			p.hash = x.c.calculation(def.Selector)
		}
		x.profiles = append(x.profiles, p)
	}
	g := &graph{x.c, map[v1model.Node]*node{}, map[*v1model.Table]*table{}}
	for _, def := range prog.Tables {
		t, err := x.newTable(def)
		if err != nil {
			return err
		}
		x.tables = append(x.tables, t)
		g.tables[def] = t
	}
	x.ingress, x.egress = g.node(prog.Ingress.Start), g.node(prog.Egress.Start)
	for _, t := range x.tables {
		if err := t.fill(x.c.actions); err != nil {
			return err
		}
	}
	return nil
}

// checkKeys refuses transitions whose keys are wider than a state has room for.
func checkKeys(prog *v1model.Program) error {
	for _, st := range prog.Parser.States {
		n := 0
		for _, k := range st.Key {
			n += wordsFor(k.Width)
		}
		if n > maxKeyWords {
			return fmt.Errorf("parser state %q: %w: key of more than %d bits", st.Name, datapath.ErrUnsupported, maxKeyWords*64)
		}
	}
	return nil
}

// Program is the program that the executor runs.
func (x *Executor) Program() *v1model.Program { return x.c.prog }

// Close stops the packet path: packets in flight finish, later ones are
// discarded.
func (x *Executor) Close() error {
	x.closed.Store(true)
	if w := x.tracing.session.Load(); w != nil {
		w.session.Stop()
	}
	x.lock.drain()
	x.sweeper.close()
	return nil
}

// discard is the sink of an executor without one.
type discard struct{}

func (discard) PacketIn([]byte)        {}
func (discard) Digest(datapath.Digest) {}
func (discard) Idle(datapath.Entry)    {}

// pathLock is a read lock in several shards. A packet takes one shard, so that
// packets on different CPUs do not contend for a cache line; a writer takes
// them all, and so waits until every packet that was on its way is done.
type pathLock struct {
	shards []shard
	next   atomic.Uint32 // shard for the next worker
}

// shard is a read lock and the counts of the packets that took it. It fills its
// own cache lines.
type shard struct {
	sync.RWMutex
	stats  stats
	tables []tableCount // by the table's index
	_      [64]byte
}

func newPathLock(tables int) *pathLock {
	l := &pathLock{shards: make([]shard, 2*runtime.GOMAXPROCS(0))}
	for i := range l.shards {
		l.shards[i].tables = make([]tableCount, tables)
	}
	return l
}

// pick gives a worker its shard.
func (l *pathLock) pick() *shard {
	return &l.shards[int(l.next.Add(1))%len(l.shards)]
}

// lock waits until no packet is on its way and lets none begin.
func (l *pathLock) lock() {
	for i := range l.shards {
		l.shards[i].Lock()
	}
}

func (l *pathLock) unlock() {
	for i := range l.shards {
		l.shards[i].Unlock()
	}
}

// drain waits until the packets that are on their way now are done.
func (l *pathLock) drain() {
	l.lock()
	defer l.unlock()
}

// Stats counts what has become of packets.
type Stats struct {
	// In are the packets handed to Process and PacketOut.
	In uint64
	// Out are the packets emitted, ToCPU those of them that went to the sink.
	Out, ToCPU uint64
	// Dropped are the packets, copies included, that the program dropped.
	Dropped uint64
	// Asserted were dropped because an assertion of the program failed.
	Asserted uint64
	// ParserErrors are the packets whose parser ended with an error.
	ParserErrors uint64
	// Looped were dropped because one packet had made too many copies, or an action
	// had made too many steps.
	Looped uint64
}

// stats is Stats for a shard.
type stats struct {
	in, out, toCPU, dropped, asserted, parserErrors, looped atomic.Uint64
}

// Stats sums up what has been counted so far.
func (x *Executor) Stats() Stats {
	var t Stats
	for i := range x.lock.shards {
		s := &x.lock.shards[i].stats
		t.In += s.in.Load()
		t.Out += s.out.Load()
		t.ToCPU += s.toCPU.Load()
		t.Dropped += s.dropped.Load()
		t.Asserted += s.asserted.Load()
		t.ParserErrors += s.parserErrors.Load()
		t.Looped += s.looped.Load()
	}
	return t
}

// tableCount is datapath.TableCounts for a shard.
type tableCount struct{ hits, misses atomic.Uint64 }

// TableStats counts the lookups in every table with a key, by its name.
func (x *Executor) TableStats() map[string]datapath.TableCounts {
	all := map[string]datapath.TableCounts{}
	for _, def := range x.c.prog.Tables {
		if len(def.Key) == 0 {
			continue
		}
		var t datapath.TableCounts
		for i := range x.lock.shards {
			n := &x.lock.shards[i].tables[def.Index]
			t.Hits += n.hits.Load()
			t.Misses += n.misses.Load()
		}
		all[def.Name] = t
	}
	return all
}
