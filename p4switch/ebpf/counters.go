//go:build linux

package ebpf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"
)

// Counter implements datapath.Datapath.
func (x *Executor) Counter(name string, index int) (datapath.Counts, error) {
	m, err := x.counter(name, index)
	if err != nil {
		return datapath.Counts{}, err
	}
	return cell(m, uint32(index))
}

// Counters implements datapath.CounterReader. A system call for each cell would take some
// 10 µs.
func (x *Executor) Counters(name string) ([]datapath.Counts, error) {
	m, err := x.counter(name, 0)
	if err != nil {
		return nil, err
	}
	all, err := cells(m)
	if err != nil {
		return nil, fmt.Errorf("counter %q: %w", name, err)
	}
	return all, nil
}

// cells reads a whole map of counts.
func cells(m *ebpf.Map) (_ []datapath.Counts, err error) {
	copies := 1
	if m.Type() == ebpf.PerCPUArray {
		if copies, err = ebpf.PossibleCPU(); err != nil {
			return nil, err
		}
	}
	keys := make([]uint32, m.MaxEntries())
	values := make([][2]uint64, len(keys)*copies)
	var cursor ebpf.MapBatchCursor
	n, err := m.BatchLookup(&cursor, keys, values, nil)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil, err
	}
	out := make([]datapath.Counts, len(keys))
	for i, v := range values[:n*copies] {
		c := &out[keys[i/copies]]
		c.Packets += v[0]
		c.Bytes += v[1]
	}
	return out, nil
}

// SetCounter implements datapath.Datapath.
func (x *Executor) SetCounter(name string, index int, c datapath.Counts) error {
	m, err := x.counter(name, index)
	if err != nil {
		return err
	}
	return setCell(m, uint32(index), c)
}

func (x *Executor) counter(name string, index int) (*ebpf.Map, error) {
	for i, c := range x.prog.Counters {
		if c.Name != name || c.Direct {
			continue
		}
		if index < 0 || index >= c.Size {
			return nil, fmt.Errorf("counter %q: cell %d of %d: %w", name, index, c.Size, datapath.ErrNotFound)
		}
		return x.maps.counters[i], nil
	}
	return nil, fmt.Errorf("counter %q: %w", name, datapath.ErrNotFound)
}

// EntryCounts implements datapath.Datapath. A default entry counts misses.
func (x *Executor) EntryCounts(e datapath.Entry) (datapath.Counts, error) {
	m, i, err := x.direct(&e)
	if err != nil {
		return datapath.Counts{}, fmt.Errorf("table %q: %w", e.Table, err)
	}
	return cell(m, i)
}

// SetEntryCounts implements datapath.Datapath.
func (x *Executor) SetEntryCounts(e datapath.Entry, c datapath.Counts) error {
	m, i, err := x.direct(&e)
	if err != nil {
		return fmt.Errorf("table %q: %w", e.Table, err)
	}
	return setCell(m, i, c)
}

// direct finds the cell of an entry's counter.
func (x *Executor) direct(e *datapath.Entry) (*ebpf.Map, uint32, error) {
	t, err := x.table(e.Table)
	switch {
	case err != nil:
		return nil, 0, err
	case t.maps.counters == nil:
		return nil, 0, fmt.Errorf("%w: no direct counter", datapath.ErrUnsupported)
	case e.Match == nil:
		return t.maps.counters, t.maps.counted, nil
	}
	i, err := t.cellOf(e)
	return t.maps.counters, t.maps.counted + i, err
}

