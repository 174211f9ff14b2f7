package record

import (
	"cmp"
	"maps"
	"slices"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/packet"
	"github.com/bifrost-rack/bifrost/rpc/trailer"
)

// State is what the records of a ledger add up to. The zero State is that of a ledger
// without records. Its methods must not be called concurrently. It refers to the records
// that it was given, which must not change.
type State struct {
	records    uint64
	executions map[packet.ID]*Execution
	services   map[uint64]*Service
	floors     map[uint64]uint64
}

// Fold reads records in their order. It returns an error that says which record is no
// record, or does not follow from those before it.
func Fold(records [][]byte) (*State, error) {
	s := new(State)
	for _, b := range records {
		r, err := Parse(b)
		if err == nil {
			err = s.Apply(r)
		}
		if err != nil {
			return nil, fault.New(fault.BadRequest, "fold the ledger", "record %d: %v", s.records, err)
		}
	}
	return s, nil
}

// Records is how many records have been applied, from the first of the ledger on.
func (s *State) Records() uint64 { return s.records }

// Execution returns what is known of an execution, nil if nothing is. It must not be
// changed.
func (s *State) Execution(id packet.ID) *Execution { return s.executions[id] }

// Executions lists all executions in the order of their ids.
func (s *State) Executions() []*Execution {
	return slices.SortedFunc(maps.Values(s.executions), func(a, b *Execution) int { return compareIDs(a.ID, b.ID) })
}

// Service returns the state of a service; false if none was written. It must not be
// changed.
func (s *State) Service(hash uint64) (Service, bool) {
	v := s.services[hash]
	if v == nil {
		return Service{}, false
	}
	return *v, true
}

// Floor is that of a session: all its calls below are settled, and refused for ever.
func (s *State) Floor(session uint64) uint64 { return s.floors[session] }

// Base returns the state as a record. It shares memory with the state.
func (s *State) Base() *Base {
	b := &Base{Records: s.records}
	for _, e := range s.Executions() {
		b.Executions = append(b.Executions, *e)
	}
	for _, hash := range slices.Sorted(maps.Keys(s.services)) {
		v := *s.services[hash]
		v.Deltas = slices.Clone(v.Deltas)
		b.Services = append(b.Services, v)
	}
	for _, session := range slices.Sorted(maps.Keys(s.floors)) {
		b.Floors = append(b.Floors, Floor{Session: session, Floor: s.floors[session]})
	}
	return b
}

func compareIDs(a, b packet.ID) int { return slices.Compare(a[:], b[:]) }

// Apply adds the next record. A record that does not follow from those before it is an
// error, and changes nothing.
func (s *State) Apply(r Record) error {
	if s.executions == nil {
		s.executions, s.services, s.floors = map[packet.ID]*Execution{}, map[uint64]*Service{}, map[uint64]uint64{}
	}
	var err error
	switch r := r.(type) {
	case *Begun:
		err = s.begun(r)
	case *Journal:
		err = s.journal(r)
	case *Done:
		err = s.done(r)
	case *Amended:
		err = s.amended(r)
	case *Over:
		err = s.over(r)
	case *Checkpoint:
		err = s.checkpoint(r)
	case *Forgotten:
		err = s.forgotten(r)
	case *Base:
		err = s.base(r)
	}
	if err == nil {
		s.records++
	}
	return err
}

// refused refuses a record about an execution that it does not follow from.
func refused(r Record, id packet.ID, why string) error {
	return fault.New(fault.BadRequest, r.Kind().String(), "%s: %s", id, why)
}

// settled reports whether a call lies below its session's floor.
func (s *State) settled(id packet.ID) bool { return id.Sequence() < s.floors[id.Session()] }

