package p4rt

import (
	"github.com/bifrost-rack/bifrost/p4/p4rt/p4info"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// directEntries are the entries whose direct resource a request asks for: all
// of all tables, all of one, or a single one, which must exist.
func (r *reader) directEntries(q *p4v1.TableEntry, has func(*p4info.Table) bool, add func(*tableStore, *entry) error) error {
	if q.GetTableId() == 0 {
		for _, t := range r.p.info.TableOrder {
			if !has(t) {
				continue
			}
			if err := each(r.p.store.tables[t.ID], r.p.store.tables[t.ID].entries.all(), add); err != nil {
				return err
			}
		}
		return nil
	}
	if len(q.GetMatch()) > 0 || q.GetIsDefaultAction() {
		t, e, err := r.p.entryOf(q)
		if err != nil {
			return err
		}
		if !has(t.info) {
			return status.Errorf(codes.InvalidArgument, "table %q has no such direct resource", t.info.Name)
		}
		return add(t, e)
	}
	t := r.p.store.tables[q.GetTableId()]
	if t == nil {
		return unknown("table", q.GetTableId())
	}
	if !has(t.info) {
		return status.Errorf(codes.InvalidArgument, "table %q has no such direct resource", t.info.Name)
	}
	return each(t, t.entries.all(), func(t *tableStore, e *entry) error {
		if q.GetPriority() != 0 && q.GetPriority() != e.msg.GetPriority() {
			return nil
		}
		return add(t, e)
	})
}

func each(t *tableStore, entries []*entry, add func(*tableStore, *entry) error) error {
	for _, e := range entries {
		if err := add(t, e); err != nil {
			return err
		}
	}
	return nil
}

// keyOf is the part of an entry that identifies it.
func keyOf(m *p4v1.TableEntry) *p4v1.TableEntry {
	return &p4v1.TableEntry{
		TableId: m.GetTableId(), Match: m.GetMatch(), Priority: m.GetPriority(), IsDefaultAction: m.GetIsDefaultAction(),
	}
}

func (r *reader) directCounters(q *p4v1.DirectCounterEntry) error {
	has := func(t *p4info.Table) bool { return t.Counter != nil }
	return r.directEntries(q.GetTableEntry(), has, func(_ *tableStore, e *entry) error {
		c, err := r.p.dp.EntryCounts(e.dp)
		if err != nil {
			return datapathError(err)
		}
		r.add(&p4v1.Entity{Entity: &p4v1.Entity_DirectCounterEntry{
			DirectCounterEntry: &p4v1.DirectCounterEntry{TableEntry: keyOf(e.msg), Data: counterData(c)},
		}})
		return nil
	})
}

func (r *reader) directMeters(q *p4v1.DirectMeterEntry) error {
	if q.GetCounterData() != nil {
		return noColourCounters()
	}
	has := func(t *p4info.Table) bool { return t.Meter != nil }
	return r.directEntries(q.GetTableEntry(), has, func(_ *tableStore, e *entry) error {
		r.add(&p4v1.Entity{Entity: &p4v1.Entity_DirectMeterEntry{
			DirectMeterEntry: &p4v1.DirectMeterEntry{TableEntry: keyOf(e.msg), Config: e.msg.GetMeterConfig()},
		}})
		return nil
	})
}
