//go:build linux

package ebpf

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"github.com/bifrost-rack/bifrost/p4switch/v1model"
	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

const (
	// numPorts is how many port numbers there are.
	numPorts = 512
	// digestRing is the room for digests that have not been read yet, in bytes.
	digestRing = 1 << 20
	// defaultTable is the size of a table that does not tell.
	defaultTable = 1 << 20
	// perCPUCells is the most cells of a counter that every CPU has of its own;
	// larger ones are shared.
	perCPUCells = 1 << 13
	// bpfNoPrealloc is BPF_F_NO_PREALLOC, which LPM tries need.
	bpfNoPrealloc = 1
)

// makeMaps makes the maps of a program.
func (x *Executor) makeMaps(g *gen) error {
	array := func(name string, typ ebpf.MapType, value, n int) (*ebpf.Map, error) {
		return newMap(&ebpf.MapSpec{Name: name, Type: typ, KeySize: 4, ValueSize: uint32(value), MaxEntries: uint32(n)})
	}
	o := &x.maps
	var err [7]error
	o.state, err[0] = array("state", ebpf.PerCPUArray, align8(g.st.size), 1)
	o.ports, err[1] = array("ports", ebpf.Array, portSize, numPorts)
	o.stats, err[2] = array("port_stats", ebpf.PerCPUArray, statSize, numPorts)
	o.prefix, err[3] = newMapped("prefix", align8(max(g.st.prefix, 8)), 1)
	o.digests, err[4] = x.kept("digests", &ebpf.MapSpec{Name: "digests", Type: ebpf.RingBuf, MaxEntries: digestRing})
	x.slot, err[5] = newMap(&ebpf.MapSpec{Name: "program", Type: ebpf.ProgramArray, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	x.epochs, err[6] = newEpochs()
	if e := errors.Join(err[:]...); e != nil {
		return e
	}
	x.pins["program"] = x.slot
	if x.linkDir != "" && x.cpu != 0 {
		var err error
		if o.held, err = x.makeHeld(); err != nil {
			return err
		}
	}
	if x.prog.UsesQueues() {
		var err error
		if o.depths, err = newMapped("queue_depths", queueSize, numPorts); err != nil {
			return err
		}
	}
	if g.forks.any() {
		if err := x.makeCopyMaps(g); err != nil {
			return err
		}
	}
	if err := errors.Join(x.makeRegisters(), x.makeMeters(), x.makeTables(), x.makeSets(), x.makeProfiles()); err != nil {
		return err
	}
	for i, c := range x.prog.Counters {
		m := (*ebpf.Map)(nil)
		if !c.Direct {
			var e error
			m, e = x.kept(fmt.Sprintf("counter_%d", i), &ebpf.MapSpec{
				Name: "counter", Type: counterType(c.Size), KeySize: 4, ValueSize: 16, MaxEntries: uint32(c.Size),
			})
			if e != nil {
				return fmt.Errorf("counter %q: %w", c.Name, e)
			}
		}
		o.counters = append(o.counters, m)
	}
	for _, t := range x.prog.Tables {
		if t.IsCall() {
			continue
		}
		made, e := x.newTable(t)
		if e != nil {
			return fmt.Errorf("table %q: %w", t.Name, e)
		}
		x.tables[t.Name] = made
	}
	return x.makeDirectCounters()
}

// makeDirectCounters makes the counters of all tables in two maps at most, one that every CPU has of its own and one that is shared: a program can have
// 64 maps.
func (x *Executor) makeDirectCounters() error {
	for _, typ := range []ebpf.MapType{ebpf.PerCPUArray, ebpf.Array} {
		var of []*table
		n := uint32(0)
		for _, def := range x.prog.Tables { // in their order, which the next process has, too
			if t := x.tables[def.Name]; t != nil && def.Counters && counterType(limitOf(def)+1) == typ {
				of, t.maps.counted = append(of, t), n
				n += uint32(limitOf(def) + 1) //nolint:gosec // of a map
			}
		}
		if n == 0 {
			continue
		}
		m, err := x.kept("direct_counters_"+strings.ToLower(typ.String()), &ebpf.MapSpec{Name: "direct_counters", Type: typ, KeySize: 4, ValueSize: 16, MaxEntries: n})
		if err != nil {
			return err
		}
		x.maps.direct = append(x.maps.direct, m)
		for _, t := range of {
			t.maps.counters = m
		}
	}
	return nil
}

// maps are the kernel's maps, but for those of the tables.
type maps struct {
	state, ports, stats, digests *ebpf.Map
	groups, lists, jobs, outputs *ebpf.Map   // nil unless there may be copies
	lock, registers              *ebpf.Map   // nil unless there are registers
	crcs                         *ebpf.Map   // nil unless there are CRCs
	held                         *ebpf.Map   // nil unless packets to the control plane outlive the process
	exchange                     *mapped     // the same
	depths                       *mapped     // of the ports' queues, in packets; nil unless the program uses them
	meters                       []meterMaps // by Meter.Index; empty if direct
	prefix                       *mapped
	counters                     []*ebpf.Map // by Counter.Index; nil if direct
	direct                       []*ebpf.Map // the direct counters of all tables
}

// objects are the maps for the generator.
func (x *Executor) objects() *objects {
	m := &x.maps
	o := &objects{
		state: m.state, ports: m.ports, stats: m.stats, prefix: m.prefix.cells, digests: m.digests, epochs: x.epochs.cells,
		tables: map[*v1model.Table]tableObjects{},
	}
	if m.depths != nil {
		o.depths = m.depths.cells
	}
	if m.groups != nil {
		o.groups, o.lists, o.jobs, o.outputs = m.groups, m.lists, m.jobs, m.outputs
	}
	if m.lock != nil {
		o.lock, o.registers = m.lock, m.registers
	}
	for _, c := range m.counters {
		o.counters = append(o.counters, c)
	}
	if m.crcs != nil {
		o.crcs = m.crcs
	}
	if m.held != nil {
		o.held = m.held
	}
	for _, c := range m.meters {
		o.meters = append(o.meters, c.objects())
	}
	for _, p := range x.profiles {
		o.profiles = append(o.profiles, profileObjects{p.members, p.groups})
	}
	for _, s := range x.sets {
		o.sets = append(o.sets, s.list)
	}
	for _, t := range x.tables {
		of := tableObjects{entries: t.maps.entries}
		if t.maps.tuples != nil {
			of.tuples = t.maps.tuples.cells
		}
		if t.maps.counters != nil {
			of.counters, of.counted = t.maps.counters, t.maps.counted
		}
		of.meters = t.maps.meters.objects()
		if t.maps.hits != nil {
			of.hits = t.maps.hits
		}
		o.tables[t.def] = of
	}
	return o
}

// none is a set of maps that are not made.
func none(p *v1model.Program) *objects {
	m := noMap{}
	o := &objects{
		state: m, ports: m, stats: m, prefix: m, digests: m, epochs: m, groups: m, lists: m, jobs: m, outputs: m, lock: m, registers: m, crcs: m, depths: m,
		tables: map[*v1model.Table]tableObjects{},
	}
	for range p.Profiles {
		o.profiles = append(o.profiles, profileObjects{m, m})
	}
	for range p.ValueSets {
		o.sets = append(o.sets, m)
	}
	for range p.Counters {
		o.counters = append(o.counters, m)
	}
	for range p.Meters {
		o.meters = append(o.meters, meterObjects{m, m})
	}
	for _, t := range p.Tables {
		o.tables[t] = tableObjects{m, m, m, 0, meterObjects{m, m}, m}
	}
	return o
}

func counterType(cells int) ebpf.MapType {
	if cells <= perCPUCells {
		return ebpf.PerCPUArray
	}
	return ebpf.Array
}

// newMap makes a map.
func newMap(spec *ebpf.MapSpec) (*ebpf.Map, error) {
	m, err := ebpf.NewMap(spec)
	if err != nil {
		return nil, fmt.Errorf("ebpf: map %s: %w", spec.Name, err)
	}
	return m, nil
}

// closeMaps removes maps and programs.
func (x *Executor) closeMaps() error {
	o := &x.maps
	var errs []error
	all := append(slices.Concat(o.counters, o.direct), o.state, o.ports, o.stats, o.digests, x.slot, o.groups, o.lists, o.jobs, o.outputs, o.lock, o.registers, o.crcs, o.held)
	for _, m := range o.meters {
		all = append(all, m.cells, m.counts)
	}
	for _, t := range x.tables {
		errs = append(errs, t.maps.tuples.close())
		all = append(all, t.maps.entries, t.maps.meters.cells, t.maps.meters.counts, t.maps.hits)
	}
	for _, s := range x.sets {
		all = append(all, s.list)
	}
	for _, p := range x.profiles {
		all = append(all, p.members, p.groups)
	}
	for _, m := range all {
		if m != nil {
			errs = append(errs, m.Close())
		}
	}
	errs = append(errs, o.prefix.close(), o.exchange.close(), o.depths.close(), x.epochs.close())
	if x.access != nil {
		errs = append(errs, x.access.Close())
	}
	if x.main != nil {
		errs = append(errs, x.main.Close())
	}
	return errors.Join(errs...)
}

// bpfMmapable is BPF_F_MMAPABLE.
const bpfMmapable = 1024

// mapped is an array in the kernel that is also mapped into this process, so that
// to read or write it asks nothing of the kernel.
type mapped struct {
	cells *ebpf.Map

	mu  sync.RWMutex // held while mem is used: it goes when the map is closed
	mem []byte       // the values, one after the other; nil when closed
}

// newMapped makes an array of n values; their size is a multiple of eight.
func newMapped(name string, size, n int) (*mapped, error) {
	m, err := newMap(&ebpf.MapSpec{
		Name: name, Type: ebpf.Array, Flags: bpfMmapable, KeySize: 4, ValueSize: uint32(size), MaxEntries: uint32(n),
	})
	if err != nil {
		return nil, err
	}
	mem, err := unix.Mmap(m.FD(), 0, n*size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("map %s: %w", name, err), m.Close())
	}
	return &mapped{cells: m, mem: mem}, nil
}

// close does nothing for an array that was never made.
func (m *mapped) close() error {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	err := unix.Munmap(m.mem)
	m.mem = nil
	return errors.Join(err, m.cells.Close())
}

// Changes of a table's entries, which held packets wait for, are made without
// telling Go's scheduler: package rawsys says why. They never block.

// elementCall is bpf_attr of the calls that change one element of a map.
type elementCall struct {
	fd         uint32
	_          uint32
	key, value unsafe.Pointer
	flags      uint64
}

// putElement is Map.Put, of bytes.
func putElement(m *ebpf.Map, key, value []byte) error {
	return changeElement(unix.BPF_MAP_UPDATE_ELEM, m, key, unsafe.Pointer(&value[0]))
}

// deleteElement is Map.Delete, of bytes.
func deleteElement(m *ebpf.Map, key []byte) error {
	return changeElement(unix.BPF_MAP_DELETE_ELEM, m, key, nil)
}

func changeElement(command uintptr, m *ebpf.Map, key []byte, value unsafe.Pointer) error {
	c := elementCall{fd: uint32(m.FD()), key: unsafe.Pointer(&key[0]), value: value}
	if _, _, errno := unix.RawSyscall(unix.SYS_BPF, command, uintptr(unsafe.Pointer(&c)), unsafe.Sizeof(c)); errno != 0 {
		return errno
	}
	return nil
}
