package p4rt

import (
	"github.com/bifrost-rack/bifrost/p4/datapath"
	"github.com/bifrost-rack/bifrost/p4/p4rt/p4info"
	configv1 "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// checkResources checks the direct resources and timeouts of an entry to be
// written (sections "Direct Resources" and "Idle-timeout").
func checkResources(t *p4info.Table, m *p4v1.TableEntry) error {
	switch {
	case m.GetCounterData() != nil && t.Counter == nil:
		return status.Errorf(codes.InvalidArgument, "table %q has no direct counter", t.Name)
	case (m.GetMeterConfig() != nil || m.GetMeterCounterData() != nil) && t.Meter == nil:
		return status.Errorf(codes.InvalidArgument, "table %q has no direct meter", t.Name)
	case m.GetMeterCounterData() != nil:
		return noColourCounters()
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
	if m.GetMeterConfig() != nil {
		return checkMeter(t.Meter.Type, m.GetMeterConfig())
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
		return datapathError(p.dp.EntryMeter(e, meterConfig(m.GetMeterConfig())))
	}
	return nil
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
	case m.GetCounterData() != nil:
		return noColourCounters()
	}
	if err := checkMeter(t.info.Meter.Type, m.GetConfig()); err != nil {
		return err
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

func noColourCounters() error {
	return status.Error(codes.Unimplemented, "meters do not count per colour")
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

// checkMeter checks a configuration against the meter's type (section
// "MeterEntry & DirectMeterEntry"). Unset is the default, green for all.
func checkMeter(t p4info.MeterType, m *p4v1.MeterConfig) error {
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
