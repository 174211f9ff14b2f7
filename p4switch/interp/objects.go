package interp

import (
	"fmt"
	"math/big"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
)

// tally counts packets and bytes.
type tally struct{ packets, bytes atomic.Uint64 }

func (t *tally) count(bytes int) {
	t.packets.Add(1)
	t.bytes.Add(uint64(bytes))
}

func (t *tally) get() datapath.Counts {
	return datapath.Counts{Packets: t.packets.Load(), Bytes: t.bytes.Load()}
}

func (t *tally) set(c datapath.Counts) {
	t.packets.Store(c.Packets)
	t.bytes.Store(c.Bytes)
}

// counter is an indirect counter.
type counter struct {
	def   *v1model.Counter
	cells []tally
}

func (c *compiler) countPacket(st v1model.CountPacket) step {
	cells, index := c.counters[st.Counter.Index].cells, c.index(st.Index)
	return func(s *state) {
		if i := index(s); i < uint64(len(cells)) {
			cells[i].count(s.inLen)
		}
	}
}

// Counter implements datapath.Datapath.
func (x *Executor) Counter(name string, index int) (datapath.Counts, error) {
	t, err := x.counterCell(name, index)
	if err != nil {
		return datapath.Counts{}, err
	}
	return t.get(), nil
}

// SetCounter implements datapath.Datapath.
func (x *Executor) SetCounter(name string, index int, v datapath.Counts) error {
	t, err := x.counterCell(name, index)
	if err != nil {
		return err
	}
	t.set(v)
	return nil
}

func (x *Executor) counterCell(name string, index int) (*tally, error) {
	for _, c := range x.c.counters {
		if c.def.Name != name || c.def.Direct {
			continue
		}
		if index < 0 || index >= len(c.cells) {
			return nil, fmt.Errorf("counter %q: cell %d of %d: %w", name, index, len(c.cells), datapath.ErrNotFound)
		}
		return &c.cells[index], nil
	}
	return nil, fmt.Errorf("counter %q: %w", name, datapath.ErrNotFound)
}

// The colours of a meter.
const (
	green uint64 = iota
	yellow
	red
)

// meterCell is a two-rate three-colour meter, colour-blind (RFC 2698, section
// 3). One that is not configured finds everything green.
type meterCell struct {
	mu        sync.Mutex
	on        bool
	config    datapath.MeterConfig
	committed bucket
	peak      bucket
	last      time.Time          // when the buckets were filled
	counts    [3]datapath.Counts // by colour
}

// bucket is a token bucket. Tokens and size are counted in billionths, so that
// a rate per second times nanoseconds fills it without rounding.
type bucket struct{ tokens, size, rate u128 }

const billion = uint64(time.Second)

func newBucket(rate, burst int64) bucket {
	size := u128{0, uint64(max(burst, 0))}.mul(u128{0, billion})
	return bucket{size, size, u128{0, uint64(max(rate, 0))}}
}

func (b *bucket) fill(d time.Duration) {
	b.tokens = b.tokens.add(b.rate.mul(u128{0, uint64(d)}))
	if b.size.less(b.tokens, false) {
		b.tokens = b.size
	}
}

func (b *bucket) has(n u128) bool { return !b.tokens.less(n, false) }

// configure sets the rates and fills the buckets; nil switches the meter off.
func (m *meterCell) configure(c *datapath.MeterConfig, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.on = c != nil
	if c == nil {
		return
	}
	m.config = *c
	m.committed, m.peak = newBucket(c.CIR, c.CBurst), newBucket(c.PIR, c.PBurst)
	m.last = now
}

// maxFill bounds the time that buckets are filled for at once; longer than any
// burst takes at any rate that matters, and short enough not to overflow.
const maxFill = 24 * time.Hour

// meter meters a packet of some bytes, which costs n units, and counts it.
func (m *meterCell) meter(n, size int, now func() time.Time) uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.colour(n, now)
	m.counts[c].Packets++
	m.counts[c].Bytes += uint64(size)
	return c
}

