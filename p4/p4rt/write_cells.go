package p4rt

import (
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// cells is the range of indices that an update or a read of an array means: one
// if the index is set, all otherwise (first to last, exclusive).
func cells(what string, size int64, ix *p4v1.Index) (first, last int64, err error) {
	switch i := ix.GetIndex(); {
	case ix == nil:
		return 0, size, nil
	case i < 0:
		return 0, 0, status.Errorf(codes.InvalidArgument, "%s: index %d is negative", what, i)
	case i >= size:
		return 0, 0, status.Errorf(codes.OutOfRange, "%s: index %d is beyond its size %d", what, i, size)
	default:
		return i, i + 1, nil
	}
}

// writeCounter sets cells of an indirect counter (section "CounterEntry").
func (p *pipeline) writeCounter(m *p4v1.CounterEntry) error {
	c := p.info.Counters[m.GetCounterId()]
	if c == nil {
		return unknown("counter", m.GetCounterId())
	}
	first, last, err := cells(c.Name, c.Size, m.GetIndex())
	if err != nil || m.GetData() == nil {
		return err
	}
	v, err := counts(m.GetData())
	if err != nil {
		return err
	}
	for i := first; i < last; i++ {
		if err := p.dp.SetCounter(c.Name, int(i), v); err != nil {
			return datapathError(err)
		}
	}
	return nil
}

// writeMeter configures cells of an indirect meter (section "MeterEntry").
func (p *pipeline) writeMeter(m *p4v1.MeterEntry) error {
	mt := p.info.Meters[m.GetMeterId()]
	if mt == nil {
		return unknown("meter", m.GetMeterId())
	}
	if m.GetCounterData() != nil {
		return noColourCounters()
	}
	first, last, err := cells(mt.Name, mt.Size, m.GetIndex())
	if err != nil {
		return err
	}
	if err := checkMeter(mt.Type, m.GetConfig()); err != nil {
		return err
	}
	for i := first; i < last; i++ {
		if err := p.dp.Meter(mt.Name, int(i), meterConfig(m.GetConfig())); err != nil {
			return datapathError(err)
		}
		if cell := (meterCell{mt.ID, i}); m.GetConfig() != nil {
			p.store.meters[cell] = m.GetConfig()
		} else {
			delete(p.store.meters, cell)
		}
	}
	return nil
}

// writeRegister sets cells of a register (section "RegisterEntry").
func (p *pipeline) writeRegister(m *p4v1.RegisterEntry) error {
	r := p.info.Registers[m.GetRegisterId()]
	if r == nil {
		return unknown("register", m.GetRegisterId())
	}
	first, last, err := cells(r.Name, r.Size, m.GetIndex())
	if err != nil {
		return err
	}
	v, err := r.Cell.Cell(m.GetData())
	if err != nil {
		return err
	}
	for i := first; i < last; i++ {
		if err := p.dp.SetRegister(r.Name, int(i), v); err != nil {
			return datapathError(err)
		}
	}
	return nil
}
