package interp

import (
	"fmt"
	"sync/atomic"

	"github.com/bifrost-rack/bifrost/p4/datapath"
	"github.com/bifrost-rack/bifrost/p4/v1model"
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
	cells, index := c.counters[st.Counter.Index].cells, c.count(st.Index)
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
