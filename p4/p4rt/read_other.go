package p4rt

import (
	"github.com/bifrost-rack/bifrost/p4/p4rt/p4info"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

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
		err := r.cells(c.Object, c.Size, q.GetCounterId(), q.GetIndex(), func(i int64) error {
			v, err := r.p.dp.Counter(c.Name, int(i))
			if err != nil {
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
	if q.GetCounterData() != nil {
		return noColourCounters()
	}
	meters, err := choose("meter", q.GetMeterId(), r.p.info.MeterOrder, r.p.info.Meters)
	if err != nil {
		return err
	}
	for _, m := range meters {
		err := r.cells(m.Object, m.Size, q.GetMeterId(), q.GetIndex(), func(i int64) error {
			r.add(&p4v1.Entity{Entity: &p4v1.Entity_MeterEntry{MeterEntry: &p4v1.MeterEntry{
				MeterId: m.ID, Index: &p4v1.Index{Index: i}, Config: r.p.store.meters[meterCell{m.ID, i}],
			}}})
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
