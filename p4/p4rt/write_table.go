package p4rt

import (
	"github.com/bifrost-rack/bifrost/p4/datapath"
	"github.com/bifrost-rack/bifrost/p4/p4rt/p4info"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// writeTable applies an update to a table entry (section "TableEntry").
func (p *pipeline) writeTable(op p4v1.Update_Type, m *p4v1.TableEntry) error {
	t := p.store.tables[m.GetTableId()]
	switch {
	case t == nil:
		return unknown("table", m.GetTableId())
	case m.GetIsConst():
		return status.Error(codes.InvalidArgument, "is_const must not be set in a write")
	case m.GetIsDefaultAction():
		return p.writeDefault(op, t, m)
	}
	key, err := t.key(m)
	if err != nil {
		return err
	}
	id := entryKey(key)
	old, found := t.entries.get(id)
	switch op {
	case p4v1.Update_INSERT:
		if found {
			return status.Errorf(codes.AlreadyExists, "table %q has this entry already", t.info.Name)
		}
		return p.insertEntry(t, id, key, m)
	case p4v1.Update_MODIFY:
		if !found {
			return noEntry(t.info)
		}
		return p.modifyEntry(t, old, m)
	default:
		if t.info.Const || found && old.fixed {
			return constTable(t.info)
		}
		if !found {
			return noEntry(t.info)
		}
		return p.deleteEntry(t, old)
	}
}

func noEntry(t *p4info.Table) error {
	return status.Errorf(codes.NotFound, "table %q has no such entry", t.Name)
}

func constTable(t *p4info.Table) error {
	return status.Errorf(codes.PermissionDenied, "entries of table %q are const", t.Name)
}

// key checks and translates the fields that identify an entry.
func (t *tableStore) key(m *p4v1.TableEntry) (datapath.Entry, error) {
	match, err := p4info.MatchKey(t.info.Fields, m.GetMatch())
	if err != nil {
		return datapath.Entry{}, err
	}
	if (m.GetPriority() > 0) != t.info.NeedsPriority || m.GetPriority() < 0 {
		want := "must be zero"
		if t.info.NeedsPriority {
			want = "must be positive"
		}
		return datapath.Entry{}, status.Errorf(codes.InvalidArgument, "priority %d: for table %q it %s", m.GetPriority(), t.info.Name, want)
	}
	return datapath.Entry{Table: t.info.Name, Match: match, Priority: m.GetPriority()}, nil
}

func (p *pipeline) insertEntry(t *tableStore, id string, e datapath.Entry, m *p4v1.TableEntry) error {
	switch {
	case t.info.Const:
		return constTable(t.info)
	case len(t.info.Fields) == 0:
		return status.Errorf(codes.InvalidArgument, "table %q has no key, so it has no entries", t.info.Name)
	case m.GetAction() == nil:
		return status.Error(codes.InvalidArgument, "an entry to be inserted needs an action")
	case t.info.Size > 0 && int64(t.entries.len()) >= t.info.Size:
		return status.Errorf(codes.ResourceExhausted, "table %q is full: it has %d entries", t.info.Name, t.info.Size)
	}
	if err := checkResources(t.info, m); err != nil {
		return err
	}
	e.IdleTimeoutNs = m.GetIdleTimeoutNs()
	set, err := p.bind(t.info, &e, m.GetAction())
	if err != nil {
		return err
	}
	if err := p.dp.Apply(datapath.Insert, e); err != nil {
		p.discard(set)
		return datapathError(err)
	}
	if err := p.setResources(t.info, e, m, nil); err != nil {
		_ = p.dp.Apply(datapath.Delete, e)
		p.discard(set)
		return err
	}
	p.record(t, &entry{id: id, msg: kept(m), dp: e, set: set})
	return nil
}

// modifyEntry gives an entry a new action, or, without one, touches its direct
// resources alone.
func (p *pipeline) modifyEntry(t *tableStore, old *entry, m *p4v1.TableEntry) error {
	if m.GetAction() != nil && (t.info.Const || old.fixed) {
		return constTable(t.info)
	}
	if err := checkResources(t.info, m); err != nil {
		return err
	}
	if m.GetAction() == nil {
		return p.modifyResources(t, old, m)
	}
	e := datapath.Entry{Table: old.dp.Table, Match: old.dp.Match, Priority: old.dp.Priority, IdleTimeoutNs: m.GetIdleTimeoutNs()}
	set, err := p.bind(t.info, &e, m.GetAction())
	if err != nil {
		return err
	}
	if err := p.dp.Apply(datapath.Modify, e); err != nil {
		p.discard(set)
		return datapathError(err)
	}
	p.release(t.info, old)
	p.record(t, &entry{id: old.id, msg: kept(m), dp: e, set: set})
	return p.setResources(t.info, e, m, old.msg.GetMeterConfig())
}

// modifyResources is a MODIFY without an action.
func (p *pipeline) modifyResources(t *tableStore, old *entry, m *p4v1.TableEntry) error {
	if err := p.setResources(t.info, old.dp, m, old.msg.GetMeterConfig()); err != nil {
		return err
	}
	if t.info.Meter == nil {
		return nil
	}
	next := *old
	next.msg = withMeter(old.msg, m.GetMeterConfig())
	t.entries.put(old.id, &next)
	return nil
}

func (p *pipeline) deleteEntry(t *tableStore, old *entry) error {
	if err := p.dp.Apply(datapath.Delete, old.dp); err != nil {
		return datapathError(err)
	}
	t.entries.remove(old.id)
	p.release(t.info, old)
	return nil
}

// record stores an entry and counts what it refers to.
func (p *pipeline) record(t *tableStore, e *entry) {
	t.entries.put(e.id, e)
	if t.info.Profile != nil {
		p.store.profiles[t.info.Profile.ID].refer(e, 1)
	}
}

// release undoes what record and bind did for an entry that is gone or replaced.
func (p *pipeline) release(t *p4info.Table, e *entry) {
	if t.Profile != nil {
		p.store.profiles[t.Profile.ID].refer(e, -1)
	}
	p.discard(e.set)
}

// stored is the part of an entry that reads back as it was written.
func stored(m *p4v1.TableEntry) *p4v1.TableEntry {
	out := &p4v1.TableEntry{
		TableId: m.GetTableId(), Match: m.GetMatch(), Action: m.GetAction(), Priority: m.GetPriority(),
		MeterConfig: m.GetMeterConfig(), IsDefaultAction: m.GetIsDefaultAction(),
		IdleTimeoutNs: m.GetIdleTimeoutNs(), Metadata: m.GetMetadata(),
	}
	setCookie(out, cookie(m))
	return out
}

// kept is stored without a copy where there is nothing to leave out.
func kept(m *p4v1.TableEntry) *p4v1.TableEntry {
	if m.GetCounterData() == nil && len(m.ProtoReflect().GetUnknown()) == 0 {
		return m
	}
	return stored(m)
}

// withMeter is a copy of m with another meter configuration.
func withMeter(m *p4v1.TableEntry, c *p4v1.MeterConfig) *p4v1.TableEntry {
	out := stored(m)
	out.MeterConfig, out.IsConst = c, m.GetIsConst()
	return out
}
