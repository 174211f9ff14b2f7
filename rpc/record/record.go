package record

import (
	"fmt"

	"github.com/bifrost-rack/bifrost/internal/wirefmt"
	"github.com/bifrost-rack/bifrost/rpc/packet"
)

// Kind says what a record is: its first byte.
type Kind uint8

// The kinds of record.
const (
	KindBegun      Kind = 1
	KindJournal    Kind = 2
	KindDone       Kind = 3
	KindAmended    Kind = 4
	KindOver       Kind = 5
	KindCheckpoint Kind = 6
	KindForgotten  Kind = 7
	KindBase       Kind = 8
)

var kinds = [...]struct {
	name, doc string
	make      func() Record
}{
	KindBegun: {"begun", "a call runs here. It is settled before the execution's first packet that others see and rollback does not undo", func() Record { return new(Begun) }},
	KindJournal: {"journal", "what an execution got from outside of itself. It is settled before the next child call, effect or end that may depend on it",
		func() Record { return new(Journal) }},
	KindDone: {"done", "the commit: the outcome of an execution, what it made of its service's state, and what is owed because of it. Nobody learns of the outcome before it is settled",
		func() Record { return new(Done) }},
	KindAmended:    {"amended", "another answer in the place of one that cannot be given, since the callee did not own a result", func() Record { return new(Amended) }},
	KindOver:       {"over", "all that a done owed has been acknowledged", func() Record { return new(Over) }},
	KindCheckpoint: {"checkpoint", "the commit of a durable main, up to here", func() Record { return new(Checkpoint) }},
	KindForgotten:  {"forgotten", "nobody will ask for these outcomes any more", func() Record { return new(Forgotten) }},
	KindBase:       {"base", "all records before it, folded: the ledger may be cut here", func() Record { return new(Base) }},
}

