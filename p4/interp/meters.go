package interp

import (
	"fmt"
	"sync"
	"time"

	"github.com/bifrost-rack/bifrost/p4/datapath"
	"github.com/bifrost-rack/bifrost/p4/v1model"
)

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
	last      time.Time // when the buckets were filled
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

// colour meters n units at a time.
func (m *meterCell) colour(n int, now func() time.Time) uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
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
	m, index, set := c.meters[st.Meter.Index], c.count(st.Index), c.assignUint(st.Dst)
	return func(s *state) {
		if i := index(s); i < uint64(len(m.cells)) {
			set(s, m.cells[i].colour(units(m.def, s), c.now))
		}
	}
}

// Meter implements datapath.Datapath.
func (x *Executor) Meter(name string, index int, config *datapath.MeterConfig) error {
	for _, m := range x.c.meters {
		if m.def.Name != name || m.def.Direct {
			continue
		}
		if index < 0 || index >= len(m.cells) {
			return fmt.Errorf("meter %q: cell %d of %d: %w", name, index, len(m.cells), datapath.ErrNotFound)
		}
		m.cells[index].configure(config, x.c.now())
		return nil
	}
	return fmt.Errorf("meter %q: %w", name, datapath.ErrNotFound)
}