// cellOf finds the cell that an entry's counter and meter have.
func (t *table) cellOf(e *datapath.Entry) (uint32, error) {
	key, err := t.key(e.Match, e.Priority)
	if err != nil {
		return 0, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	i, ok := t.entries[string(key)]
	if !ok {
		return 0, fmt.Errorf("entry: %w", datapath.ErrNotFound)
	}
	return i, nil
}

// cell adds up what all CPUs have counted.
func cell(m *ebpf.Map, i uint32) (datapath.Counts, error) {
	if m.Type() != ebpf.PerCPUArray {
		var v [2]uint64
		err := m.Lookup(i, &v)
		return datapath.Counts{Packets: v[0], Bytes: v[1]}, err
	}
	var vs [][2]uint64
	if err := m.Lookup(i, &vs); err != nil {
		return datapath.Counts{}, err
	}
	var c datapath.Counts
	for _, v := range vs {
		c.Packets += v[0]
		c.Bytes += v[1]
	}
	return c, nil
}

// setCell sets a cell: one CPU has it all.
func setCell(m *ebpf.Map, i uint32, c datapath.Counts) error {
	v := [2]uint64{c.Packets, c.Bytes}
	if m.Type() != ebpf.PerCPUArray {
		return m.Put(i, v)
	}
	n, err := ebpf.PossibleCPU()
	if err != nil {
		return err
	}
	vs := make([][2]uint64, n)
	vs[0] = v
	return m.Put(i, vs)
}

// TableStats counts the lookups in every table with a key, by its name.
func (x *Executor) TableStats() map[string]datapath.TableCounts {
	all := map[string]datapath.TableCounts{}
	var states [][]byte // of every CPU
	if err := x.maps.state.Lookup(uint32(0), &states); err != nil {
		x.log.Warn("reading the tables' counters", "error", err)
		return all
	}
	for _, def := range x.prog.Tables {
		if len(def.Key) == 0 {
			continue
		}
		var c datapath.TableCounts
		for _, st := range states {
			b := st[x.counted+tableStat*def.Index:]
			c.Misses += binary.NativeEndian.Uint64(b)
			c.Hits += binary.NativeEndian.Uint64(b[8:])
		}
		all[def.Name] = c
	}
	return all
}

// meterCell is a two-rate three-colour meter, colour-blind (RFC 2698, section 3),
// with a lock of its own. One that is not on finds everything green. Tokens and
// sizes are counted in billionths of a packet or byte, so that a rate per second
// times nanoseconds fills a bucket without rounding.
type meterCell struct {
	Lock, On        uint32
	Last            uint64 // when the buckets were filled, in nanoseconds of the kernel's clock
	Committed, Peak bucket
}

// bucket is a token bucket.
type bucket struct {
	Tokens, Size, Rate uint64
	Full               uint64 // nanoseconds that fill it from empty
}

const (
	meterOn        = 4
	meterLast      = 8
	meterCommitted = 16
	meterPeak      = 48

	bucketTokens = 0
	bucketSize   = 8
	bucketRate   = 16
	bucketFull   = 24
)

// billion is how many parts a token has.
const billion = 1_000_000_000

// maxBurst is the largest burst: more does not fit a word in billionths, twice.
const maxBurst = math.MaxInt64 / billion

// The colours of a meter.
const (
	green = iota
	yellow
	red
)

// makeMeters makes the maps of indirect meters.
func (x *Executor) makeMeters() error {
	for i, m := range x.prog.Meters {
		var maps meterMaps
		if !m.Direct {
			var err error
			if maps, err = x.meterMaps(fmt.Sprintf("meter_%d", i), m.Size); err != nil {
				return fmt.Errorf("meter %q: %w", m.Name, err)
			}
		}
		x.maps.meters = append(x.maps.meters, maps)
	}
	return nil
}

// meterMaps are meters, and what they have counted: the packets of meter m that were of colour c are in cell colours*m + c.
type meterMaps struct{ cells, counts *ebpf.Map }

// objects are the maps for the generator.
func (m *meterMaps) objects() (o meterObjects) {
	if m.cells != nil {
		o = meterObjects{m.cells, m.counts}
	}
	return o
}

// colours is how many colours there are.
const colours = 3

// meterMaps makes n meters. What an older version has pinned has no counts.
func (x *Executor) meterMaps(name string, n int) (m meterMaps, err error) {
	if m.cells, err = x.meterMap(name, n); err == nil {
		m.counts, err = x.keptOrNew(name+"_colours", &ebpf.MapSpec{
			Name: "colours", Type: counterType(colours * n), KeySize: 4, ValueSize: 16, MaxEntries: uint32(colours * n),
		})
	}
	return m, err
}

// meterMap makes a map of n meters.
func (x *Executor) meterMap(name string, n int) (*ebpf.Map, error) {
	word := &btf.Int{Name: "unsigned long", Size: 8}
	rest := &btf.Array{Index: keyType, Type: word, Nelems: uint32(binary.Size(meterCell{})/8 - 1)}
	typ := lockType(btf.Member{Name: "on", Type: keyType, Offset: 32}, btf.Member{Name: "words", Type: rest, Offset: 64})
	return x.kept(name, &ebpf.MapSpec{
		Name: "meter", Type: ebpf.Array, KeySize: 4, ValueSize: typ.Size, MaxEntries: uint32(n), Key: keyType, Value: typ,
	})
}

// executeMeter generates the use of a meter.
func (g *gen) executeMeter(s v1model.ExecuteMeter) {
	to, ok := g.target(s.Dst)
	if !ok {
		return
	}
	none := g.label("no_meter")
	g.index(s.Index, s.Meter.Size, 0, none)
	g.meter(g.objs.meters[s.Meter.Index], s.Meter, none)
	g.setReg(to)
	g.mark(none)
}

// meter finds the packet's colour by the meter R0 of a map, and counts the packet: R0 becomes the colour.
func (g *gen) meter(m meterObjects, def *v1model.Meter, none string) {
	unlock, later, counted := g.label("metered"), g.label("no_time"), g.label("coloured")
	g.emit(asm.StoreMem(asm.R10, -4, asm.R0, asm.Word))
	g.lookup(m.cells, asm.R10, -4)
	now := spillAt(1)
	g.emit(
		asm.JEq.Imm(asm.R0, 0, none), asm.Mov.Reg(rTemp, asm.R0),
		asm.FnKtimeGetNs.Call(), asm.StoreMem(asm.R10, now, asm.R0, asm.DWord),
		asm.Mov.Reg(asm.R1, rTemp), asm.FnSpinLock.Call(),
		asm.Mov.Imm(asm.R0, green),
		asm.LoadMem(asm.R1, rTemp, meterOn, asm.Word), asm.JEq.Imm(asm.R1, 0, unlock),
		asm.LoadMem(asm.R2, asm.R10, now, asm.DWord),
		asm.LoadMem(asm.R1, rTemp, meterLast, asm.DWord),
		asm.Mov.Reg(asm.R3, asm.R2), asm.Sub.Reg(asm.R3, asm.R1), asm.JSLE.Imm(asm.R3, 0, later),
		asm.StoreMem(rTemp, meterLast, asm.R2, asm.DWord))
	for _, b := range []int16{meterCommitted, meterPeak} {
		full, filled := g.label("full"), g.label("filled")
		g.emit(
			asm.LoadMem(asm.R5, rTemp, b+bucketSize, asm.DWord),
			asm.LoadMem(asm.R4, rTemp, b+bucketFull, asm.DWord), asm.JGE.Reg(asm.R3, asm.R4, full),
			asm.LoadMem(asm.R1, rTemp, b+bucketRate, asm.DWord), asm.Mul.Reg(asm.R1, asm.R3),
			asm.LoadMem(asm.R4, rTemp, b+bucketTokens, asm.DWord), asm.Add.Reg(asm.R4, asm.R1),
			asm.JLT.Reg(asm.R4, asm.R5, filled))
		g.mark(full)
		g.emit(asm.Mov.Reg(asm.R4, asm.R5))
		g.mark(filled)
		g.emit(asm.StoreMem(rTemp, b+bucketTokens, asm.R4, asm.DWord))
	}
	g.mark(later)
	if def.Bytes {
		g.load(asm.R2, stInLen)
	} else {
		g.set(asm.R2, 1)
	}
	g.emit(asm.Mul.Imm(asm.R2, billion))
	for _, b := range []struct {
		at     int16
		colour int32
	}{{meterPeak, red}, {meterCommitted, yellow}} {
		g.emit(
			asm.Mov.Imm(asm.R0, b.colour),
			asm.LoadMem(asm.R1, rTemp, b.at+bucketTokens, asm.DWord), asm.JLT.Reg(asm.R1, asm.R2, unlock),
			asm.Sub.Reg(asm.R1, asm.R2), asm.StoreMem(rTemp, b.at+bucketTokens, asm.R1, asm.DWord))
	}
	g.emit(asm.Mov.Imm(asm.R0, green))
	g.mark(unlock)
	g.emit(
		asm.StoreMem(asm.R10, now, asm.R0, asm.DWord),
		asm.Mov.Reg(asm.R1, rTemp), asm.FnSpinUnlock.Call(),
		asm.LoadMem(asm.R0, asm.R10, -4, asm.Word), asm.Mul.Imm(asm.R0, colours),
		asm.LoadMem(asm.R1, asm.R10, now, asm.DWord), asm.Add.Reg(asm.R0, asm.R1))
	g.countCell(m.counts, counted)
	g.mark(counted)
	g.emit(asm.LoadMem(asm.R0, asm.R10, now, asm.DWord))
}

// newBucket is a full bucket.
func newBucket(rate, burst int64) bucket {
	b := bucket{Size: uint64(max(burst, 0)) * billion, Rate: uint64(max(rate, 0)), Full: math.MaxInt64}
	b.Tokens = b.Size
	if b.Rate > 0 {
		b.Full = (b.Size + b.Rate - 1) / b.Rate
	}
	return b
}

// configure writes a meter; nil switches it off.
func configure(m *ebpf.Map, index uint32, c *datapath.MeterConfig) error {
	var cell meterCell
	if c != nil {
		if max(c.CBurst, c.PBurst) > maxBurst {
			return fmt.Errorf("%w: a burst of more than %d", datapath.ErrUnsupported, int64(maxBurst))
		}
		var now unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
			return err
		}
		cell = meterCell{
			On: 1, Last: uint64(now.Nano()),
			Committed: newBucket(c.CIR, c.CBurst), Peak: newBucket(c.PIR, c.PBurst),
		}
	}
	var b bytes.Buffer
	if err := binary.Write(&b, binary.NativeEndian, &cell); err != nil {
		return err
	}
	return m.Update(index, b.Bytes(), ebpf.UpdateLock)
}

