package p4rt

import (
	"bytes"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/p4rt/p4info"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// Read implements the RPC of that name. All requests of a batch see one state;
// the entities are sent after the lock is released, so a controller that reads
// slowly holds up nobody.
func (s *Server) Read(r *p4v1.ReadRequest, stream p4v1.P4Runtime_ReadServer) error {
	if r.GetDeviceId() != s.cfg.DeviceID {
		return s.wrongDevice(r.GetDeviceId())
	}
	found, errs, err := s.read(r)
	if err != nil {
		return err
	}
	for len(found) > 0 {
		n := min(readChunk, len(found))
		if err := stream.Send(&p4v1.ReadResponse{Entities: found[:n]}); err != nil {
			return err
		}
		found = found[n:]
	}
	return batchError("requests", errs)
}

// read answers a batch (section "Batch Processing").
func (s *Server) read(req *p4v1.ReadRequest) ([]*p4v1.Entity, []error, error) {
	sc, requests := everything, req.GetEntities()
	if req.GetRole() != "" {
		var err error
		if sc, err = s.arb.roleScope(req.GetRole()); err != nil {
			return nil, nil, err
		}
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.pipe == nil {
		return nil, nil, errNoPipeline
	}
	var found []*p4v1.Entity
	errs := make([]error, len(requests))
	for i, e := range requests {
		r := reader{p: s.pipe, scope: sc}
		if errs[i] = r.read(e); errs[i] == nil {
			found = append(found, r.found...)
		}
	}
	return found, errs, nil
}

// reader collects what one request asks for.
type reader struct {
	p     *pipeline
	scope *scope // nil: everything
	found []*p4v1.Entity
}

func (r *reader) read(e *p4v1.Entity) error {
	switch q := e.GetEntity().(type) {
	case *p4v1.Entity_TableEntry:
		return r.tables(q.TableEntry)
	case *p4v1.Entity_DirectCounterEntry:
		return r.directCounters(q.DirectCounterEntry)
	case *p4v1.Entity_DirectMeterEntry:
		return r.directMeters(q.DirectMeterEntry)
	case *p4v1.Entity_ActionProfileMember:
		return r.members(q.ActionProfileMember)
	case *p4v1.Entity_ActionProfileGroup:
		return r.groups(q.ActionProfileGroup)
	case *p4v1.Entity_CounterEntry:
		return r.counters(q.CounterEntry)
	case *p4v1.Entity_MeterEntry:
		return r.meters(q.MeterEntry)
	case *p4v1.Entity_RegisterEntry:
		return r.registers(q.RegisterEntry)
	case *p4v1.Entity_PacketReplicationEngineEntry:
		return r.replication(q.PacketReplicationEngineEntry)
	case *p4v1.Entity_ValueSetEntry:
		return r.valueSets(q.ValueSetEntry)
	case *p4v1.Entity_DigestEntry:
		return r.digests(q.DigestEntry)
	case *p4v1.Entity_ExternEntry:
		if q.ExternEntry.GetExternTypeId() != 0 || q.ExternEntry.GetExternId() != 0 {
			return status.Error(codes.InvalidArgument, "the program has no such extern")
		}
		return nil // a wildcard, and there are none
	}
	return status.Error(codes.InvalidArgument, "a read request must name the kind of its entity")
}

// add adds an entity if the role's scope includes it.
func (r *reader) add(e *p4v1.Entity) {
	if r.scope == nil || r.scope.entity(r.p.info, e) {
		r.found = append(r.found, e)
	}
}

// choose is what an id in a request means: one object, or all if it is 0.
func choose[T any](what string, id uint32, all []*T, byID map[uint32]*T) ([]*T, error) {
	if id == 0 {
		return all, nil
	}
	if o := byID[id]; o != nil {
		return []*T{o}, nil
	}
	return nil, unknown(what, id)
}

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
	if q.GetTimeSinceLastHit() != nil && (!t.NotifyIdle || q.GetIsDefaultAction()) {
		return status.Errorf(codes.InvalidArgument, "table %q does not support idle timeouts", t.Name)
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
	if t.Meter != nil {
		var err error
		if m.MeterCounterData, err = r.meterCounts(q.GetMeterCounterData(), datapath.MeterCell{Entry: &e.dp}); err != nil {
			return nil, err
		}
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
	has := func(t *p4info.Table) bool { return t.Meter != nil }
	return r.directEntries(q.GetTableEntry(), has, func(_ *tableStore, e *entry) error {
		m := &p4v1.DirectMeterEntry{TableEntry: keyOf(e.msg), Config: e.msg.GetMeterConfig()}
		var err error
		if m.CounterData, err = r.meterCounts(q.GetCounterData(), datapath.MeterCell{Entry: &e.dp}); err != nil {
			return err
		}
		r.add(&p4v1.Entity{Entity: &p4v1.Entity_DirectMeterEntry{DirectMeterEntry: m}})
		return nil
	})
}

// meterCounts is what a meter has counted by colour; nil if a request does not ask for it.
func (r *reader) meterCounts(asked *p4v1.MeterCounterData, of datapath.MeterCell) (*p4v1.MeterCounterData, error) {
	if asked == nil {
		return nil, nil //nolint:nilnil // documented
	}
	c, err := r.p.dp.MeterCounts(of)
	if err != nil {
		return nil, datapathError(err)
	}
	return meterCounterData(c), nil
}

func (r *reader) members(q *p4v1.ActionProfileMember) error {
	profiles, err := choose("action profile", q.GetActionProfileId(), r.p.info.ProfileOrder, r.p.info.Profiles)
	if err != nil {
		return err
	}
	for _, a := range profiles {
		s := r.p.store.profiles[a.ID]
		for _, m := range one(s.members, q.GetMemberId()) {
			r.add(&p4v1.Entity{Entity: &p4v1.Entity_ActionProfileMember{ActionProfileMember: m.msg}})
		}
	}
	return nil
}

func (r *reader) groups(q *p4v1.ActionProfileGroup) error {
	profiles, err := choose("action profile", q.GetActionProfileId(), r.p.info.ProfileOrder, r.p.info.Profiles)
	if err != nil {
		return err
	}
	for _, a := range profiles {
		s := r.p.store.profiles[a.ID]
		for _, g := range one(s.groups, q.GetGroupId()) {
			r.add(&p4v1.Entity{Entity: &p4v1.Entity_ActionProfileGroup{ActionProfileGroup: g.msg}})
		}
	}
	return nil
}

// one is what an id in a request means: the element with it, if any, or all if
// it is 0.
func one[V any](o *ordered[uint32, V], id uint32) []V {
	if id == 0 {
		return o.all()
	}
	if v, ok := o.get(id); ok {
		return []V{v}
	}
	return nil
}

func (r *reader) counters(q *p4v1.CounterEntry) error {
	counters, err := choose("counter", q.GetCounterId(), r.p.info.CounterOrder, r.p.info.Counters)
	if err != nil {
		return err
	}
	for _, c := range counters {
		var all []datapath.Counts // nil if they are read one by one
		if d, ok := r.p.dp.(datapath.CounterReader); ok && q.GetIndex() == nil && c.Size <= maxReadCells {
			if all, err = d.Counters(c.Name); err != nil {
				return datapathError(err)
			}
		}
		err := r.cells(c.Object, c.Size, q.GetCounterId(), q.GetIndex(), func(i int64) error {
			var v datapath.Counts
			var err error
			if all != nil {
				v = all[i]
			} else if v, err = r.p.dp.Counter(c.Name, int(i)); err != nil {
				return datapathError(err)
			}
			r.add(&p4v1.Entity{Entity: &p4v1.Entity_CounterEntry{
				CounterEntry: &p4v1.CounterEntry{CounterId: c.ID, Index: &p4v1.Index{Index: i}, Data: counterData(v)},
			}})
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// cells calls f for each index that a request means. An index without an id
// cannot mean anything.
func (r *reader) cells(o p4info.Object, size int64, id uint32, ix *p4v1.Index, f func(int64) error) error {
	if id == 0 && ix != nil {
		return status.Error(codes.InvalidArgument, "an index needs an id")
	}
	first, last, err := cells(o.Name, size, ix)
	if err != nil {
		return err
	}
	if last-first > maxReadCells {
		return status.Errorf(codes.ResourceExhausted, "%s has %d cells, more than the %d that one request may read: read them by index", o.Name, size, maxReadCells)
	}
	for i := first; i < last; i++ {
		if err := f(i); err != nil {
			return err
		}
	}
	return nil
}

func (r *reader) meters(q *p4v1.MeterEntry) error {
	meters, err := choose("meter", q.GetMeterId(), r.p.info.MeterOrder, r.p.info.Meters)
	if err != nil {
		return err
	}
	for _, m := range meters {
		err := r.cells(m.Object, m.Size, q.GetMeterId(), q.GetIndex(), func(i int64) error {
			e := &p4v1.MeterEntry{MeterId: m.ID, Index: &p4v1.Index{Index: i}, Config: r.p.store.meters[meterCell{m.ID, i}]}
			var err error
			if e.CounterData, err = r.meterCounts(q.GetCounterData(), datapath.MeterCell{Name: m.Name, Index: int(i)}); err != nil {
				return err
			}
			r.add(&p4v1.Entity{Entity: &p4v1.Entity_MeterEntry{MeterEntry: e}})
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *reader) registers(q *p4v1.RegisterEntry) error {
	registers, err := choose("register", q.GetRegisterId(), r.p.info.RegisterOrder, r.p.info.Registers)
	if err != nil {
		return err
	}
	for _, g := range registers {
		err := r.cells(g.Object, g.Size, q.GetRegisterId(), q.GetIndex(), func(i int64) error {
			v, err := r.p.dp.Register(g.Name, int(i))
			if err != nil {
				return datapathError(err)
			}
			data, err := g.Cell.Data([][]byte{v})
			if err != nil {
				return err
			}
			r.add(&p4v1.Entity{Entity: &p4v1.Entity_RegisterEntry{RegisterEntry: &p4v1.RegisterEntry{
				RegisterId: g.ID, Index: &p4v1.Index{Index: i}, Data: data,
			}}})
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *reader) replication(q *p4v1.PacketReplicationEngineEntry) error {
	switch e := q.GetType().(type) {
	case *p4v1.PacketReplicationEngineEntry_MulticastGroupEntry:
		for _, m := range one(r.p.store.multicast, e.MulticastGroupEntry.GetMulticastGroupId()) {
			r.addReplication(&p4v1.PacketReplicationEngineEntry{
				Type: &p4v1.PacketReplicationEngineEntry_MulticastGroupEntry{MulticastGroupEntry: m},
			})
		}
	case *p4v1.PacketReplicationEngineEntry_CloneSessionEntry:
		for _, m := range one(r.p.store.clones, e.CloneSessionEntry.GetSessionId()) {
			r.addReplication(&p4v1.PacketReplicationEngineEntry{
				Type: &p4v1.PacketReplicationEngineEntry_CloneSessionEntry{CloneSessionEntry: m},
			})
		}
	default:
		return status.Error(codes.InvalidArgument, "packet replication request is neither for multicast groups nor for clone sessions")
	}
	return nil
}

func (r *reader) addReplication(m *p4v1.PacketReplicationEngineEntry) {
	r.add(&p4v1.Entity{Entity: &p4v1.Entity_PacketReplicationEngineEntry{PacketReplicationEngineEntry: m}})
}

func (r *reader) valueSets(q *p4v1.ValueSetEntry) error {
	sets, err := choose("value set", q.GetValueSetId(), r.p.info.ValueSetOrder, r.p.info.ValueSets)
	if err != nil {
		return err
	}
	if len(q.GetMembers()) > 0 {
		return status.Error(codes.InvalidArgument, "members must not be set in a read")
	}
	for _, v := range sets {
		m := r.p.store.valueSets[v.ID]
		if m == nil {
			m = &p4v1.ValueSetEntry{ValueSetId: v.ID}
		}
		r.add(&p4v1.Entity{Entity: &p4v1.Entity_ValueSetEntry{ValueSetEntry: m}})
	}
	return nil
}

func (r *reader) digests(q *p4v1.DigestEntry) error {
	digests, err := choose("digest", q.GetDigestId(), r.p.info.DigestOrder, r.p.info.Digests)
	if err != nil {
		return err
	}
	for _, d := range digests {
		if m := r.p.store.digests[d.ID]; m != nil {
			r.add(&p4v1.Entity{Entity: &p4v1.Entity_DigestEntry{DigestEntry: m}})
		}
	}
	return nil
}