// colour meters n units at a time. Callers hold mu.
func (m *meterCell) colour(n int, now func() time.Time) uint64 {
	if !m.on {
		return green
	}
	t := now()
	if d := t.Sub(m.last); d > 0 {
		m.committed.fill(min(d, maxFill))
		m.peak.fill(min(d, maxFill))
		m.last = t
	}
	cost := u128{0, uint64(n)}.mul(u128{0, billion})
	if !m.peak.has(cost) {
		return red
	}
	m.peak.tokens = m.peak.tokens.sub(cost)
	if !m.committed.has(cost) {
		return yellow
	}
	m.committed.tokens = m.committed.tokens.sub(cost)
	return green
}

// meter is a meter array.
type meter struct {
	def   *v1model.Meter
	cells []meterCell
}

// units is what a packet costs a meter.
func units(def *v1model.Meter, s *state) int {
	if def.Bytes {
		return s.inLen
	}
	return 1
}

func (c *compiler) executeMeter(st v1model.ExecuteMeter) step {
	m, index, set := c.meters[st.Meter.Index], c.index(st.Index), c.assignUint(st.Dst)
	return func(s *state) {
		if i := index(s); i < uint64(len(m.cells)) {
			set(s, m.cells[i].meter(units(m.def, s), s.inLen, c.now))
		}
	}
}

// Meter implements datapath.Datapath.
func (x *Executor) Meter(name string, index int, config *datapath.MeterConfig) error {
	return x.withMeter(datapath.MeterCell{Name: name, Index: index}, func(m *meterCell) { m.configure(config, x.c.now()) })
}

// EntryMeter implements datapath.Datapath.
func (x *Executor) EntryMeter(e datapath.Entry, config *datapath.MeterConfig) error {
	return x.withMeter(datapath.MeterCell{Entry: &e}, func(m *meterCell) { m.configure(config, x.c.now()) })
}

// MeterCounts implements datapath.Datapath.
func (x *Executor) MeterCounts(cell datapath.MeterCell) (c datapath.MeterCounts, err error) {
	err = x.withMeter(cell, func(m *meterCell) {
		m.mu.Lock()
		defer m.mu.Unlock()
		c = datapath.MeterCounts{Green: m.counts[green], Yellow: m.counts[yellow], Red: m.counts[red]}
	})
	return c, err
}

// SetMeterCounts implements datapath.Datapath.
func (x *Executor) SetMeterCounts(cell datapath.MeterCell, c datapath.MeterCounts) error {
	return x.withMeter(cell, func(m *meterCell) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.counts = [3]datapath.Counts{green: c.Green, yellow: c.Yellow, red: c.Red}
	})
}

// withMeter calls f with a meter.
func (x *Executor) withMeter(cell datapath.MeterCell, f func(*meterCell)) error {
	if e := cell.Entry; e != nil {
		s := x.lock.pick()
		s.RLock()
		defer s.RUnlock()
		_, found, err := x.find(e)
		switch {
		case err != nil:
			return err
		case found.meter == nil:
			return fmt.Errorf("table %q: %w: no direct meter on that entry", e.Table, datapath.ErrUnsupported)
		}
		f(found.meter)
		return nil
	}
	for _, m := range x.c.meters {
		if m.def.Name != cell.Name || m.def.Direct {
			continue
		}
		if cell.Index < 0 || cell.Index >= len(m.cells) {
			return fmt.Errorf("meter %q: cell %d of %d: %w", cell.Name, cell.Index, len(m.cells), datapath.ErrNotFound)
		}
		f(&m.cells[cell.Index])
		return nil
	}
	return fmt.Errorf("meter %q: %w", cell.Name, datapath.ErrNotFound)
}

// register is a register array as the program uses it.
type register struct {
	def *v1model.Register
	*cells
}

