package interp

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/bifrost-rack/bifrost/p4/datapath"
)

// clone copies an entry, so that the caller may go on using its memory.
func clone(e *datapath.Entry) datapath.Entry {
	c := *e
	c.Match = slices.Clone(e.Match)
	for i := range c.Match {
		m := &c.Match[i]
		m.Value, m.Mask, m.High = bytes.Clone(m.Value), bytes.Clone(m.Mask), bytes.Clone(m.High)
	}
	if e.Action != nil {
		a := datapath.Action{Name: e.Action.Name}
		for _, p := range e.Action.Params {
			a.Params = append(a.Params, bytes.Clone(p))
		}
		c.Action = &a
	}
	if e.Member != nil {
		c.Member = new(*e.Member)
	}
	if e.Group != nil {
		c.Group = new(*e.Group)
	}
	return c
}

// find returns an entry of a table by its match and priority, or the default
// entry if the match is nil.
func (x *Executor) find(e *datapath.Entry) (*table, *entry, error) {
	t, err := x.table(e.Table)
	if err != nil {
		return nil, nil, err
	}
	if e.Match == nil {
		return t, t.miss, nil
	}
	w, err := t.plan.match(t.def, e.Match)
	if err != nil {
		return nil, nil, fmt.Errorf("table %q: %w", e.Table, err)
	}
	found := t.matcher.same(&w, t.rank(&w, int64(e.Priority)))
	if found == nil {
		return nil, nil, fmt.Errorf("table %q: entry: %w", e.Table, datapath.ErrNotFound)
	}
	return t, found, nil
}

// EntryCounts implements datapath.Datapath. A default entry counts misses.
func (x *Executor) EntryCounts(e datapath.Entry) (datapath.Counts, error) {
	s := x.lock.pick()
	s.RLock()
	defer s.RUnlock()
	t, found, err := x.find(&e)
	switch {
	case err != nil:
		return datapath.Counts{}, err
	case !t.def.Counters:
		return datapath.Counts{}, fmt.Errorf("table %q: %w: no direct counter", e.Table, datapath.ErrUnsupported)
	}
	return found.tally.get(), nil
}

// SetEntryCounts implements datapath.Datapath.
func (x *Executor) SetEntryCounts(e datapath.Entry, v datapath.Counts) error {
	x.lock.lock()
	defer x.lock.unlock()
	t, found, err := x.find(&e)
	switch {
	case err != nil:
		return err
	case !t.def.Counters:
		return fmt.Errorf("table %q: %w: no direct counter", e.Table, datapath.ErrUnsupported)
	}
	found.tally.set(v)
	return nil
}

// EntryMeter implements datapath.Datapath.
func (x *Executor) EntryMeter(e datapath.Entry, config *datapath.MeterConfig) error {
	s := x.lock.pick()
	s.RLock()
	defer s.RUnlock()
	_, found, err := x.find(&e)
	switch {
	case err != nil:
		return err
	case found.meter == nil:
		return fmt.Errorf("table %q: %w: no direct meter on that entry", e.Table, datapath.ErrUnsupported)
	}
	found.meter.configure(config, x.c.now())
	return nil
}