// String returns the kind's name.
func (k Kind) String() string {
	if k >= KindBegun && int(k) < len(kinds) {
		return kinds[k].name
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// Record is one record of a ledger.
type Record interface {
	// Kind says which record it is.
	Kind() Kind
	visit(c *coder)
}

// Begun says that a call runs here.
type Begun struct {
	Execution packet.ID
	// Caller is the address of the node that called, and Incarnation the caller's.
	Caller      [16]byte
	Incarnation uint32
	// Attempt counts the runs before this one.
	Attempt uint32
	// Call is the CALL: header, pointers and the whole message.
	Call []byte
}

// Kind implements Record.
func (*Begun) Kind() Kind { return KindBegun }

func (r *Begun) visit(c *coder) {
	array(c, "execution", &r.Execution, "the call's id")
	array(c, "caller", &r.Caller, "address of the node that called")
	num(c, "incarnation", &r.Incarnation, "the caller's")
	num(c, "attempt", &r.Attempt, "runs before this one")
	blob(c, "call", &r.Call, "the CALL: header, pointers and the whole message")
}

// Journal is what an execution got from outside of itself.
type Journal struct {
	Execution packet.ID
	// Entries are the sections of a trailer (package trailer).
	Entries []byte
}

// Kind implements Record.
func (*Journal) Kind() Kind { return KindJournal }

func (r *Journal) visit(c *coder) {
	array(c, "execution", &r.Execution, "id of the call, or of the durable main")
	blob(c, "entries", &r.Entries, "sections as in a commit trailer: time, randomness, effects, outcomes, order of completions, policies")
}

// Owed is what follows from a commit and has to be acknowledged before it is over.
type Owed struct {
	// Machines are the memory machines that have undo of the execution, to be committed.
	Machines []uint8
	// Oneways are the one-ways that leave now.
	Oneways []packet.ID
	// Frees are the regions that go now.
	Frees [][16]byte
	// Called are the calls that any run of the execution has made, whose answers are to be
	// forgotten when it is forgotten itself.
	Called []packet.ID
}

func (o *Owed) visit(c *coder) {
	list(c, "machines", &o.Machines, "memory machines with undo to commit", func(c *coder, m *uint8) { num(c, "machine", m, "machine id") })
	ids(c, "oneways", &o.Oneways, "one-ways that leave now")
	list(c, "frees", &o.Frees, "regions that go now", func(c *coder, p *[16]byte) { array(c, "region", p, "global pointer") })
	ids(c, "called", &o.Called, "calls that any run of the execution has made")
}

// Done is the commit of an execution.
type Done struct {
	Execution packet.ID
	Caller    [16]byte
	// Arguments is the hash of the call's arguments: a call with the same id and other
	// arguments is not the same.
	Arguments uint64
	// Answer is the answer: header, pointers and the whole message.
	Answer []byte
	// Service is the hash of the service, and State what has become of its state: sections
	// of a trailer, nothing if it has none or has not changed. Order is the call's place
	// among those of a service with state, 0 for others.
	Service uint64
	State   []byte
	Order   uint64
	Owed    Owed
}

// Kind implements Record.
func (*Done) Kind() Kind { return KindDone }

func (r *Done) visit(c *coder) {
	array(c, "execution", &r.Execution, "the call's id")
	array(c, "caller", &r.Caller, "address of the node that called")
	num(c, "arguments", &r.Arguments, "hash of the call's arguments")
	blob(c, "answer", &r.Answer, "the answer: header, pointers and the whole message")
	num(c, "service", &r.Service, "hash of the service")
	blob(c, "state", &r.State, "what has become of the service's state: a snapshot or a delta, as in a commit trailer")
	num(c, "order", &r.Order, "place among the calls of a service with state; 0 for others")
	r.Owed.visit(c)
}

// Amended is another answer in the place of one that cannot be given.
type Amended struct {
	Execution packet.ID
	Answer    []byte
}

// Kind implements Record.
func (*Amended) Kind() Kind { return KindAmended }

func (r *Amended) visit(c *coder) {
	array(c, "execution", &r.Execution, "the call's id")
	blob(c, "answer", &r.Answer, "the exception")
}

// Over says that all that a commit owed has been acknowledged.
type Over struct {
	Execution packet.ID
}

// Kind implements Record.
func (*Over) Kind() Kind { return KindOver }

func (r *Over) visit(c *coder) {
	array(c, "execution", &r.Execution, "id of the call, or of the durable main")
}

// Checkpoint is the commit of a durable main, up to here.
type Checkpoint struct {
	Main packet.ID
	// Index is the checkpoint's place among the main's operations.
	Index uint32
	// State is what the main goes on from. Ended says that it has come to its end.
	State []byte
	Ended bool
	Owed  Owed
}

// Kind implements Record.
func (*Checkpoint) Kind() Kind { return KindCheckpoint }

func (r *Checkpoint) visit(c *coder) {
	array(c, "main", &r.Main, "id of the durable main")
	num(c, "index", &r.Index, "the checkpoint's place among the main's operations")
	blob(c, "state", &r.State, "what the main goes on from")
	flag(c, "ended", &r.Ended, "1: the main has come to its end")
	r.Owed.visit(c)
}

// Forgotten names outcomes that nobody will ask for any more.
type Forgotten struct {
	Executions []packet.ID
	// Floors are those of sessions: all their calls below are settled.
	Floors []Floor
}

// Floor is a session's: all calls of the session with lower numbers are settled, and
// refused for ever.
type Floor struct {
	Session, Floor uint64
}

// Kind implements Record.
func (*Forgotten) Kind() Kind { return KindForgotten }

func (r *Forgotten) visit(c *coder) {
	ids(c, "executions", &r.Executions, "calls whose outcomes nobody will ask for")
	list(c, "floors", &r.Floors, "sessions of plain clients", func(c *coder, f *Floor) { f.visit(c) })
}

func (f *Floor) visit(c *coder) {
	num(c, "session", &f.Session, "session, the first half of its calls' ids")
	num(c, "floor", &f.Floor, "all the session's calls below are settled, and refused for ever")
}

// Append appends a record's wire form to b.
func Append(b []byte, r Record) []byte {
	c := coder{mode: writing, b: append(b, byte(r.Kind()))}
	r.visit(&c)
	return c.b
}

// Parse reads a record, which aliases b. It refuses what is none, or is followed by
// something, with an error that wraps wirefmt.ErrFormat.
func Parse(b []byte) (Record, error) {
	if len(b) == 0 {
		return nil, wirefmt.Errorf("ledger record: empty")
	}
	k := Kind(b[0])
	if k < KindBegun || int(k) >= len(kinds) {
		return nil, wirefmt.Errorf("ledger record: %s", k)
	}
	r := kinds[k].make()
	c := coder{mode: reading, b: b[1:]}
	r.visit(&c)
	if c.err == nil && len(c.b) > 0 {
		c.fail("ledger record: %d bytes behind a %s", len(c.b), k)
	}
	if c.err != nil {
		return nil, c.err
	}
	return r, nil
}

// Description is what the documentation says of a kind of record.
type Description struct {
	Kind   Kind
	Doc    string
	Fields []Field
}

// Describe lists the kinds of record with their fields, in the order in which they are
// written.
func Describe() (all []Description) {
	for k := KindBegun; int(k) < len(kinds); k++ {
		c := coder{mode: describing}
		kinds[k].make().visit(&c)
		all = append(all, Description{Kind: k, Doc: kinds[k].doc, Fields: c.fields})
	}
	return all
}
