package record

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
	"github.com/bifrost-rack/bifrost/rpc/trailer"
)

// State is what the records of a ledger add up to. The zero State is that of a ledger
// without records. Its methods must not be called concurrently. It refers to the records
// that it was given, which must not change.
type State struct {
	records    uint64
	executions map[rpcpacket.ID]*Execution
	services   map[uint64]*Service
	slots      map[Place]*slot
	callers    map[[16]byte]*Caller
	attempts   map[attempt]rpcpacket.ID // of those that are Derived, by the place in which they have come
	weight     Weight
	kept       int // bytes of states in checkpoints
}

// slot is a Slot, and the plain calls that are known of it.
type slot struct {
	Slot
	calls []rpcpacket.ID
}

// attempt is the place of a call in its caller's slots.
type attempt struct {
	Place
	Number rpcpacket.Number
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

// Execution returns what is known of an execution, nil if nothing is. It must not be
// changed.
func (s *State) Execution(id rpcpacket.ID) *Execution { return s.executions[id] }

// At returns what is known of the execution whose call has come in a slot under a number, nil if nothing is. It must not be changed.
func (s *State) At(at Place, n rpcpacket.Number) *Execution {
	id, known := s.attempts[attempt{at, n}]
	if !known {
		id = rpcpacket.PlainID(netip.AddrFrom16(at.Caller), at.Slot, n)
	}
	e := s.executions[id]
	if e == nil {
		return nil
	}
	if its, _, number := e.Caller(); its != at || number != n {
		return nil
	}
	return e
}

// Executions lists all executions in the order of their ids.
func (s *State) Executions() []*Execution {
	return slices.SortedFunc(maps.Values(s.executions), func(a, b *Execution) int { return a.ID.Compare(b.ID) })
}

// Each calls f with each execution, in any order; f must not change it.
func (s *State) Each(f func(*Execution)) {
	for _, e := range s.executions {
		f(e)
	}
}

// Slots calls f with each call slot, in any order; f must not change it.
func (s *State) Slots(f func(*Slot)) {
	for _, l := range s.slots {
		f(&l.Slot)
	}
}

// Remembers reports whether a service has a state, or a main a checkpoint.
func (s *State) Remembers() bool {
	if len(s.services) > 0 {
		return true
	}
	for _, e := range s.executions {
		if e.Main() {
			return true
		}
	}
	return false
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

// Floor is that of a call slot: numbers below are refused unless they are known.
func (s *State) Floor(at Place) rpcpacket.Number {
	if l := s.slots[at]; l != nil {
		return l.Floor
	}
	return 0
}

// Before lists the plain calls of a slot that lie below a number, and that nobody asks
// for any more when a call with that number comes.
func (s *State) Before(at Place, n rpcpacket.Number) (all []*Execution) {
	l := s.slots[at]
	if l == nil {
		return nil
	}
	for _, id := range l.calls {
		if e := s.executions[id]; e != nil && !e.Forgotten {
			if _, its := id.Place(); its < n {
				all = append(all, e)
			}
		}
	}
	return all
}

// Dead is up to which incarnation a caller is dead, and whether there is no later one.
func (s *State) Dead(caller [16]byte) (incarnation uint32, gone bool) {
	if k := s.callers[caller]; k != nil {
		return k.Dead, k.Gone
	}
	return 0, false
}

// Buried reports whether nobody asks for a call's execution since its caller is gone for good, or since it is a plain call of a
// dead incarnation. The records may have told that before they told of the execution.
func (s *State) Buried(e *Execution) bool {
	at, incarnation, _ := e.Caller()
	dead, gone := s.Dead(at.Caller)
	return at.Slot != 0 && incarnation <= dead && (gone || e.plain())
}

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
	for _, at := range slices.SortedFunc(maps.Keys(s.slots), Place.Compare) {
		b.Slots = append(b.Slots, s.slots[at].Slot)
	}
	for _, a := range slices.SortedFunc(maps.Keys(s.callers), compareAddresses) {
		b.Callers = append(b.Callers, *s.callers[a])
	}
	return b
}

func compareAddresses(a, b [16]byte) int { return slices.Compare(a[:], b[:]) }

// empty makes the maps of the zero State.
func (s *State) empty() {
	s.executions, s.services = map[rpcpacket.ID]*Execution{}, map[uint64]*Service{}
	s.slots, s.callers, s.attempts = map[Place]*slot{}, map[[16]byte]*Caller{}, map[attempt]rpcpacket.ID{}
	s.weighAll()
}

// Apply adds the next record. A record that does not follow from those before it is an
// error, and changes nothing.
func (s *State) Apply(r Record) error {
	if s.executions == nil {
		s.empty()
	}
	var err error
	switch r := r.(type) {
	case *Begun:
		err = s.begun(r)
	case *Journal:
		err = s.journal(r)
	case *Done:
		err = s.done(r)
	case *Over:
		err = s.over(r)
	case *Checkpoint:
		err = s.checkpoint(r)
	case *Forgotten:
		err = s.forgotten(r)
	case *Base:
		err = s.base(r)
	case *Delivered:
		err = s.delivered(r)
	case *Moved:
		err = s.moved(r)
	}
	if err == nil {
		s.records++
	}
	return err
}

// refused refuses a record about an execution that it does not follow from.
func refused(r Record, id rpcpacket.ID, why string) error {
	return fault.New(fault.BadRequest, r.Kind().String(), "%s: %s", id, why)
}

// open returns an execution that may still get entries or an outcome, a new one if it is
// not known.
func (s *State) open(r Record, id rpcpacket.ID) (*Execution, error) {
	e := s.executions[id]
	switch {
	case e == nil:
		e = &Execution{ID: id}
	case e.Done != nil:
		return nil, refused(r, id, "it is done")
	}
	return e, nil
}

// file keeps an execution, and raises the floor of the slot that its call has come in: nobody asks for the plain calls below any more.
func (s *State) file(e *Execution) {
	s.executions[e.ID] = e
	at, _, n := e.Caller()
	s.place(e)
	l := s.raise(Slot{at, n})
	for _, o := range s.Before(at, n) {
		s.forget(o)
	}
	if e.plain() && !slices.Contains(l.calls, e.ID) {
		l.calls = append(l.calls, e.ID)
	}
	s.weigh(e)
}

// place has At find an execution.
func (s *State) place(e *Execution) {
	if at, _, n := e.Caller(); at.Slot != 0 && e.ID.Derived() {
		s.attempts[attempt{at, n}] = e.ID
	}
}

// unplace is the opposite of place.
func (s *State) unplace(e *Execution) {
	if at, _, n := e.Caller(); s.attempts[attempt{at, n}] == e.ID {
		delete(s.attempts, attempt{at, n})
	}
}

// raise raises a slot's floor.
func (s *State) raise(to Slot) *slot {
	l := s.slots[to.Place]
	if l == nil {
		l = &slot{Slot: to}
		s.slots[to.Place] = l
		s.weight.Calls += slotSize
	}
	l.Floor = max(l.Floor, to.Floor)
	return l
}

// late reports whether a new call is refused.
func (s *State) late(e *Execution, at Place, n rpcpacket.Number) bool {
	_, known := s.executions[e.ID]
	return !known && n < s.Floor(at)
}

// forget notes that nobody asks for an execution's outcome any more. What is over goes.
func (s *State) forget(e *Execution) {
	e.Forgotten = true
	if at, incarnation, n := e.Caller(); at.Slot != 0 {
		if dead, _ := s.Dead(at.Caller); incarnation > dead {
			s.raise(Slot{at, n + 1})
		}
	}
	if e.Over {
		s.remove(e)
	}
	s.weigh(e)
}

func (s *State) remove(e *Execution) {
	delete(s.executions, e.ID)
	s.unplace(e)
	s.weight.Calls -= e.weight
	s.keep(e, 0)
	e.weight = 0
	at, _, _ := e.Caller()
	if l := s.slots[at]; l != nil && e.plain() {
		l.calls = slices.DeleteFunc(l.calls, func(id rpcpacket.ID) bool { return id == e.ID })
	}
}

func (s *State) begun(r *Begun) error {
	e, err := s.open(r, r.Execution)
	switch {
	case err != nil:
		return err
	case e.Checkpoint != nil:
		return refused(r, r.Execution, "it is a durable main")
	case r.Slot == 0:
		return refused(r, r.Execution, "its call has no slot")
	case e.Begun != nil && r.Attempt <= e.Begun.Attempt:
		return refused(r, r.Execution, "a later attempt has begun")
	case s.late(e, Place{r.Caller, r.Slot}, r.Number):
		return refused(r, r.Execution, "it lies below its slot's floor")
	}
	s.unplace(e)
	e.Begun = r
	s.file(e)
	return nil
}

// committed notes that memory machines have committed what a durable main had changed before its last
// checkpoint.
func (e *Execution) committed() {
	if e.Checkpoint != nil && len(e.Checkpoint.Owed.Machines) > 0 {
		p := *e.Checkpoint
		p.Owed.Machines, p.Owed.Run = nil, 0
		e.Checkpoint = &p
	}
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
	if len(sections) == 0 && len(r.Called) == 0 && len(r.Machines) == 0 {
		return refused(r, r.Execution, "there are no entries")
	}
	for _, section := range sections {
		if !section.Type.Journal() {
			return refused(r, r.Execution, section.Type.String()+" is no entry of a journal")
		}
	}
	e.Journal, e.Called = append(e.Journal, r.Entries...), append(e.Called, r.Called...)
	if e.Machines = union(e.Machines, r.Machines); len(e.Machines) > 0 {
		e.committed() // or the main could not change memory again
	}
	s.executions[e.ID] = e
	s.weigh(e)
	return nil
}

func (s *State) done(r *Done) error {
	e, err := s.open(r, r.Execution)
	switch {
	case err != nil:
		return err
	case e.Checkpoint != nil:
		return refused(r, r.Execution, "it is a durable main")
	case r.Slot == 0:
		return refused(r, r.Execution, "its call has no slot")
	case s.late(e, Place{r.Caller, r.Slot}, r.Number):
		return refused(r, r.Execution, "it lies below its slot's floor")
	}
	if err := s.serve(r); err != nil {
		return err
	}
	s.unplace(e)
	d := *r
	d.State = nil // it is in the service's
	e.Begun, e.Journal, e.Called, e.Machines, e.Done, e.Over = nil, nil, nil, nil, &d, r.Over
	s.file(e)
	if e.Over && e.Forgotten {
		s.remove(e)
	}
	return nil
}

// serve applies what a done says of its service's state.
func (s *State) serve(r *Done) error {
	sections, err := trailer.Parse(r.State)
	if err != nil {
		return err
	}
	if len(sections) == 0 {
		return nil
	}
	v, _ := s.Service(r.Service)
	v.Service = r.Service
	if why := v.change(sections); why != "" {
		return refused(r, r.Execution, why)
	}
	if was := s.services[r.Service]; was != nil {
		s.weight.States -= was.weigh()
	}
	s.weight.States += v.weigh()
	s.services[r.Service] = &v
	return nil
}

// change applies a change of the state. It returns why it is none, "" if it is one.
func (v *Service) change(sections []trailer.Section) (why string) {
	for _, section := range sections {
		switch section.Type {
		case trailer.Snapshot:
			v.HasSnapshot, v.Snapshot, v.Deltas, v.size = true, section.Data, nil, len(section.Data)
		case trailer.Delta:
			v.Deltas = append(v.Deltas, section.Data)
			v.size += len(section.Data)
		default:
			return section.Type.String() + " is no change of a state"
		}
	}
	return ""
}

func (s *State) delivered(r *Delivered) error {
	o, i, err := s.owedOneway(r, r.Execution, r.Oneway)
	if err != nil {
		return err
	}
	o.Called = append(slices.Clip(o.Called), Call{ID: r.Oneway, Node: o.Oneways[i].Node})
	o.Oneways = slices.Delete(slices.Clone(o.Oneways), i, i+1)
	s.owes(r.Execution, o)
	return nil
}

func (s *State) moved(r *Moved) error {
	o, i, err := s.owedOneway(r, r.Execution, r.Oneway)
	if err != nil {
		return err
	}
	o.Oneways = slices.Clone(o.Oneways)
	o.Oneways[i].Node = r.Node
	s.owes(r.Execution, o)
	return nil
}

// owedOneway finds a one-way among what its execution owes.
func (s *State) owedOneway(r Record, id, oneway rpcpacket.ID) (o Owed, i int, err error) {
	if e := s.executions[id]; e != nil {
		o = e.Owed()
	}
	if i = slices.IndexFunc(o.Oneways, func(w Oneway) bool { return w.ID == oneway }); i < 0 {
		return o, i, refused(r, oneway, "it is not owed")
	}
	return o, i, nil
}

// owes changes what an execution owes, which owes something.
func (s *State) owes(id rpcpacket.ID, o Owed) {
	e := s.executions[id]
	if e.Done != nil {
		d := *e.Done
		d.Owed = o
		e.Done = &d
	} else {
		p := *e.Checkpoint
		p.Owed = o
		e.Checkpoint = &p
	}
	s.weigh(e)
}

func (s *State) over(r *Over) error {
	e := s.executions[r.Execution]
	if e == nil || e.Over || e.Done == nil && e.Checkpoint == nil {
		return refused(r, r.Execution, "nothing is owed")
	}
	e.Over = true
	switch {
	case e.Forgotten:
		s.remove(e)
	case e.Done != nil:
		s.owes(e.ID, Owed{Called: e.Done.Owed.Called})
	default:
		s.owes(e.ID, Owed{})
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
	case e.Checkpoint != nil && r.Index <= e.Checkpoint.Index:
		return refused(r, r.Main, "a later checkpoint is there")
	}
	p := *r
	if e.Checkpoint != nil && !e.Over {
		p.Owed.Oneways = slices.Concat(e.Checkpoint.Owed.Oneways, p.Owed.Oneways) // it says all else itself
	}
	e.Checkpoint, e.Journal, e.Called, e.Machines, e.Over = &p, nil, nil, nil, false
	s.executions[e.ID] = e
	s.weigh(e)
	return nil
}

// union is all machines of both, in order; nil for none.
func union(a, b []uint8) []uint8 {
	if len(a)+len(b) == 0 {
		return nil
	}
	all := slices.Concat(a, b)
	slices.Sort(all)
	return slices.Compact(all)
}

func (s *State) forgotten(r *Forgotten) error {
	for i, id := range r.Executions {
		if e := s.executions[id]; e == nil || e.Forgotten || slices.Contains(r.Executions[:i], id) {
			return refused(r, id, "it is not known")
		}
	}
	for _, id := range r.Executions {
		s.forget(s.executions[id])
	}
	for _, l := range r.Slots {
		s.raise(l)
		for _, e := range s.Before(l.Place, l.Floor) {
			s.forget(e)
		}
	}
	for _, k := range r.Callers {
		s.bury(k)
	}
	return nil
}

// bury notes that incarnations of a caller are dead: nobody asks for their plain calls, and, if there will be no other, for
// none of its calls.
func (s *State) bury(k Caller) {
	if was := s.callers[k.Node]; was != nil {
		k.Dead, k.Gone = max(k.Dead, was.Dead), k.Gone || was.Gone
	}
	if s.callers[k.Node] == nil {
		s.weight.Calls += callerSize
	}
	s.callers[k.Node] = &k
	for _, e := range s.Executions() {
		if at, _, _ := e.Caller(); at.Caller == k.Node && !e.Forgotten && s.Buried(e) {
			s.forget(e)
		}
	}
	slots := len(s.slots)
	maps.DeleteFunc(s.slots, func(at Place, l *slot) bool {
		return at.Caller == k.Node && (k.Gone || l.Floor.Incarnation() <= k.Dead)
	})
	s.weight.Calls -= slotSize * (slots - len(s.slots))
}

// base replaces the state. It must stand for all records before it, as far as those are
// there.
func (s *State) base(r *Base) error {
	if s.records > 0 && s.records != r.Records {
		return fault.New(fault.BadRequest, "base", "it stands for %d records, and there are %d", r.Records, s.records)
	}
	next := State{records: r.Records}
	next.empty()
	for _, l := range r.Slots {
		next.slots[l.Place] = &slot{Slot: l}
	}
	for i := range r.Callers {
		k := r.Callers[i]
		next.callers[k.Node] = &k
	}
	for i := range r.Executions {
		e := r.Executions[i]
		if err := e.check(); err != nil {
			return err
		}
		next.executions[e.ID] = &e
		next.place(&e)
		if at, _, _ := e.Caller(); e.plain() && next.slots[at] != nil {
			next.slots[at].calls = append(next.slots[at].calls, e.ID)
		}
	}
	for i := range r.Services {
		v := r.Services[i]
		next.services[v.Service] = &v
	}
	sorted := slices.IsSortedFunc(r.Executions, func(a, b Execution) int { return a.ID.Compare(b.ID) }) &&
		slices.IsSortedFunc(r.Services, func(a, b Service) int { return cmp.Compare(a.Service, b.Service) }) &&
		slices.IsSortedFunc(r.Slots, func(a, b Slot) int { return a.Compare(b.Place) }) &&
		slices.IsSortedFunc(r.Callers, func(a, b Caller) int { return compareAddresses(a.Node, b.Node) })
	if !sorted || len(next.executions) != len(r.Executions) || len(next.services) != len(r.Services) ||
		len(next.slots) != len(r.Slots) || len(next.callers) != len(r.Callers) {
		return fault.New(fault.BadRequest, "base", "its entries are out of order, or there twice")
	}
	next.weighAll()
	*s = next
	return nil
}

// check refuses an execution that no records add up to.
func (e *Execution) check() error {
	switch {
	case e.Done != nil && (e.Begun != nil || e.Checkpoint != nil || len(e.Journal) > 0 || len(e.Called) > 0 || len(e.Machines) > 0 || e.Done.Execution != e.ID),
		e.Checkpoint != nil && (e.Begun != nil || e.Checkpoint.Main != e.ID),
		e.Begun != nil && e.Begun.Execution != e.ID,
		e.Over && (e.Done == nil && e.Checkpoint == nil || e.Forgotten),
		e.Done == nil && e.Begun == nil && e.Checkpoint == nil && len(e.Journal) == 0 && len(e.Called) == 0 && len(e.Machines) == 0:
		return fault.New(fault.BadRequest, "base", "%s: no records add up to this", e.ID)
	}
	return nil
}

// Keeps reports whether anything is known of any execution.
func (s *State) Keeps() bool { return len(s.executions) > 0 }