// open returns an execution that may still get entries or an outcome, a new one if it is
// not known.
func (s *State) open(r Record, id packet.ID) (*Execution, error) {
	e := s.executions[id]
	switch {
	case e == nil && s.settled(id):
		return nil, refused(r, id, "it lies below its session's floor")
	case e == nil:
		e = &Execution{ID: id}
	case e.Done != nil:
		return nil, refused(r, id, "it is done")
	}
	return e, nil
}

func (s *State) begun(r *Begun) error {
	e, err := s.open(r, r.Execution)
	switch {
	case err != nil:
		return err
	case e.Checkpoint != nil:
		return refused(r, r.Execution, "it is a durable main")
	case e.Begun != nil && r.Attempt <= e.Begun.Attempt:
		return refused(r, r.Execution, "a later attempt has begun")
	}
	e.Begun = r
	s.executions[e.ID] = e
	return nil
}

func (s *State) journal(r *Journal) error {
	e, err := s.open(r, r.Execution)
	if err != nil {
		return err
	}
	sections, err := trailer.Parse(r.Entries)
	if err != nil {
		return err
	}
	if len(sections) == 0 {
		return refused(r, r.Execution, "there are no entries")
	}
	for _, section := range sections {
		if !section.Type.Journal() {
			return refused(r, r.Execution, section.Type.String()+" is no entry of a journal")
		}
	}
	e.Journal = append(e.Journal[:len(e.Journal):len(e.Journal)], r.Entries...)
	s.executions[e.ID] = e
	return nil
}

func (s *State) done(r *Done) error {
	e, err := s.open(r, r.Execution)
	switch {
	case err != nil:
		return err
	case e.Checkpoint != nil:
		return refused(r, r.Execution, "it is a durable main")
	}
	if err := s.serve(r); err != nil {
		return err
	}
	d := *r
	d.State = nil // it is in the service's
	e.Begun, e.Journal, e.Done = nil, nil, &d
	s.executions[e.ID] = e
	return nil
}

// serve applies what a done says of its service's state.
func (s *State) serve(r *Done) error {
	sections, err := trailer.Parse(r.State)
	if err != nil {
		return err
	}
	if len(sections) == 0 && r.Order == 0 {
		return nil
	}
	v := Service{Service: r.Service}
	if was := s.services[r.Service]; was != nil {
		v = *was
	}
	if r.Order > 0 {
		if r.Order <= v.Order {
			return refused(r, r.Execution, "a later call of the service is done")
		}
		v.Order = r.Order
	}
	for _, section := range sections {
		switch section.Type {
		case trailer.Snapshot:
			v.HasSnapshot, v.Snapshot, v.Deltas = true, section.Data, nil
		case trailer.Delta:
			v.Deltas = append(v.Deltas[:len(v.Deltas):len(v.Deltas)], section.Data)
		default:
			return refused(r, r.Execution, section.Type.String()+" is no change of a state")
		}
	}
	s.services[r.Service] = &v
	return nil
}

func (s *State) amended(r *Amended) error {
	e := s.executions[r.Execution]
	if e == nil || e.Done == nil || e.Over {
		return refused(r, r.Execution, "there is no outcome to amend")
	}
	d := *e.Done
	d.Answer = r.Answer
	e.Done = &d
	return nil
}

func (s *State) over(r *Over) error {
	e := s.executions[r.Execution]
	if e == nil || e.Over || e.Done == nil && e.Checkpoint == nil {
		return refused(r, r.Execution, "nothing is owed")
	}
	e.Over = true
	switch {
	case s.settled(e.ID):
		delete(s.executions, e.ID)
	case e.Done != nil:
		d := *e.Done
		d.Owed = Owed{Called: d.Owed.Called}
		e.Done = &d
	default:
		p := *e.Checkpoint
		p.Owed = Owed{Called: p.Owed.Called}
		e.Checkpoint = &p
	}
	return nil
}