// Meter implements datapath.Datapath.
func (x *Executor) Meter(name string, index int, c *datapath.MeterConfig) error {
	m, i, err := x.meter(datapath.MeterCell{Name: name, Index: index})
	if err != nil {
		return err
	}
	return configure(m.cells, i, c)
}

// EntryMeter implements datapath.Datapath.
func (x *Executor) EntryMeter(e datapath.Entry, c *datapath.MeterConfig) error {
	m, i, err := x.meter(datapath.MeterCell{Entry: &e})
	if err != nil {
		return err
	}
	return configure(m.cells, i, c)
}

// MeterCounts implements datapath.Datapath.
func (x *Executor) MeterCounts(of datapath.MeterCell) (c datapath.MeterCounts, err error) {
	m, at, err := x.meter(of)
	for i, to := range [colours]*datapath.Counts{green: &c.Green, yellow: &c.Yellow, red: &c.Red} {
		if err == nil {
			*to, err = cell(m.counts, colours*at+uint32(i))
		}
	}
	return c, err
}

// SetMeterCounts implements datapath.Datapath.
func (x *Executor) SetMeterCounts(of datapath.MeterCell, c datapath.MeterCounts) error {
	m, i, err := x.meter(of)
	if err != nil {
		return err
	}
	return m.set(i, c)
}

