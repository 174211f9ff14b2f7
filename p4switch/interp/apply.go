package interp

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
)

// entry is an entry of a table, or its default. What a packet only reads is
// written under the executor's lock.
type entry struct {
	want want
	plan *keyPlan
	// rank decides between entries that match the same key, the highest first;
	// among equals seq does, the lowest first.
	rank int64
	seq  uint64

	// Exactly one of these is what the entry does; in a default entry all may
	// be nil.
	do     *bound
	member *member
	group  *group

	next *node // after do; of members and groups the table decides

	tally tally
	meter *meterCell

	// source is the entry as the control plane gave it.
	source  datapath.Entry
	timeout time.Duration
	hit     atomic.Int64 // Unix nanoseconds of the last packet
	told    int64        // Unix nanoseconds of the last notification; owned by the sweeper
}

// before tells whether e wins over o.
func (e *entry) before(o *entry) bool {
	if e.rank != o.rank {
		return e.rank > o.rank
	}
	return e.seq < o.seq
}

// matches tells whether a key lies in the entry's ranges. Fields that share a
// word are compared one by one by the table's plan.
func (e *entry) matches(key []uint64) bool { return e.plan.within(key, &e.want) }

// Synchronize implements datapath.Datapath. There is nothing to wait for: a change
// takes the path's lock, so it is made between packets.
func (x *Executor) Synchronize() {}

// Apply implements datapath.Datapath.
func (x *Executor) Apply(op datapath.Op, e datapath.Entry) error {
	t, err := x.table(e.Table)
	if err != nil {
		return err
	}
	if err := x.apply(t, op, e); err != nil {
		return fmt.Errorf("table %q: %w", e.Table, err)
	}
	return nil
}

func (x *Executor) apply(t *table, op datapath.Op, e datapath.Entry) error {
	if t.def.Const {
		return fmt.Errorf("%w: its entries are constant", datapath.ErrUnsupported)
	}
	w, err := t.plan.match(e.Match)
	if err != nil {
		return err
	}
	made, err := x.newEntry(t, &e, w)
	if err != nil && op != datapath.Delete {
		return err
	}
	x.lock.lock()
	defer x.lock.unlock()
	old := t.matcher.same(&w, made.rank)
	switch {
	case op == datapath.Insert && old != nil:
		return datapath.ErrExists
	case op != datapath.Insert && old == nil:
		return datapath.ErrNotFound
	case op == datapath.Delete:
		x.release(old)
		t.remove(old)
		return nil
	case op == datapath.Insert && t.def.MaxSize > 0 && t.entries >= t.def.MaxSize:
		return datapath.ErrFull
	}
	if err := x.refer(t, made, &e); err != nil {
		return err
	}
	if op == datapath.Insert {
		t.insert(made)
		x.watch(made)
		return nil
	}
	x.release(old)
	old.do, old.next, old.member, old.group = made.do, made.next, made.member, made.group
	old.source, old.timeout, old.told = made.source, made.timeout, 0
	old.hit.Store(made.hit.Load())
	x.watch(old)
	return nil
}

// newEntry makes an entry that nothing refers to yet.
func (x *Executor) newEntry(t *table, e *datapath.Entry, w want) (*entry, error) {
	made := &entry{
		want: w, plan: t.plan, rank: t.rank(&w, int64(e.Priority)),
		source: clone(e),
	}
	if t.meter != nil {
		made.meter = &meterCell{}
	}
	if e.IdleTimeoutNs > 0 {
		if !t.def.Timeout {
			return made, fmt.Errorf("%w: no idle timeout in this table", datapath.ErrUnsupported)
		}
		made.timeout = time.Duration(e.IdleTimeoutNs)
	}
	if t.def.Timeout {
		made.hit.Store(x.c.now().UnixNano())
	}
	if t.profile != nil || e.Action == nil {
		return made, nil
	}
	var err error
	made.do, err = x.bind(t.def, *e.Action)
	if err == nil {
		made.next = t.nextOf(made.do.def)
	}
	return made, err
}

// errAction: an entry says nothing, or the wrong thing, to do.
var errAction = errors.New("the table needs another kind of action")

// refer resolves an entry's member or group and counts the reference.
func (x *Executor) refer(t *table, made *entry, e *datapath.Entry) error {
	p := t.profile
	switch {
	case p == nil && e.Action != nil && e.Member == nil && e.Group == nil:
		return nil
	case p == nil || e.Action != nil:
		return fmt.Errorf("%w: %w", datapath.ErrUnsupported, errAction)
	case e.Member != nil && e.Group == nil:
		m := p.members[*e.Member]
		if m == nil {
			return fmt.Errorf("member %d: %w", *e.Member, datapath.ErrNotFound)
		}
		m.refs++
		made.member = m
	case e.Group != nil && e.Member == nil:
		g := p.groups[*e.Group]
		if g == nil {
			return fmt.Errorf("group %d: %w", *e.Group, datapath.ErrNotFound)
		}
		g.refs++
		made.group = g
	default:
		return fmt.Errorf("%w: %w", datapath.ErrUnsupported, errAction)
	}
	return nil
}

// release gives up what an entry refers to.
func (x *Executor) release(e *entry) {
	if e.member != nil {
		e.member.refs--
	}
	if e.group != nil {
		e.group.refs--
	}
	x.unwatch(e)
}

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
	w, err := t.plan.match(e.Match)
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
