//go:build linux

package ebpf

import (
	"encoding/binary"
	"fmt"

	"github.com/bifrost-rack/bifrost/p4/datapath"
	"github.com/cilium/ebpf"
)

// Counter implements datapath.Datapath.
func (x *Executor) Counter(name string, index int) (datapath.Counts, error) {
	m, err := x.counter(name, index)
	if err != nil {
		return datapath.Counts{}, err
	}
	return cell(m, uint32(index))
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
		return t.maps.counters, 0, nil
	}
	i, err := t.cellOf(e)
	return t.maps.counters, i, err
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
