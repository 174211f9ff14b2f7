package p4rt

import (
	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/p4rt/p4info"
	configv1 "github.com/p4lang/p4runtime/go/p4/config/v1"
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
	p.info.Use(1, t.info.Fields, e.msg.GetMatch(), e.msg.GetAction())
	if t.info.Profile != nil {
		p.store.profiles[t.info.Profile.ID].refer(e, 1)
	}
}

// release undoes what record and bind did for an entry that is gone or replaced.
func (p *pipeline) release(t *p4info.Table, e *entry) {
	p.info.Use(-1, t.Fields, e.msg.GetMatch(), e.msg.GetAction())
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
	if m.GetCounterData() == nil && m.GetMeterCounterData() == nil && len(m.ProtoReflect().GetUnknown()) == 0 {
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

// writeDefault applies an update to a table's default entry (section "Default
// Entry").
func (p *pipeline) writeDefault(op p4v1.Update_Type, t *tableStore, m *p4v1.TableEntry) error {
	switch {
	case op != p4v1.Update_MODIFY:
		return status.Errorf(codes.InvalidArgument, "the default entry can only be modified, not %v", op)
	case len(m.GetMatch()) > 0 || m.GetPriority() != 0:
		return status.Error(codes.InvalidArgument, "the default entry has neither match nor priority")
	case m.GetIdleTimeoutNs() != 0 || m.GetTimeSinceLastHit() != nil:
		return status.Error(codes.InvalidArgument, "the default entry has no idle timeout")
	}
	if err := checkResources(t.info, m); err != nil {
		return err
	}
	if t.standard.fixed {
		return p.modifyConstDefault(t, m)
	}
	if m.GetAction() == nil {
		return p.resetDefault(t)
	}
	action := m.GetAction().GetAction()
	if action == nil {
		return status.Error(codes.InvalidArgument, "the default entry needs a direct action")
	}
	if err := t.info.CheckUse(action.GetActionId(), p4info.AsDefault); err != nil {
		return err
	}
	a, err := p.info.Action(action)
	if err != nil {
		return err
	}
	// A data plane without meters for default entries refuses here, with nothing
	// changed yet.
	if err := p.setResources(t.info, t.current.dp, m, t.current.msg.GetMeterConfig()); err != nil {
		return err
	}
	if err := p.dp.SetDefault(t.info.Name, &a); err != nil {
		return datapathError(err)
	}
	p.setDefault(t, &entry{msg: stored(m), dp: datapath.Entry{Table: t.info.Name}})
	return nil
}

// setDefault replaces the default entry in force.
func (p *pipeline) setDefault(t *tableStore, e *entry) {
	p.info.Use(-1, nil, nil, t.current.msg.GetAction())
	p.info.Use(1, nil, nil, e.msg.GetAction())
	t.current = e
}

// modifyConstDefault allows what is left when the action is const: the direct
// resources.
func (p *pipeline) modifyConstDefault(t *tableStore, m *p4v1.TableEntry) error {
	if m.GetAction() != nil || m.GetMeterConfig() == nil && m.GetCounterData() == nil {
		return status.Errorf(codes.PermissionDenied, "the default action of table %q is const", t.info.Name)
	}
	if err := p.setResources(t.info, t.current.dp, m, t.current.msg.GetMeterConfig()); err != nil {
		return err
	}
	next := *t.current
	next.msg = withMeter(next.msg, m.GetMeterConfig())
	t.current = &next
	return nil
}

// resetDefault restores the program's default entry and its direct resources.
func (p *pipeline) resetDefault(t *tableStore) error {
	if err := p.dp.SetDefault(t.info.Name, nil); err != nil {
		return datapathError(err)
	}
	had := t.current.msg.GetMeterConfig()
	p.setDefault(t, t.standard)
	e := t.current.dp
	if t.info.Counter != nil {
		if err := p.dp.SetEntryCounts(e, datapath.Counts{}); err != nil {
			return datapathError(err)
		}
	}
	return p.setResources(t.info, e, &p4v1.TableEntry{}, had)
}

// checkResources checks the direct resources and timeouts of an entry to be
// written (sections "Direct Resources" and "Idle-timeout").
func checkResources(t *p4info.Table, m *p4v1.TableEntry) error {
	switch {
	case m.GetCounterData() != nil && t.Counter == nil:
		return status.Errorf(codes.InvalidArgument, "table %q has no direct counter", t.Name)
	case (m.GetMeterConfig() != nil || m.GetMeterCounterData() != nil) && t.Meter == nil:
		return status.Errorf(codes.InvalidArgument, "table %q has no direct meter", t.Name)
	case m.GetTimeSinceLastHit() != nil:
		return status.Error(codes.InvalidArgument, "time_since_last_hit must not be set in a write")
	case m.GetIdleTimeoutNs() != 0 && !t.NotifyIdle:
		return status.Errorf(codes.InvalidArgument, "table %q does not support idle timeouts", t.Name)
	case m.GetIdleTimeoutNs() < 0:
		return status.Errorf(codes.InvalidArgument, "idle timeout %d is negative", m.GetIdleTimeoutNs())
	}
	if m.GetCounterData() != nil {
		if _, err := counts(m.GetCounterData()); err != nil {
			return err
		}
	}
	if t.Meter != nil {
		return checkMeter(t.Meter.Type, m.GetMeterConfig(), m.GetMeterCounterData())
	}
	return nil
}

// setResources writes the direct resources of an entry that exists. An unset
// counter stays; an unset meter goes back to its default from had, what it is
// configured with now.
func (p *pipeline) setResources(t *p4info.Table, e datapath.Entry, m *p4v1.TableEntry, had *p4v1.MeterConfig) error {
	if m.GetCounterData() != nil {
		c, err := counts(m.GetCounterData())
		if err != nil {
			return err
		}
		if err := p.dp.SetEntryCounts(e, c); err != nil {
			return datapathError(err)
		}
	}
	if t.Meter != nil && (m.GetMeterConfig() != nil || had != nil) {
		if err := p.dp.EntryMeter(e, meterConfig(m.GetMeterConfig())); err != nil {
			return datapathError(err)
		}
	}
	return p.clearMeter(m.GetMeterCounterData(), datapath.MeterCell{Entry: &e})
}

// writeDirectCounter sets the counter of an entry (section "DirectCounterEntry").
func (p *pipeline) writeDirectCounter(m *p4v1.DirectCounterEntry) error {
	t, e, err := p.entryOf(m.GetTableEntry())
	switch {
	case err != nil:
		return err
	case t.info.Counter == nil:
		return status.Errorf(codes.InvalidArgument, "table %q has no direct counter", t.info.Name)
	case m.GetData() == nil:
		return nil
	}
	c, err := counts(m.GetData())
	if err != nil {
		return err
	}
	return datapathError(p.dp.SetEntryCounts(e.dp, c))
}

// writeDirectMeter configures the meter of an entry (section "DirectMeterEntry").
func (p *pipeline) writeDirectMeter(m *p4v1.DirectMeterEntry) error {
	t, e, err := p.entryOf(m.GetTableEntry())
	switch {
	case err != nil:
		return err
	case t.info.Meter == nil:
		return status.Errorf(codes.InvalidArgument, "table %q has no direct meter", t.info.Name)
	}
	if err := checkMeter(t.info.Meter.Type, m.GetConfig(), m.GetCounterData()); err != nil {
		return err
	}
	if err := p.clearMeter(m.GetCounterData(), datapath.MeterCell{Entry: &e.dp}); err != nil {
		return err
	}
	if m.GetConfig() == nil && e.msg.GetMeterConfig() == nil {
		return nil // as it was; a data plane need not have meters for default entries
	}
	if err := p.dp.EntryMeter(e.dp, meterConfig(m.GetConfig())); err != nil {
		return datapathError(err)
	}
	next := *e
	next.msg = withMeter(e.msg, m.GetConfig())
	if e == t.current {
		t.current = &next
	} else {
		t.entries.put(e.id, &next)
	}
	return nil
}

// entryOf finds the entry that a direct resource belongs to.
func (p *pipeline) entryOf(m *p4v1.TableEntry) (*tableStore, *entry, error) {
	t := p.store.tables[m.GetTableId()]
	if t == nil {
		return nil, nil, unknown("table", m.GetTableId())
	}
	if m.GetIsDefaultAction() {
		return t, t.current, nil
	}
	key, err := t.key(m)
	if err != nil {
		return nil, nil, err
	}
	e, ok := t.entries.get(entryKey(key))
	if !ok {
		return nil, nil, noEntry(t.info)
	}
	return t, e, nil
}

// counts checks a counter's value, which P4Runtime carries as signed numbers.
func counts(m *p4v1.CounterData) (datapath.Counts, error) {
	if m.GetByteCount() < 0 || m.GetPacketCount() < 0 {
		return datapath.Counts{}, status.Error(codes.InvalidArgument, "a counter's value must not be negative")
	}
	return datapath.Counts{Packets: uint64(m.GetPacketCount()), Bytes: uint64(m.GetByteCount())}, nil
}

// counterData is the inverse of counts.
func counterData(c datapath.Counts) *p4v1.CounterData {
	return &p4v1.CounterData{PacketCount: int64(c.Packets), ByteCount: int64(c.Bytes)}
}

// meterCounterData is what a meter has counted, as P4Runtime has it.
func meterCounterData(c datapath.MeterCounts) *p4v1.MeterCounterData {
	return &p4v1.MeterCounterData{Green: counterData(c.Green), Yellow: counterData(c.Yellow), Red: counterData(c.Red)}
}

// checkMeter checks a configuration against the meter's type (section
// "MeterEntry & DirectMeterEntry"). Unset is the default, green for all. Counts by colour can only be cleared.
func checkMeter(t p4info.MeterType, m *p4v1.MeterConfig, c *p4v1.MeterCounterData) error {
	for _, n := range []*p4v1.CounterData{c.GetGreen(), c.GetYellow(), c.GetRed()} {
		if n.GetByteCount() != 0 || n.GetPacketCount() != 0 {
			return status.Error(codes.InvalidArgument, "what a meter counts by colour can only be set to zero")
		}
	}
	if m == nil {
		return nil
	}
	single := m.GetPir() == m.GetCir() && m.GetPburst() == m.GetCburst()
	switch {
	case m.GetCir() < 0 || m.GetCburst() < 0 || m.GetPir() < 0 || m.GetPburst() < 0 || m.GetEburst() < 0:
		return status.Error(codes.InvalidArgument, "a meter's rates and bursts must not be negative")
	case t == configv1.MeterSpec_SINGLE_RATE_THREE_COLOR && !single:
		return status.Error(codes.InvalidArgument, "a single-rate meter needs pir = cir and pburst = cburst")
	case t == configv1.MeterSpec_SINGLE_RATE_THREE_COLOR && m.GetEburst() != 0:
		return status.Error(codes.Unimplemented, "excess bursts are not supported")
	case t == configv1.MeterSpec_SINGLE_RATE_TWO_COLOR && !single:
		return status.Error(codes.InvalidArgument, "a single-rate meter needs pir = cir and pburst = cburst")
	case m.GetEburst() != 0:
		return status.Error(codes.InvalidArgument, "only a single-rate three-colour meter has an excess burst")
	case m.GetPir() < m.GetCir():
		return status.Error(codes.InvalidArgument, "the peak rate is below the committed rate")
	}
	return nil
}

func meterConfig(m *p4v1.MeterConfig) *datapath.MeterConfig {
	if m == nil {
		return nil
	}
	return &datapath.MeterConfig{CIR: m.GetCir(), CBurst: m.GetCburst(), PIR: m.GetPir(), PBurst: m.GetPburst()}
}