// set sets what meter i has counted.
func (m *meterMaps) set(i uint32, c datapath.MeterCounts) (err error) {
	for k, v := range [colours]datapath.Counts{green: c.Green, yellow: c.Yellow, red: c.Red} {
		err = errors.Join(err, setCell(m.counts, colours*i+uint32(k), v))
	}
	return err
}

// meter finds a meter.
func (x *Executor) meter(of datapath.MeterCell) (*meterMaps, uint32, error) {
	if e := of.Entry; e != nil {
		t, err := x.table(e.Table)
		if err == nil && (t.maps.meters.cells == nil || e.Match == nil) {
			err = fmt.Errorf("%w: no direct meter on that entry", datapath.ErrUnsupported)
		}
		var i uint32
		if err == nil {
			i, err = t.cellOf(e)
		}
		if err != nil {
			return nil, 0, fmt.Errorf("table %q: %w", e.Table, err)
		}
		return &t.maps.meters, i, nil
	}
	for i, m := range x.prog.Meters {
		if m.Name != of.Name || m.Direct {
			continue
		}
		if of.Index < 0 || of.Index >= m.Size {
			return nil, 0, fmt.Errorf("meter %q: cell %d of %d: %w", of.Name, of.Index, m.Size, datapath.ErrNotFound)
		}
		return &x.maps.meters[i], uint32(of.Index), nil
	}
	return nil, 0, fmt.Errorf("meter %q: %w", of.Name, datapath.ErrNotFound)
}
