package p4rt

import (
	"fmt"

	"github.com/bifrost-rack/bifrost/p4/datapath"
	"github.com/bifrost-rack/bifrost/p4/p4rt/p4info"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// adopt writes to a fresh pipeline all that was written to an old one, and what
// the data plane keeps there: counters and registers. An error means that the
// old state cannot be preserved in the new program. What packets count in
// between is lost.
func (p *pipeline) adopt(old *pipeline) error {
	for _, step := range []func(*pipeline) error{
		p.adoptProfiles, p.adoptTables, p.adoptReplication, p.adoptSettings, p.adoptCounters, p.adoptRegisters,
	} {
		if err := step(old); err != nil {
			return status.Errorf(codes.InvalidArgument, "the forwarding state cannot be preserved: %v", err)
		}
	}
	return nil
}

func (p *pipeline) adoptEntity(op p4v1.Update_Type, e *p4v1.Entity) error {
	if err := p.update(&p4v1.Update{Type: op, Entity: e}); err != nil {
		return fmt.Errorf("%v: %w", e, err)
	}
	return nil
}

func (p *pipeline) adoptProfiles(old *pipeline) error {
	for _, a := range old.info.ProfileOrder {
		s := old.store.profiles[a.ID]
		for _, m := range s.members.all() {
			if err := p.adoptEntity(p4v1.Update_INSERT, &p4v1.Entity{Entity: &p4v1.Entity_ActionProfileMember{ActionProfileMember: m.msg}}); err != nil {
				return err
			}
		}
		for _, g := range s.groups.all() {
			if err := p.adoptEntity(p4v1.Update_INSERT, &p4v1.Entity{Entity: &p4v1.Entity_ActionProfileGroup{ActionProfileGroup: g.msg}}); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *pipeline) adoptTables(old *pipeline) error {
	for _, info := range old.info.TableOrder {
		t := old.store.tables[info.ID]
		for _, e := range t.entries.all() {
			if err := p.adoptEntry(old, t, e); err != nil {
				return err
			}
		}
		if err := p.adoptDeletions(t); err != nil {
			return err
		}
		if err := p.adoptDefault(old, t); err != nil {
			return err
		}
	}
	return nil
}

// adoptDefault takes over a default entry that was changed, and its direct
// resources.
func (p *pipeline) adoptDefault(old *pipeline, t *tableStore) error {
	m := stored(t.current.msg)
	if t.info.Counter != nil {
		c, err := old.dp.EntryCounts(t.current.dp)
		if err != nil {
			return err
		}
		if !zero(c) {
			m.CounterData = counterData(c)
		}
	}
	switch {
	case t.current == t.standard && m.CounterData == nil:
		return nil
	case t.current == t.standard || t.standard.fixed:
		return p.adoptDirect(t.info, m)
	}
	return p.adoptEntity(p4v1.Update_MODIFY, tableEntity(m))
}

// adoptDirect takes over an entry's direct resources alone.
func (p *pipeline) adoptDirect(t *p4info.Table, m *p4v1.TableEntry) error {
	for _, u := range directUpdates(t, m) {
		if err := p.adoptEntity(u.GetType(), u.GetEntity()); err != nil {
			return err
		}
	}
	return nil
}

// adoptEntry takes over an entry with its direct counter. Entries that the
// program declares are the new program's business, unless the controller has
// changed them.
func (p *pipeline) adoptEntry(old *pipeline, t *tableStore, e *entry) error {
	m := stored(e.msg)
	if t.info.Counter != nil {
		c, err := old.dp.EntryCounts(e.dp)
		if err != nil {
			return err
		}
		if !zero(c) {
			m.CounterData = counterData(c)
		}
	}
	declared, isPreset := t.presets[e.id]
	if !isPreset {
		return p.adoptEntity(p4v1.Update_INSERT, tableEntity(m))
	}
	switch {
	case e == declared && m.CounterData == nil:
		return nil
	case e == declared || e.fixed:
		return p.adoptDirect(t.info, m)
	}
	return p.adoptEntity(p4v1.Update_MODIFY, tableEntity(m))
}

// adoptDeletions deletes the program's entries that the controller has deleted.
func (p *pipeline) adoptDeletions(t *tableStore) error {
	fresh := p.store.tables[t.info.ID]
	for key, e := range t.presets {
		if _, ok := t.entries.get(key); ok || fresh == nil || fresh.presets[key] == nil {
			continue
		}
		if err := p.adoptEntity(p4v1.Update_DELETE, tableEntity(keyOf(e.msg))); err != nil {
			return err
		}
	}
	return nil
}

func (p *pipeline) adoptReplication(old *pipeline) error {
	r := reader{p: old}
	for _, q := range []*p4v1.PacketReplicationEngineEntry{
		{Type: &p4v1.PacketReplicationEngineEntry_MulticastGroupEntry{MulticastGroupEntry: &p4v1.MulticastGroupEntry{}}},
		{Type: &p4v1.PacketReplicationEngineEntry_CloneSessionEntry{CloneSessionEntry: &p4v1.CloneSessionEntry{}}},
	} {
		if err := r.replication(q); err != nil {
			return err
		}
	}
	for _, e := range r.found {
		if err := p.adoptEntity(p4v1.Update_INSERT, e); err != nil {
			return err
		}
	}
	return nil
}

// adoptSettings takes over meters, value sets and digests.
func (p *pipeline) adoptSettings(old *pipeline) error {
	for _, m := range old.info.MeterOrder {
		for i := range m.Size {
			c := old.store.meters[meterCell{m.ID, i}]
			if c == nil {
				continue
			}
			e := &p4v1.MeterEntry{MeterId: m.ID, Index: &p4v1.Index{Index: i}, Config: c}
			if err := p.adoptEntity(p4v1.Update_MODIFY, &p4v1.Entity{Entity: &p4v1.Entity_MeterEntry{MeterEntry: e}}); err != nil {
				return err
			}
		}
	}
	for _, v := range old.info.ValueSetOrder {
		if m := old.store.valueSets[v.ID]; m != nil {
			if err := p.adoptEntity(p4v1.Update_MODIFY, &p4v1.Entity{Entity: &p4v1.Entity_ValueSetEntry{ValueSetEntry: m}}); err != nil {
				return err
			}
		}
	}
	for _, d := range old.info.DigestOrder {
		if m := old.store.digests[d.ID]; m != nil {
			if err := p.adoptEntity(p4v1.Update_INSERT, &p4v1.Entity{Entity: &p4v1.Entity_DigestEntry{DigestEntry: m}}); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *pipeline) adoptCounters(old *pipeline) error {
	for _, c := range old.info.CounterOrder {
		for i := range int(c.Size) {
			v, err := old.dp.Counter(c.Name, i)
			if err != nil {
				return err
			}
			if zero(v) {
				continue
			}
			fresh := p.info.Counters[c.ID]
			if fresh == nil || i >= int(fresh.Size) {
				return fmt.Errorf("counter %q has no cell %d any more", c.Name, i)
			}
			if err := p.dp.SetCounter(fresh.Name, i, v); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *pipeline) adoptRegisters(old *pipeline) error {
	for _, r := range old.info.RegisterOrder {
		for i := range r.Size {
			v, err := old.dp.Register(r.Name, int(i))
			if err != nil {
				return err
			}
			data, err := r.Cell.Data([][]byte{v})
			if err != nil {
				return err
			}
			e := &p4v1.RegisterEntry{RegisterId: r.ID, Index: &p4v1.Index{Index: i}, Data: data}
			if err := p.adoptEntity(p4v1.Update_MODIFY, &p4v1.Entity{Entity: &p4v1.Entity_RegisterEntry{RegisterEntry: e}}); err != nil {
				return err
			}
		}
	}
	return nil
}

// zero tells whether there is nothing to carry over.
func zero(c datapath.Counts) bool { return c == datapath.Counts{} }
