package record

import "github.com/bifrost-rack/bifrost/dsm/dsmpacket"

// A base must always fit into the ledger. So a State knows at each moment how many bytes its base would have at most, with those
// of the small records that will follow from what is in it: that somebody has acknowledged or forgotten something needs no room
// that was not kept. Writing such a record makes the State lighter by more than the record has.

// Weight is an upper bound of how many bytes of a ledger a base takes, and with it what follows from it.
type Weight struct {
	// Calls is that of executions, call slots and callers, States that of the states of services and durable mains.
	Calls, States int
}

// Upper bounds of parts of records, in bytes: numbers count as ten.
const (
	idSize       = 16
	numberSize   = 10
	small        = 2*numberSize + dsmpacket.ChunkCost // around a record that is in a chunk of its own
	executionTop = idSize + 6*numberSize
	begunTop     = idSize + 16 + 9*numberSize
	doneTop      = idSize + 16 + 15*numberSize
	commitTop    = 2*idSize + 14*numberSize // of a checkpoint
	placeSize    = 5 + numberSize + 2       // of an attempt
	callSize     = idSize + 16 + 2*5 + numberSize + 4
	slotSize     = 16 + 2*numberSize
	callerSize   = 16 + 2*numberSize
	serviceTop   = 4 * numberSize
	machineSize  = numberSize
	overSize     = small + idSize
	forgottenTop = small + idSize + slotSize + 4*numberSize
	onewayTop    = idSize + 16 + 5*numberSize + small + 2*idSize + callSize // with delivered, and the call that it is then
)

// Weight is that of the state. It is kept, not computed.
func (s *State) Weight() Weight { return s.weight }

// Weight is the execution's part of Weight.Calls, in bytes.
func (e *Execution) Weight() int { return e.weight }

// weigh counts an execution anew that has changed.
func (s *State) weigh(e *Execution) {
	if s.executions[e.ID] != e {
		return
	}
	w := e.weigh()
	s.weight.Calls += w - e.weight
	e.weight = w
	s.keep(e, e.Size())
}

// keep counts so many bytes of a durable main's state, instead of those that were counted before.
func (s *State) keep(e *Execution, bytes int) {
	s.weight.States += bytes - e.kept
	s.kept += bytes - e.kept
	e.kept = bytes
}

// Size is how many bytes of state a durable main has in its last checkpoint; 0 without one.
func (e *Execution) Size() int {
	if e == nil || e.Checkpoint == nil {
		return 0
	}
	return len(e.Checkpoint.State)
}

func (e *Execution) weigh() int {
	n := executionTop + slotSize + len(e.Journal) + callSize*len(e.Called) + machineSize*len(e.Machines)
	if e.Begun != nil {
		n += begunTop + len(e.Begun.Call)
	}
	if e.Done != nil {
		n += doneTop + len(e.Done.Answer) + e.Done.Owed.weigh()
	}
	if e.Checkpoint != nil {
		n += commitTop + e.Checkpoint.Owed.weigh() + 16*len(e.Checkpoint.Has)
	}
	if !e.Over {
		n += overSize
	}
	if !e.Forgotten {
		n += forgottenTop
	}
	return n
}

func (o *Owed) weigh() int {
	n := machineSize*len(o.Machines) + 16*(len(o.Frees)+len(o.Rest)) + callSize*len(o.Called)
	for i := range o.Oneways {
		w := &o.Oneways[i]
		n += onewayTop + len(w.Service) + len(w.Method) + len(w.Message)
	}
	return n
}

// Size is how many bytes the service's state has: its last snapshot, and what has changed since.
func (v *Service) Size() int { return v.size }

func (v *Service) weigh() int { return serviceTop + v.size + numberSize*len(v.Deltas) }

// Sizes is how many bytes the states of all services and durable mains have.
func (s *State) Sizes() (bytes int) {
	for _, v := range s.services {
		bytes += v.size
	}
	return bytes + s.kept
}

// weighAll counts everything anew.
func (s *State) weighAll() {
	s.weight, s.kept = Weight{Calls: 5*numberSize + slotSize*len(s.slots) + callerSize*len(s.callers)}, 0
	for _, e := range s.executions {
		e.weight, e.kept = e.weigh(), 0
		s.weight.Calls += e.weight
		s.keep(e, e.Size())
	}
	for _, v := range s.services {
		v.size = len(v.Snapshot)
		for _, d := range v.Deltas {
			v.size += len(d)
		}
		s.weight.States += v.weigh()
	}
}

// Unwritten notes that so many records, the last ones that were applied, are not in the ledger: the base that comes next stands
// for them.
func (s *State) Unwritten(records int) { s.records -= uint64(records) } //nolint:gosec // not negative