// readRegister compiles a read; one beyond the array leaves the field alone.
func (c *compiler) readRegister(st v1model.ReadRegister) step {
	r, index := c.registers[st.Register.Index], c.index(st.Index)
	if r.n == 1 {
		set := c.assignUint(st.Dst)
		return func(s *state) {
			i := index(s)
			if cell := r.cell(i); cell != nil {
				set(s, cell[0])
				if s.tr != nil {
					s.tr.register(TraceRead, r, i, cell)
				}
			}
		}
	}
	find, _, sl, _ := c.locate(st.Dst)
	return func(s *state) {
		i := index(s)
		cell, at := r.cell(i), find(s)
		if cell == nil || at < 0 {
			return
		}
		var z big.Int
		getBig(&z, cell)
		putBig(s.w[at:at+sl.n], &z, sl.width)
		if s.tr != nil {
			s.tr.register(TraceRead, r, i, cell)
		}
	}
}

// writeRegister compiles a write; one beyond the array is lost.
func (c *compiler) writeRegister(st v1model.WriteRegister) step {
	r, index := c.registers[st.Register.Index], c.index(st.Index)
	if r.n == 1 {
		x, mask := c.num(st.Value), mask64(r.def.Width)
		return func(s *state) {
			i := index(s)
			if cell := r.toWrite(i); cell != nil {
				cell[0] = x(s) & mask
				if s.tr != nil {
					s.tr.register(TraceWrite, r, i, cell)
				}
			}
		}
	}
	x := c.big(st.Value)
	return func(s *state) {
		i := index(s)
		if cell := r.toWrite(i); cell != nil {
			var z big.Int
			x(s, &z)
			putBig(cell, &z, r.def.Width)
			if s.tr != nil {
				s.tr.register(TraceWrite, r, i, cell)
			}
		}
	}
}

// Register implements datapath.Datapath.
func (x *Executor) Register(name string, index int) ([]byte, error) {
	r, err := x.register(name, index)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return wordsToBytes(r.cell(uint64(index)), r.def.Width), nil //nolint:gosec // not negative
}

// SetRegister implements datapath.Datapath.
func (x *Executor) SetRegister(name string, index int, v []byte) error {
	r, err := x.register(name, index)
	if err != nil {
		return err
	}
	f := fieldMatch{width: r.def.Width}
	w, err := f.words(v)
	if err != nil {
		return fmt.Errorf("register %q: %w", name, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	copy(r.toWrite(uint64(index)), w) //nolint:gosec // not negative
	return nil
}

// register is the one with a name, which has the cell.
func (x *Executor) register(name string, index int) (*register, error) {
	for _, r := range x.c.registers {
		if r.def.Name != name {
			continue
		}
		if index < 0 || index >= r.def.Size {
			return nil, fmt.Errorf("register %q: cell %d of %d: %w", name, index, r.def.Size, datapath.ErrNotFound)
		}
		return r, nil
	}
	return nil, fmt.Errorf("register %q: %w", name, datapath.ErrNotFound)
}

// digest is a compiled list of values for the control plane.
type digest struct {
	name   string
	fields []func(*state) []byte
}

func (c *compiler) digest(def *v1model.Digest) *digest {
	d := &digest{name: def.Name}
	for _, e := range def.Elements {
		if !e.Field.Valid() {
			d.fields = append(d.fields, func(*state) []byte { return append([]byte(nil), e.Const...) })
			continue
		}
		sl := c.lay.slot(e.Field)
		d.fields = append(d.fields, func(s *state) []byte {
			b := make([]byte, (sl.width+7)/8)
			storeWords(b, len(b)*8-sl.width, sl.width, s.w[sl.at:sl.at+sl.n])
			return b
		})
	}
	return d
}

// sample is the digest of a packet, with the values it has now.
func (d *digest) sample(s *state) datapath.Digest {
	out := datapath.Digest{Name: d.name, Fields: make([][]byte, len(d.fields))}
	for i, f := range d.fields {
		out.Fields[i] = f(s)
	}
	return out
}
