package p4rt

import (
	"github.com/bifrost-rack/bifrost/p4switch/p4rt/p4info"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// batch applies a batch as its atomicity asks for (section "Batch Atomicity");
// errs has one element per update. An error of its own means that nothing was
// attempted.
func (p *pipeline) batch(sc *scope, r *p4v1.WriteRequest) (errs []error, err error) {
	updates := r.GetUpdates()
	switch a := r.GetAtomicity(); a {
	case p4v1.WriteRequest_CONTINUE_ON_ERROR:
		errs = make([]error, len(updates))
		for i, u := range updates {
			errs[i] = p.permitted(sc, u)
		}
		return errs, nil
	case p4v1.WriteRequest_ROLLBACK_ON_ERROR:
		return p.allOrNone(sc, updates), nil
	case p4v1.WriteRequest_DATAPLANE_ATOMIC:
		if len(updates) > 1 || len(updates) == 1 && !p.atomic(updates[0]) {
			return nil, status.Error(codes.Unimplemented, "the data plane changes in single steps: DATAPLANE_ATOMIC is supported for one update that is one step")
		}
		return p.allOrNone(sc, updates), nil
	default:
		return nil, status.Errorf(codes.InvalidArgument, "atomicity %v", a)
	}
}

// allOrNone applies updates until one fails, and then undoes those before it.
// Updates that were undone or not attempted fail with ABORTED.
func (p *pipeline) allOrNone(sc *scope, updates []*p4v1.Update) []error {
	errs := make([]error, len(updates))
	undo := make([][]*p4v1.Update, 0, len(updates))
	for i, u := range updates {
		inverse := p.inverse(u)
		if errs[i] = p.permitted(sc, u); errs[i] == nil {
			undo = append(undo, inverse)
			continue
		}
		p.rollBack(undo)
		for j := range errs {
			if j != i {
				errs[j] = status.Errorf(codes.Aborted, "rolled back, because update %d failed", i)
			}
		}
		break
	}
	return errs
}

func (p *pipeline) rollBack(undo [][]*p4v1.Update) {
	for i := len(undo) - 1; i >= 0; i-- {
		for _, u := range undo[i] {
			if err := p.update(u); err != nil {
				p.srv.log.Error("rolling back", "update", u, "error", err)
			}
		}
	}
}

// inverse gives the updates that undo an update, computed before it is applied.
// What cannot be found needs no undoing: the update will fail, and it leaves
// everything as it was.
func (p *pipeline) inverse(u *p4v1.Update) []*p4v1.Update {
	switch e := u.GetEntity().GetEntity().(type) {
	case *p4v1.Entity_TableEntry:
		return p.inverseTable(u.GetType(), e.TableEntry)
	case *p4v1.Entity_ActionProfileMember:
		if s := p.store.profiles[e.ActionProfileMember.GetActionProfileId()]; s != nil {
			if m, ok := s.members.get(e.ActionProfileMember.GetMemberId()); ok {
				return opposite(u, &p4v1.Entity{Entity: &p4v1.Entity_ActionProfileMember{ActionProfileMember: m.msg}})
			}
		}
	case *p4v1.Entity_ActionProfileGroup:
		if s := p.store.profiles[e.ActionProfileGroup.GetActionProfileId()]; s != nil {
			if g, ok := s.groups.get(e.ActionProfileGroup.GetGroupId()); ok {
				return opposite(u, &p4v1.Entity{Entity: &p4v1.Entity_ActionProfileGroup{ActionProfileGroup: g.msg}})
			}
		}
	case *p4v1.Entity_DigestEntry:
		if m := p.store.digests[e.DigestEntry.GetDigestId()]; m != nil {
			return opposite(u, &p4v1.Entity{Entity: &p4v1.Entity_DigestEntry{DigestEntry: m}})
		}
	default:
		// Counters, meters, registers, value sets and replication are undone by
		// writing back what a read of them says.
		return p.inverseByRead(u)
	}
	return opposite(u, nil)
}

// opposite undoes an update of something that has a key: old is what is there
// now, nil if nothing is.
func opposite(u *p4v1.Update, old *p4v1.Entity) []*p4v1.Update {
	switch {
	case u.GetType() == p4v1.Update_INSERT && old == nil:
		return []*p4v1.Update{{Type: p4v1.Update_DELETE, Entity: proto.Clone(u.GetEntity()).(*p4v1.Entity)}}
	case u.GetType() == p4v1.Update_MODIFY && old != nil:
		return []*p4v1.Update{{Type: p4v1.Update_MODIFY, Entity: old}}
	case u.GetType() == p4v1.Update_DELETE && old != nil:
		return []*p4v1.Update{{Type: p4v1.Update_INSERT, Entity: old}}
	}
	return nil
}

func (p *pipeline) inverseTable(op p4v1.Update_Type, m *p4v1.TableEntry) []*p4v1.Update {
	t, e, err := p.entryOf(m)
	if err != nil {
		if op == p4v1.Update_INSERT {
			return []*p4v1.Update{{Type: p4v1.Update_DELETE, Entity: tableEntity(keyOf(m))}}
		}
		return nil
	}
	old := stored(e.msg)
	if t.info.Counter != nil {
		if c, err := p.dp.EntryCounts(e.dp); err == nil {
			old.CounterData = counterData(c)
		}
	}
	switch {
	case op == p4v1.Update_DELETE && !old.GetIsDefaultAction():
		return []*p4v1.Update{{Type: p4v1.Update_INSERT, Entity: tableEntity(old)}}
	case op != p4v1.Update_MODIFY:
		return nil
	case e.fixed:
		return directUpdates(t.info, old)
	case e == t.standard: // a reset, which clears the counter
		reset := &p4v1.Update{Type: p4v1.Update_MODIFY, Entity: tableEntity(keyOf(old))}
		return append([]*p4v1.Update{reset}, directUpdates(t.info, old)...)
	}
	return []*p4v1.Update{{Type: p4v1.Update_MODIFY, Entity: tableEntity(old)}}
}

// directUpdates write an entry's direct resources and nothing else.
func directUpdates(t *p4info.Table, m *p4v1.TableEntry) []*p4v1.Update {
	var us []*p4v1.Update
	if t.Counter != nil && m.GetCounterData() != nil {
		us = append(us, &p4v1.Update{Type: p4v1.Update_MODIFY, Entity: &p4v1.Entity{Entity: &p4v1.Entity_DirectCounterEntry{
			DirectCounterEntry: &p4v1.DirectCounterEntry{TableEntry: keyOf(m), Data: m.GetCounterData()},
		}}})
	}
	if t.Meter != nil {
		us = append(us, &p4v1.Update{Type: p4v1.Update_MODIFY, Entity: &p4v1.Entity{Entity: &p4v1.Entity_DirectMeterEntry{
			DirectMeterEntry: &p4v1.DirectMeterEntry{TableEntry: keyOf(m), Config: m.GetMeterConfig()},
		}}})
	}
	return us
}

func tableEntity(m *p4v1.TableEntry) *p4v1.Entity {
	return &p4v1.Entity{Entity: &p4v1.Entity_TableEntry{TableEntry: m}}
}

// inverseByRead undoes what is not inserted or deleted, and replication.
func (p *pipeline) inverseByRead(u *p4v1.Update) []*p4v1.Update {
	r := reader{p: p}
	q, single := query(u.GetEntity())
	if q == nil || r.read(q) != nil {
		return nil
	}
	if single { // it has a key
		var old *p4v1.Entity
		if len(r.found) > 0 {
			old = r.found[0]
		}
		return opposite(u, old)
	}
	undo := make([]*p4v1.Update, len(r.found))
	for i, e := range r.found {
		undo[i] = &p4v1.Update{Type: p4v1.Update_MODIFY, Entity: e}
	}
	return undo
}

// query is the read request for what an update changes, nil if there is none;
// keyed tells whether that is inserted and deleted rather than only modified.
func query(e *p4v1.Entity) (q *p4v1.Entity, keyed bool) {
	switch e := e.GetEntity().(type) {
	case *p4v1.Entity_CounterEntry:
		if e.CounterEntry.GetCounterId() != 0 {
			return &p4v1.Entity{Entity: e}, false
		}
	case *p4v1.Entity_MeterEntry:
		if e.MeterEntry.GetMeterId() != 0 {
			return &p4v1.Entity{Entity: &p4v1.Entity_MeterEntry{MeterEntry: &p4v1.MeterEntry{
				MeterId: e.MeterEntry.GetMeterId(), Index: e.MeterEntry.GetIndex(),
			}}}, false
		}
	case *p4v1.Entity_RegisterEntry:
		if e.RegisterEntry.GetRegisterId() != 0 {
			return &p4v1.Entity{Entity: e}, false
		}
	case *p4v1.Entity_ValueSetEntry:
		if id := e.ValueSetEntry.GetValueSetId(); id != 0 {
			return &p4v1.Entity{Entity: &p4v1.Entity_ValueSetEntry{ValueSetEntry: &p4v1.ValueSetEntry{ValueSetId: id}}}, false
		}
	case *p4v1.Entity_DirectCounterEntry:
		if e.DirectCounterEntry.GetTableEntry().GetTableId() != 0 {
			return &p4v1.Entity{Entity: e}, false
		}
	case *p4v1.Entity_DirectMeterEntry:
		if m := e.DirectMeterEntry.GetTableEntry(); m.GetTableId() != 0 {
			return &p4v1.Entity{Entity: &p4v1.Entity_DirectMeterEntry{DirectMeterEntry: &p4v1.DirectMeterEntry{TableEntry: m}}}, false
		}
	case *p4v1.Entity_PacketReplicationEngineEntry:
		if e.PacketReplicationEngineEntry.GetMulticastGroupEntry().GetMulticastGroupId() != 0 ||
			e.PacketReplicationEngineEntry.GetCloneSessionEntry().GetSessionId() != 0 {
			return &p4v1.Entity{Entity: e}, true
		}
	}
	return nil, false
}

// atomic tells whether the data plane sees an update as one step.
func (p *pipeline) atomic(u *p4v1.Update) bool {
	switch e := u.GetEntity().GetEntity().(type) {
	case *p4v1.Entity_TableEntry:
		t := p.store.tables[e.TableEntry.GetTableId()]
		return t == nil || t.info.Meter == nil && e.TableEntry.GetCounterData() == nil
	case *p4v1.Entity_CounterEntry:
		return e.CounterEntry.GetIndex() != nil
	case *p4v1.Entity_MeterEntry:
		return e.MeterEntry.GetIndex() != nil
	case *p4v1.Entity_RegisterEntry:
		return e.RegisterEntry.GetIndex() != nil
	}
	return true
}
