package p4rt

import (
	"bytes"
	"time"

	"github.com/bifrost-rack/bifrost/p4/datapath"
	"github.com/bifrost-rack/bifrost/p4/p4rt/p4info"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// HitTimer is implemented by a Datapath that can tell when an entry was last
// hit; without it, reading time_since_last_hit is UNIMPLEMENTED.
type HitTimer interface {
	SinceHit(datapath.Entry) (time.Duration, error)
}

// tables answers a table entry request (section "Wildcard Reads" under
// "TableEntry").
func (r *reader) tables(q *p4v1.TableEntry) error {
	if q.GetTableId() == 0 {
		if !proto.Equal(q, onlyWanted(q)) {
			return status.Error(codes.InvalidArgument, "without a table id nothing else can be filtered by")
		}
		for _, t := range r.p.info.TableOrder {
			if err := r.table(r.p.store.tables[t.ID], r.p.store.tables[t.ID].entries.all(), q); err != nil {
				return err
			}
		}
		return nil
	}
	t, entries, err := r.selected(q)
	if err != nil {
		return err
	}
	if err := supports(t.info, q); err != nil {
		return err
	}
	return r.table(t, entries, q)
}

// onlyWanted is a request with nothing but what is to be returned.
func onlyWanted(q *p4v1.TableEntry) *p4v1.TableEntry {
	return &p4v1.TableEntry{
		MeterConfig: q.GetMeterConfig(), CounterData: q.GetCounterData(),
		MeterCounterData: q.GetMeterCounterData(), TimeSinceLastHit: q.GetTimeSinceLastHit(),
		IsDefaultAction: q.GetIsDefaultAction(),
	}
}

// supports refuses a request for something that the named table does not have.
func supports(t *p4info.Table, q *p4v1.TableEntry) error {
	switch {
	case q.GetTimeSinceLastHit() != nil && (!t.NotifyIdle || q.GetIsDefaultAction()):
		return status.Errorf(codes.InvalidArgument, "table %q does not support idle timeouts", t.Name)
	case q.GetMeterCounterData() != nil && t.Meter != nil:
		return noColourCounters()
	}
	return nil
}

// selected is the table of a request with an id, and its entries that the
// request's key and is_default_action choose.
func (r *reader) selected(q *p4v1.TableEntry) (*tableStore, []*entry, error) {
	t := r.p.store.tables[q.GetTableId()]
	switch {
	case t == nil:
		return nil, nil, unknown("table", q.GetTableId())
	case q.GetIsDefaultAction() && len(q.GetMatch()) > 0:
		return nil, nil, status.Error(codes.InvalidArgument, "the default entry has no match")
	case q.GetIsDefaultAction() || len(q.GetMatch()) == 0:
		return t, t.entries.all(), nil
	}
	match, err := p4info.MatchKey(t.info.Fields, q.GetMatch())
	if err != nil {
		return nil, nil, err
	}
	if q.GetPriority() == 0 && t.info.NeedsPriority {
		return t, sameMatch(t.entries.all(), match), nil
	}
	e, ok := t.entries.get(entryKey(datapath.Entry{Match: match, Priority: q.GetPriority()}))
	if !ok {
		return t, nil, nil
	}
	return t, []*entry{e}, nil
}

// sameMatch are the entries with this match, whatever their priority.
func sameMatch(all []*entry, match []datapath.Match) []*entry {
	want := entryKey(datapath.Entry{Match: match})
	var out []*entry
	for _, e := range all {
		if entryKey(datapath.Entry{Match: e.dp.Match}) == want {
			out = append(out, e)
		}
	}
	return out
}

// table adds the entries that pass the request's filters; the default entry
// alone if that is asked for.
func (r *reader) table(t *tableStore, entries []*entry, q *p4v1.TableEntry) error {
	if q.GetIsDefaultAction() {
		entries = []*entry{t.current}
	}
	for _, e := range entries {
		if !passes(e.msg, q) {
			continue
		}
		m, err := r.entry(t.info, e, q)
		if err != nil {
			return err
		}
		r.add(&p4v1.Entity{Entity: &p4v1.Entity_TableEntry{TableEntry: m}})
	}
	return nil
}

func passes(m, q *p4v1.TableEntry) bool {
	if id := q.GetAction().GetAction().GetActionId(); id != 0 && m.GetAction().GetAction().GetActionId() != id {
		return false
	}
	return (q.GetPriority() == 0 || q.GetPriority() == m.GetPriority()) &&
		(cookie(q) == 0 || cookie(q) == cookie(m)) &&
		(len(q.GetMetadata()) == 0 || bytes.Equal(q.GetMetadata(), m.GetMetadata()))
}

// entry is an entry as the request wants to see it (section "Direct Resources").
func (r *reader) entry(t *p4info.Table, e *entry, q *p4v1.TableEntry) (*p4v1.TableEntry, error) {
	m := stored(e.msg)
	m.IsConst = e.msg.GetIsConst()
	if q.GetMeterConfig() == nil {
		m.MeterConfig = nil
	}
	if q.GetCounterData() != nil && t.Counter != nil {
		c, err := r.p.dp.EntryCounts(e.dp)
		if err != nil {
			return nil, datapathError(err)
		}
		m.CounterData = counterData(c)
	}
	if q.GetTimeSinceLastHit() != nil && t.NotifyIdle && !q.GetIsDefaultAction() {
		ht, ok := r.p.dp.(HitTimer)
		if !ok {
			return nil, status.Error(codes.Unimplemented, "the data plane does not tell when an entry was last hit")
		}
		since, err := ht.SinceHit(e.dp)
		if err != nil {
			return nil, datapathError(err)
		}
		m.TimeSinceLastHit = &p4v1.TableEntry_IdleTimeout{ElapsedNs: since.Nanoseconds()}
	}
	return m, nil
}