func (s *State) checkpoint(r *Checkpoint) error {
	e, err := s.open(r, r.Main)
	switch {
	case err != nil:
		return err
	case e.Begun != nil:
		return refused(r, r.Main, "it is no durable main")
	case e.Checkpoint != nil && (r.Index <= e.Checkpoint.Index || e.Checkpoint.Ended):
		return refused(r, r.Main, "a later checkpoint is there")
	}
	p := *r
	if e.Checkpoint != nil && !e.Over {
		p.Owed = e.Checkpoint.Owed.and(p.Owed)
	}
	e.Checkpoint, e.Journal, e.Over = &p, nil, false
	s.executions[e.ID] = e
	return nil
}

// and adds up what two commits of a durable main owe.
func (o Owed) and(p Owed) Owed {
	machines := slices.Concat(o.Machines, p.Machines)
	slices.Sort(machines)
	return Owed{
		Machines: slices.Compact(machines), Oneways: slices.Concat(o.Oneways, p.Oneways),
		Frees: slices.Concat(o.Frees, p.Frees), Called: slices.Concat(o.Called, p.Called),
	}
}

func (s *State) forgotten(r *Forgotten) error {
	for _, id := range r.Executions {
		if e := s.executions[id]; e == nil || !e.Over {
			return refused(r, id, "it is not over")
		}
	}
	for _, f := range r.Floors {
		if f.Floor <= s.floors[f.Session] {
			return refused(r, packet.SessionID(f.Session, f.Floor), "the session's floor is there already")
		}
	}
	for _, id := range r.Executions {
		delete(s.executions, id)
	}
	for _, f := range r.Floors {
		s.floors[f.Session] = max(f.Floor, s.floors[f.Session])
	}
	if len(r.Floors) > 0 {
		maps.DeleteFunc(s.executions, func(id packet.ID, e *Execution) bool { return e.Over && s.settled(id) })
	}
	return nil
}

// base replaces the state. It must stand for all records before it, as far as those are
// there.
func (s *State) base(r *Base) error {
	if s.records > 0 && s.records != r.Records {
		return fault.New(fault.BadRequest, "base", "it stands for %d records, and there are %d", r.Records, s.records)
	}
	next := State{records: r.Records, executions: map[packet.ID]*Execution{}, services: map[uint64]*Service{}, floors: map[uint64]uint64{}}
	for i := range r.Executions {
		e := r.Executions[i]
		if err := e.check(); err != nil {
			return err
		}
		next.executions[e.ID] = &e
	}
	for i := range r.Services {
		v := r.Services[i]
		next.services[v.Service] = &v
	}
	for _, f := range r.Floors {
		next.floors[f.Session] = f.Floor
	}
	sorted := slices.IsSortedFunc(r.Executions, func(a, b Execution) int { return compareIDs(a.ID, b.ID) }) &&
		slices.IsSortedFunc(r.Services, func(a, b Service) int { return cmp.Compare(a.Service, b.Service) }) &&
		slices.IsSortedFunc(r.Floors, func(a, b Floor) int { return cmp.Compare(a.Session, b.Session) })
	if !sorted || len(next.executions) != len(r.Executions) || len(next.services) != len(r.Services) || len(next.floors) != len(r.Floors) {
		return fault.New(fault.BadRequest, "base", "its entries are out of order, or there twice")
	}
	*s = next
	return nil
}

// check refuses an execution that no records add up to.
func (e *Execution) check() error {
	switch {
	case e.Done != nil && (e.Begun != nil || e.Checkpoint != nil || len(e.Journal) > 0 || e.Done.Execution != e.ID),
		e.Checkpoint != nil && (e.Begun != nil || e.Checkpoint.Main != e.ID),
		e.Begun != nil && e.Begun.Execution != e.ID,
		e.Over && e.Done == nil && e.Checkpoint == nil,
		e.Done == nil && e.Begun == nil && e.Checkpoint == nil && len(e.Journal) == 0:
		return fault.New(fault.BadRequest, "base", "%s: no records add up to this", e.ID)
	}
	return nil
}
