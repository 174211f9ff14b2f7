package p4rt

import (
	"fmt"
	"slices"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/p4rt/p4info"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// adopt writes to a fresh pipeline all that was written to an old one, and what
// the data plane keeps there: counters, what meters have counted, and registers. An error means that the
// old state cannot be preserved in the new program. What packets count in
// between is lost.
func (p *pipeline) adopt(old *pipeline) error {
	p.replaying = true
	defer func() { p.replaying = false }()
	err := old.replay(true, func(u *p4v1.Update) error {
		if u.GetType() == p4v1.Update_DELETE {
			if _, _, err := p.entryOf(u.GetEntity().GetTableEntry()); err != nil {
				return nil // the new program does not declare the entry
			}
		}
		return p.update(u)
	})
	if err == nil {
		err = p.adoptCounters(old)
	}
	if err == nil {
		err = p.adoptRegisters(old)
	}
	if err == nil {
		err = p.adoptMeterCounts(old)
	}
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "the forwarding state cannot be preserved: %v", err)
	}
	return nil
}

// replayer makes the updates that give a fresh pipeline what was written to p.
type replayer struct {
	p      *pipeline
	counts bool // with the direct counters
	do     func(*p4v1.Update) error
}

// replay calls do with updates that, made in order to a fresh pipeline of the
// program, give it what controllers have written to p. Counters and registers
// belong to the data plane and are left out, but for direct counters if counts is
// set. It stops at the first error.
func (p *pipeline) replay(counts bool, do func(*p4v1.Update) error) error {
	r := replayer{p: p, counts: counts, do: do}
	for _, step := range []func() error{r.profiles, r.tables, r.replication, r.settings} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func (r *replayer) make(op p4v1.Update_Type, e *p4v1.Entity) error {
	if err := r.do(&p4v1.Update{Type: op, Entity: e}); err != nil {
		return fmt.Errorf("%v: %w", e, err)
	}
	return nil
}

func (r *replayer) profiles() error {
	for _, a := range r.p.info.ProfileOrder {
		s := r.p.store.profiles[a.ID]
		for _, m := range s.members.all() {
			if err := r.make(p4v1.Update_INSERT, &p4v1.Entity{Entity: &p4v1.Entity_ActionProfileMember{ActionProfileMember: m.msg}}); err != nil {
				return err
			}
		}
		for _, g := range s.groups.all() {
			if err := r.make(p4v1.Update_INSERT, &p4v1.Entity{Entity: &p4v1.Entity_ActionProfileGroup{ActionProfileGroup: g.msg}}); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *replayer) tables() error {
	for _, info := range r.p.info.TableOrder {
		t := r.p.store.tables[info.ID]
		if err := r.deletions(t); err != nil { // first: they make room
			return err
		}
		for _, e := range t.entries.all() {
			if err := r.entry(t, e); err != nil {
				return err
			}
		}
		if err := r.defaultEntry(t); err != nil {
			return err
		}
	}
	return nil
}

// written is an entry as it is written to a fresh pipeline.
func (r *replayer) written(t *tableStore, e *entry) (*p4v1.TableEntry, error) {
	m := stored(e.msg)
	if !r.counts || t.info.Counter == nil {
		return m, nil
	}
	c, err := r.p.dp.EntryCounts(e.dp)
	if err == nil && !zero(c) {
		m.CounterData = counterData(c)
	}
	return m, err
}

// defaultEntry repeats a default entry that was changed, and its direct
// resources.
func (r *replayer) defaultEntry(t *tableStore) error {
	m, err := r.written(t, t.current)
	switch {
	case err != nil:
		return err
	case t.current == t.standard && m.CounterData == nil:
		return nil
	case t.current == t.standard || t.standard.fixed:
		return r.direct(t.info, m)
	}
	return r.make(p4v1.Update_MODIFY, tableEntity(m))
}

// direct repeats an entry's direct resources alone.
func (r *replayer) direct(t *p4info.Table, m *p4v1.TableEntry) error {
	for _, u := range directUpdates(t, m) {
		if err := r.make(u.GetType(), u.GetEntity()); err != nil {
			return err
		}
	}
	return nil
}

// entry repeats an entry with its direct counter. Entries that the program
// declares are the program's business, unless the controller has changed them.
func (r *replayer) entry(t *tableStore, e *entry) error {
	m, err := r.written(t, e)
	if err != nil {
		return err
	}
	declared, isPreset := t.presets[e.id]
	switch {
	case !isPreset:
		return r.make(p4v1.Update_INSERT, tableEntity(m))
	case e == declared && m.CounterData == nil:
		return nil
	case e == declared || e.fixed:
		return r.direct(t.info, m)
	}
	return r.make(p4v1.Update_MODIFY, tableEntity(m))
}

// deletions deletes the program's entries that the controller has deleted.
func (r *replayer) deletions(t *tableStore) error {
	for key, e := range t.presets {
		if _, ok := t.entries.get(key); ok {
			continue
		}
		if err := r.make(p4v1.Update_DELETE, tableEntity(keyOf(e.msg))); err != nil {
			return err
		}
	}
	return nil
}

func (r *replayer) replication() error {
	all := reader{p: r.p}
	for _, q := range []*p4v1.PacketReplicationEngineEntry{
		{Type: &p4v1.PacketReplicationEngineEntry_MulticastGroupEntry{MulticastGroupEntry: &p4v1.MulticastGroupEntry{}}},
		{Type: &p4v1.PacketReplicationEngineEntry_CloneSessionEntry{CloneSessionEntry: &p4v1.CloneSessionEntry{}}},
	} {
		if err := all.replication(q); err != nil {
			return err
		}
	}
	for _, e := range all.found {
		if err := r.make(p4v1.Update_INSERT, e); err != nil {
			return err
		}
	}
	return nil
}

// settings repeats meters, value sets and digests.
func (r *replayer) settings() error {
	for _, m := range r.p.info.MeterOrder {
		for i := range m.Size {
			c := r.p.store.meters[meterCell{m.ID, i}]
			if c == nil {
				continue
			}
			e := &p4v1.MeterEntry{MeterId: m.ID, Index: &p4v1.Index{Index: i}, Config: c}
			if err := r.make(p4v1.Update_MODIFY, &p4v1.Entity{Entity: &p4v1.Entity_MeterEntry{MeterEntry: e}}); err != nil {
				return err
			}
		}
	}
	for _, v := range r.p.info.ValueSetOrder {
		if m := r.p.store.valueSets[v.ID]; m != nil {
			if err := r.make(p4v1.Update_MODIFY, &p4v1.Entity{Entity: &p4v1.Entity_ValueSetEntry{ValueSetEntry: m}}); err != nil {
				return err
			}
		}
	}
	for _, d := range r.p.info.DigestOrder {
		if m := r.p.store.digests[d.ID]; m != nil {
			if err := r.make(p4v1.Update_INSERT, &p4v1.Entity{Entity: &p4v1.Entity_DigestEntry{DigestEntry: m}}); err != nil {
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

// adoptMeterCounts takes over what meters have counted.
func (p *pipeline) adoptMeterCounts(old *pipeline) error {
	adopt := func(from, to datapath.MeterCell) error {
		c, err := old.dp.MeterCounts(from)
		if err != nil || c == (datapath.MeterCounts{}) {
			return err
		}
		return p.dp.SetMeterCounts(to, c)
	}
	for _, m := range old.info.MeterOrder {
		for i := range int(m.Size) {
			if err := adopt(datapath.MeterCell{Name: m.Name, Index: i}, datapath.MeterCell{Name: m.Name, Index: i}); err != nil {
				return err
			}
		}
	}
	for _, info := range old.info.TableOrder {
		if info.Meter == nil {
			continue
		}
		for _, e := range old.store.tables[info.ID].entries.all() {
			_, fresh, err := p.entryOf(keyOf(e.msg))
			if err != nil {
				return err
			}
			if err := adopt(datapath.MeterCell{Entry: &e.dp}, datapath.MeterCell{Entry: &fresh.dp}); err != nil {
				return err
			}
		}
	}
	return nil
}

// adoptRegisters copies what registers have, unless the new datapath has the same ones as the old one. Who has other ones loses what packets write
// after a cell was read.
func (p *pipeline) adoptRegisters(old *pipeline) error {
	if heir, ok := p.dp.(registerHeir); ok && heir.HasRegistersOf(old.dp) {
		return nil
	}
	for _, r := range old.info.RegisterOrder {
		for i := range r.Size {
			v, err := old.dp.Register(r.Name, int(i))
			if err != nil {
				return err
			}
			if fresh := p.info.Registers[r.ID]; fresh != nil && i < fresh.Size && !slices.ContainsFunc(v, func(b byte) bool { return b != 0 }) {
				continue
			}
			data, err := r.Cell.Data([][]byte{v})
			if err != nil {
				return err
			}
			e := &p4v1.RegisterEntry{RegisterId: r.ID, Index: &p4v1.Index{Index: i}, Data: data}
			u := &p4v1.Update{Type: p4v1.Update_MODIFY, Entity: &p4v1.Entity{Entity: &p4v1.Entity_RegisterEntry{RegisterEntry: e}}}
			if err := p.update(u); err != nil {
				return fmt.Errorf("%v: %w", u.GetEntity(), err)
			}
		}
	}
	return nil
}

// zero tells whether there is nothing to carry over.
func zero(c datapath.Counts) bool { return c == datapath.Counts{} }

// Persister keeps the committed pipeline, what controllers have written to it, and the highest
// election id of each role, for a server that starts after this process has died (Restore). Counters and
// registers belong to the data plane, which keeps them itself or not at all. The
// server makes its calls one at a time.
type Persister interface {
	// Begin replaces all that is kept by a pipeline and what gives it its
	// state. dp is the pipeline's datapath, which is about to be committed or has
	// been. The messages are the server's.
	Begin(dp datapath.Datapath, config *p4v1.ForwardingPipelineConfig, state []*p4v1.WriteRequest) error
	// Append adds updates that have been made, before the controller is answered, or the id of a role's new
	// primary. With long, what is kept is much more than the state needs, and the server
	// calls Begin.
	Append(r *p4v1.WriteRequest) (long bool, err error)
}

// updatesAtOnce is how many updates a request that is kept has at most.
const updatesAtOnce = 1000

// Restore commits a pipeline that a Persister has kept, and gives it its state, which
// next returns in order until it returns nil.
func (s *Server) Restore(config *p4v1.ForwardingPipelineConfig, next func() (*p4v1.WriteRequest, error)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, err := s.newPipeline(config, false) // the datapath has what packets have changed by itself
	if err != nil {
		return err
	}
	p.replaying = true
	defer func() { p.replaying = false }()
	for n := 0; ; {
		r, err := next()
		if r == nil && err == nil {
			break
		}
		if r.GetElectionId() != nil {
			s.arb.heard(r.GetRole(), r.GetElectionId())
		}
		for _, u := range r.GetUpdates() {
			n++
			if err = p.update(u); err != nil {
				break
			}
		}
		if err != nil {
			_ = p.close() // nothing is idle: it has never been committed
			return fmt.Errorf("update %d: %w", n, err)
		}
	}
	for _, old := range s.commit(p) {
		_ = old.close()
	}
	return nil
}

// begin makes the server's Persister keep p, which is about to be committed or has
// been.
func (s *Server) begin(p *pipeline) {
	if s.cfg.Persister == nil {
		return
	}
	var updates []*p4v1.Update
	err := p.replay(false, func(u *p4v1.Update) error {
		updates = append(updates, u)
		return nil
	})
	if err == nil {
		state := s.arb.elections()
		for some := range slices.Chunk(updates, updatesAtOnce) {
			state = append(state, &p4v1.WriteRequest{Updates: some})
		}
		err = s.cfg.Persister.Begin(p.dp, p.msg, state)
	}
	p.made = nil
	if err != nil {
		s.log.Error("the pipeline is not kept: it would be gone if this process died", "error", err)
	}
}

// keep makes the server's Persister keep the updates made since the last time.
// Callers hold s.mu and have not answered the controller yet.
func (s *Server) keep() {
	p := s.pipe
	if p == nil || len(p.made) == 0 {
		return
	}
	r := &p4v1.WriteRequest{Updates: p.made}
	p.made = nil
	s.append(p, r)
}

// elected makes the server's Persister keep the id of a role's new primary: the role must not go to a lower one when
// this process has died. Callers hold s.mu.
func (s *Server) elected(role string, id *p4v1.Uint128) {
	if s.cfg.Persister != nil && s.pipe != nil { // else begin does it
		s.append(s.pipe, &p4v1.WriteRequest{Role: role, ElectionId: id})
	}
}

func (s *Server) append(p *pipeline, r *p4v1.WriteRequest) {
	long, err := s.cfg.Persister.Append(r)
	if err != nil {
		s.log.Error("updates are not kept: they would be gone if this process died", "error", err)
	}
	if long {
		s.begin(p)
	}
}

// keeps tells whether an update is one that a Persister keeps.
func keeps(u *p4v1.Update) bool {
	switch u.GetEntity().GetEntity().(type) {
	case *p4v1.Entity_CounterEntry, *p4v1.Entity_DirectCounterEntry, *p4v1.Entity_RegisterEntry:
		return false
	}
	return true
}
