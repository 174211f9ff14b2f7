package interp

import (
	"errors"
	"fmt"
	"time"

	"github.com/bifrost-rack/bifrost/p4/datapath"
)

// Settle implements datapath.Datapath. There is nothing to wait for: a change
// takes the path's lock, so it is made between packets.
func (x *Executor) Settle() {}

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
	w, err := t.plan.match(t.def, e.Match)
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
		x.release(t, old)
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
	x.release(t, old)
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
func (x *Executor) release(t *table, e *entry) {
	if e.member != nil {
		e.member.refs--
	}
	if e.group != nil {
		e.group.refs--
	}
	x.unwatch(e)
}
