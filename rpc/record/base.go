package record

import "github.com/bifrost-rack/bifrost/rpc/rpcpacket"

// Base is all records before it, folded.
type Base struct {
	// Records is how many records it stands for: its place in the ledger, from 0.
	Records    uint64
	Executions []Execution
	Services   []Service
	Slots      []Slot
	Callers    []Caller
}

// Execution is what a ledger knows of an execution: of one that runs what it needs to be
// run again, of one that is done its outcome.
type Execution struct {
	ID rpcpacket.ID
	// Begun is nil if it is not written that the execution has begun, or if it is done.
	Begun *Begun
	// Journal are the entries of all runs so far, nothing if it is done; of a durable main
	// those since its last checkpoint.
	Journal []byte
	// Done is the outcome, nil while there is none and for a durable main.
	Done *Done
	// Checkpoint is a durable main's last one.
	Checkpoint *Checkpoint
	// Over says that nothing is owed because of Done or Checkpoint.
	Over bool
	// Called are the calls of all runs so far, nothing if it is done.
	Called []Call
	// Machines are the memory machines that all runs so far may have written to, nothing if it
	// is done.
	Machines []uint8
	// Forgotten says that nobody asks for its outcome any more.
	Forgotten bool

	weight int // as it counts in a State's Weight: of what calls take
	kept   int // and of states
}

// Main reports whether it is a durable main, and no call's.
func (e *Execution) Main() bool { return e.Begun == nil && e.Done == nil }

// Owed is what the execution owes.
func (e *Execution) Owed() Owed {
	switch {
	case e.Over:
	case e.Done != nil:
		return e.Done.Owed
	case e.Checkpoint != nil:
		return e.Checkpoint.Owed
	}
	return Owed{}
}

// Caller returns who has called, from which incarnation, in which slot and under which number; the slot is 0 if it is no call's.
func (e *Execution) Caller() (at Place, incarnation uint32, n rpcpacket.Number) {
	switch {
	case e.Done != nil:
		return Place{e.Done.Caller, e.Done.Slot}, e.Done.Incarnation, e.Done.Number
	case e.Begun != nil:
		return Place{e.Begun.Caller, e.Begun.Slot}, e.Begun.Incarnation, e.Begun.Number
	}
	return Place{}, 0, 0
}

// plain reports whether it is that of a plain call, for which nobody asks any more when the next call of its slot comes.
func (e *Execution) plain() bool {
	at, _, _ := e.Caller()
	return at.Slot != 0 && !e.ID.Derived()
}

// Service is the state of a service.
type Service struct {
	// Service is the hash of the service.
	Service uint64
	// Snapshot is its last snapshot, if HasSnapshot: else the service begins with what it
	// has. Deltas are what has changed since, in order.
	HasSnapshot bool
	Snapshot    []byte
	Deltas      [][]byte

	size int // bytes of both
}

// Kind implements Record.
func (*Base) Kind() Kind { return KindBase }

func (r *Base) visit(c *coder) {
	num(c, "records", &r.Records, "how many records it stands for")
	list(c, "executions", &r.Executions, "executions that run, that owe something, or whose outcome may be asked for, in the order of their ids",
		func(c *coder, e *Execution) { e.visit(c) })
	list(c, "services", &r.Services, "services with state, in the order of their hashes", func(c *coder, s *Service) { s.visit(c) })
	list(c, "slots", &r.Slots, "call slots, in their order", func(c *coder, l *Slot) { l.visit(c) })
	list(c, "callers", &r.Callers, "callers of which some incarnations are dead, in the order of their addresses", func(c *coder, k *Caller) { k.visit(c) })
}

func (e *Execution) visit(c *coder) {
	array(c, "id", &e.ID, "id of the call, or of the durable main")
	optional(c, "begun", &e.Begun, "1: a begun follows, without its kind", func(b *Begun) { b.visit(c) })
	blob(c, "journal", &e.Journal, "entries of all runs so far; of a durable main those since its last checkpoint")
	optional(c, "done", &e.Done, "1: a done follows, without its kind", func(d *Done) { d.visit(c) })
	optional(c, "checkpoint", &e.Checkpoint, "1: a checkpoint follows, without its kind", func(p *Checkpoint) { p.visit(c) })
	flag(c, "over", &e.Over, "1: nothing is owed")
	calls(c, "called", &e.Called, "calls of all runs so far, nothing if it is done")
	machines(c, &e.Machines, "memory machines that all runs so far may have written to, nothing if it is done")
	flag(c, "forgotten", &e.Forgotten, "1: nobody asks for its outcome any more")
}

func (s *Service) visit(c *coder) {
	num(c, "service", &s.Service, "hash of the service")
	flag(c, "has_snapshot", &s.HasSnapshot, "1: the snapshot counts; 0: the service begins with what it has")
	blob(c, "snapshot", &s.Snapshot, "the last snapshot")
	list(c, "deltas", &s.Deltas, "what has changed since, in order", func(c *coder, d *[]byte) { blob(c, "delta", d, "one change") })
}

// optional visits what may not be there: a flag, and the thing if the flag is 1. The
// fields of the thing are described where it is a record of its own.
func optional[T any](c *coder, name string, v **T, doc string, visit func(*T)) {
	there := *v != nil
	flag(c, name, &there, doc)
	switch {
	case c.mode == describing:
	case !there || c.err != nil:
		*v = nil
	default:
		if *v == nil {
			*v = new(T)
		}
		visit(*v)
	}
}
