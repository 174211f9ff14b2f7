package record

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"

	"github.com/bifrost-rack/bifrost/p4switch/shared/wirefmt"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Kind says what a record is: its first byte.
type Kind uint8

// The kinds of record.
const (
	KindBegun      Kind = 1
	KindJournal    Kind = 2
	KindDone       Kind = 3
	KindOver       Kind = 4
	KindCheckpoint Kind = 5
	KindForgotten  Kind = 6
	KindBase       Kind = 7
	KindDelivered  Kind = 8
	KindMoved      Kind = 9
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
	KindOver:       {"over", "all that a done owed has been acknowledged", func() Record { return new(Over) }},
	KindCheckpoint: {"checkpoint", "the commit of a durable main, up to here", func() Record { return new(Checkpoint) }},
	KindForgotten:  {"forgotten", "nobody will ask for these outcomes any more, and late copies of these calls are refused", func() Record { return new(Forgotten) }},
	KindBase:       {"base", "all records before it, folded: the ledger may be cut here", func() Record { return new(Base) }},
	KindDelivered: {"delivered", "a one-way that is owed is acknowledged. It is settled before its receiver is told to forget it",
		func() Record { return new(Delivered) }},
	KindMoved: {"moved", "the node that a one-way was for has refused it for good: it goes to another one. It is settled before that gets it",
		func() Record { return new(Moved) }},
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
	Execution rpcpacket.ID
	// Caller is the address of the node that called, and Incarnation the caller's.
	Caller      [16]byte
	Incarnation uint32
	// Slot and Number are the call's place among its caller's.
	Slot   rpcpacket.Slot
	Number rpcpacket.Number
	// Arguments is as in Done.
	Arguments uint64
	// Attempt counts the runs before this one.
	Attempt uint32
	// Run is the callee's incarnation that runs it. Failures counts the runs before this one with which the
	// callee's program has ended.
	Run, Failures uint32
	// Call is the CALL: header, pointers and the whole message.
	Call []byte
}

// Kind implements Record.
func (*Begun) Kind() Kind { return KindBegun }

func (r *Begun) visit(c *coder) {
	array(c, "execution", &r.Execution, "the call's id")
	array(c, "caller", &r.Caller, "address of the node that called")
	num(c, "incarnation", &r.Incarnation, "the caller's")
	num(c, "slot", &r.Slot, "the call's slot")
	num(c, "number", &r.Number, "its number there")
	num(c, "arguments", &r.Arguments, "hash of the call's arguments; the caller's, if it exceeds a packet")
	num(c, "attempt", &r.Attempt, "runs before this one")
	num(c, "run", &r.Run, "the callee's incarnation that runs it")
	num(c, "failures", &r.Failures, "of the runs before this one, those with which the callee's program has ended")
	blob(c, "call", &r.Call, "the CALL: header, pointers and the whole message")
}

// Journal is what an execution got from outside of itself.
type Journal struct {
	Execution rpcpacket.ID
	// Entries are sections (package trailer).
	Entries []byte
	// Called are the calls that it is about to make, and to which nodes.
	Called []Call
	// Machines are the memory machines that it is about to write to: the next incarnation
	// takes that back before it does anything else.
	Machines []uint8
}

// Call is a call that an execution makes straight to a node.
type Call struct {
	ID rpcpacket.ID
	// Node is the address that each copy of the call goes to, whoever sends it. It is zero if the call's policy is none and nobody asks about it.
	Node [16]byte
	// Incarnation is that of the node to which a call of policy none is bound; 0 if the policy is another one.
	Incarnation uint32
	// Slot and Number are the call's place in its last attempt, which has so many Slots. The next incarnation asks about the attempt.
	// They are 0 if they are not known.
	Slot   rpcpacket.Slot
	Number rpcpacket.Number
	Slots  uint8
	// Lends says that the call has pointers.
	Lends bool
	// GivenUp says that the execution has ended without the call's answer: what the call has returned goes.
	GivenUp bool
}

// Direct reports whether the call goes to a node that its copies go to, too, and that is to forget the call.
func (k Call) Direct() bool { return k.Node != [16]byte{} && k.Incarnation == 0 }

func machines(c *coder, v *[]uint8, doc string) {
	list(c, "machines", v, doc, func(c *coder, m *uint8) { num(c, "machine", m, "machine id") })
}

func calls(c *coder, name string, v *[]Call, doc string) {
	list(c, name, v, doc, func(c *coder, k *Call) {
		array(c, "id", &k.ID, "call id")
		array(c, "node", &k.Node, "address of the node that is called; 0 if the policy is none and nobody asks about the call")
		num(c, "incarnation", &k.Incarnation, "the callee's, to which a call of policy none is bound; else 0")
		num(c, "slot", &k.Slot, "first call slot of its last attempt; 0 if it is not known")
		num(c, "number", &k.Number, "the attempt's number there")
		num(c, "slots", &k.Slots, "how many slots the attempt has")
		flag(c, "lends", &k.Lends, "1: the call has pointers")
		flag(c, "givenUp", &k.GivenUp, "1: the execution has ended without the call's answer")
	})
}

// Kind implements Record.
func (*Journal) Kind() Kind { return KindJournal }

func (r *Journal) visit(c *coder) {
	array(c, "execution", &r.Execution, "id of the call, or of the durable main")
	blob(c, "entries", &r.Entries, "sections ([wire.md](wire.md) has the types): time, randomness, effects, outcomes, order of completions, policies")
	calls(c, "called", &r.Called, "calls that are about to be made")
	machines(c, &r.Machines, "memory machines that are about to be written to")
}

// Owed is what follows from a commit and has to be acknowledged before it is over.
type Owed struct {
	// Machines are the memory machines that have undo of the execution, to be committed, and
	// Run is the incarnation that has made the changes.
	Machines []uint8
	Run      uint32
	// Oneways are the one-ways that leave now, in their order.
	Oneways []Oneway
	// Frees are the regions that go now, each when nothing lends it any more: those that the execution has freed, and those that nobody can know any more.
	Frees [][16]byte
	// Rest are regions that the answer has pointers to. They go when nobody asks for it any more, but for those that it has handed over.
	Rest [][16]byte
	// Called are the calls that any run of the execution has made, whose answers are to be
	// forgotten when it is forgotten itself.
	Called []Call
}

// Hands reports whether one-ways hand regions over.
func (o *Owed) Hands() bool {
	return slices.ContainsFunc(o.Oneways, func(w Oneway) bool { return w.Hands() })
}

// Nothing reports whether nothing is owed.
func (o *Owed) Nothing() bool {
	return len(o.Machines)+len(o.Oneways)+len(o.Called)+len(o.Frees)+len(o.Rest) == 0
}

// Oneway is a one-way that leaves when the execution that sends it is done, or has made a checkpoint.
type Oneway struct {
	ID rpcpacket.ID
	// Place is that of the commit among those that the node has made: one-ways to one node leave in
	// the order of the commits.
	Place uint64
	// Node is the address that it goes to. Service and Method are names, to choose another node.
	Node            [16]byte
	Service, Method []byte
	// Message is the ONEWAY: header, pointers and the whole message.
	Message []byte
}

// Hands reports whether the one-way has pointers: it hands regions over.
func (w *Oneway) Hands() bool {
	m, err := rpcpacket.Parse(w.Message)
	return err == nil && len(m.Lists) > 0
}

func (w *Oneway) visit(c *coder) {
	array(c, "id", &w.ID, "call id")
	num(c, "place", &w.Place, "place of the commit among all with one-ways that the node has made")
	array(c, "node", &w.Node, "address of the node that it goes to")
	blob(c, "service", &w.Service, "name of the service")
	blob(c, "method", &w.Method, "name of the method")
	blob(c, "message", &w.Message, "the ONEWAY: header, pointers and the whole message")
}

func pointers(c *coder, name string, v *[][16]byte, doc string) {
	list(c, name, v, doc, func(c *coder, p *[16]byte) { array(c, "region", p, "global pointer") })
}

func (o *Owed) visit(c *coder) {
	machines(c, &o.Machines, "memory machines with undo to commit")
	num(c, "run", &o.Run, "the incarnation that has made the changes there")
	list(c, "oneways", &o.Oneways, "one-ways that leave now", func(c *coder, w *Oneway) { w.visit(c) })
	pointers(c, "frees", &o.Frees, "regions that go now")
	pointers(c, "rest", &o.Rest, "regions that go when nobody asks for the answer any more, but for those that it has handed over")
	calls(c, "called", &o.Called, "calls that any run of the execution has made")
}

// Done is the commit of an execution.
type Done struct {
	Execution rpcpacket.ID
	Caller    [16]byte
	// Incarnation is the caller's, Slot and Number are as in Begun.
	Incarnation uint32
	Slot        rpcpacket.Slot
	Number      rpcpacket.Number
	// Arguments is the hash of the call's arguments: a call with the same id and other
	// arguments is not the same.
	Arguments uint64
	// Answer is the answer: header, pointers and the whole message.
	Answer []byte
	// Service is the hash of the service, and State what has become of its state: sections
	// (package trailer), nothing if it has none or has not changed.
	Service uint64
	State   []byte
	Owed    Owed
	// Over says that nothing is owed: no Over follows.
	Over bool
}

// Kind implements Record.
func (*Done) Kind() Kind { return KindDone }

func (r *Done) visit(c *coder) {
	array(c, "execution", &r.Execution, "the call's id")
	array(c, "caller", &r.Caller, "address of the node that called")
	num(c, "incarnation", &r.Incarnation, "the caller's")
	num(c, "slot", &r.Slot, "the call's slot")
	num(c, "number", &r.Number, "its number there")
	num(c, "arguments", &r.Arguments, "hash of the call's arguments")
	blob(c, "answer", &r.Answer, "the answer: header, pointers and the whole message")
	num(c, "service", &r.Service, "hash of the service")
	blob(c, "state", &r.State, "what has become of the service's state: a section, snapshot or delta")
	r.Owed.visit(c)
	flag(c, "over", &r.Over, "1: nothing is owed, and no over follows")
}

// Delivered says that a one-way is acknowledged: its receiver is to forget it.
type Delivered struct {
	Execution rpcpacket.ID
	Oneway    rpcpacket.ID
}

// Kind implements Record.
func (*Delivered) Kind() Kind { return KindDelivered }

func (r *Delivered) visit(c *coder) {
	array(c, "execution", &r.Execution, "the id of the call, or of the durable main, that has sent it")
	array(c, "oneway", &r.Oneway, "its own id")
}

// Moved says that a one-way goes to another node.
type Moved struct {
	Execution rpcpacket.ID
	Oneway    rpcpacket.ID
	Node      [16]byte
}

// Kind implements Record.
func (*Moved) Kind() Kind { return KindMoved }

func (r *Moved) visit(c *coder) {
	array(c, "execution", &r.Execution, "the id of the call, or of the durable main, that owes it")
	array(c, "oneway", &r.Oneway, "its own id")
	array(c, "node", &r.Node, "address of the node that it goes to now")
}

// Over says that all that a commit owed has been acknowledged.
type Over struct {
	Execution rpcpacket.ID
}

// Kind implements Record.
func (*Over) Kind() Kind { return KindOver }

func (r *Over) visit(c *coder) {
	array(c, "execution", &r.Execution, "id of the call, or of the durable main")
}

// Checkpoint is the commit of a durable main, up to here. What the main journalled before is
// needed no more.
type Checkpoint struct {
	Main rpcpacket.ID
	// Index is the checkpoint's place among the main's operations.
	Index uint32
	// State is what the main goes on from. Ended says that it has come to its end; what follows is
	// then of another run.
	State []byte
	Ended bool
	// Memory is what memory machines know the main as.
	Memory rpcpacket.ID
	// Has are the regions that the main has. When it has ended they go.
	Has [][16]byte
	// Owed has all calls of the main, those before earlier checkpoints too, that are not known to
	// be forgotten, and all regions to be freed that are not known to be gone.
	Owed Owed
}

// Kind implements Record.
func (*Checkpoint) Kind() Kind { return KindCheckpoint }

func (r *Checkpoint) visit(c *coder) {
	array(c, "main", &r.Main, "id of the durable main")
	num(c, "index", &r.Index, "the checkpoint's place among the main's operations")
	blob(c, "state", &r.State, "what the main goes on from")
	flag(c, "ended", &r.Ended, "1: the main has come to its end")
	array(c, "memory", &r.Memory, "what memory machines know the main as")
	pointers(c, "has", &r.Has, "regions that the main has")
	r.Owed.visit(c)
}

// Forgotten names outcomes that nobody will ask for any more.
type Forgotten struct {
	Executions []rpcpacket.ID
	Slots      []Slot
	Callers    []Caller
}

// Place is a call slot of a caller.
type Place struct {
	Caller [16]byte
	Slot   rpcpacket.Slot
}

// Compare orders places by slot, then by caller.
func (p Place) Compare(o Place) int {
	return cmp.Or(cmp.Compare(p.Slot, o.Slot), bytes.Compare(p.Caller[:], o.Caller[:]))
}

// Slot is what is known of a call slot. Calls with numbers below Floor are refused unless they are known.
type Slot struct {
	Place
	Floor rpcpacket.Number
}

// Caller is a node of which some incarnations are dead: calls of theirs are refused unless
// they are known.
type Caller struct {
	Node [16]byte
	Dead uint32 // the incarnations up to this one
	// Gone: there is no later one. Nobody asks for the outcomes of its calls.
	Gone bool
}

// Kind implements Record.
func (*Forgotten) Kind() Kind { return KindForgotten }

func (r *Forgotten) visit(c *coder) {
	ids(c, "executions", &r.Executions, "calls whose outcomes nobody will ask for")
	list(c, "slots", &r.Slots, "call slots", func(c *coder, l *Slot) { l.visit(c) })
	list(c, "callers", &r.Callers, "callers of which some incarnations are dead", func(c *coder, k *Caller) { k.visit(c) })
}

func (l *Slot) visit(c *coder) {
	num(c, "slot", &l.Slot, "the slot")
	array(c, "caller", &l.Caller, "address of the node that calls")
	num(c, "floor", &l.Floor, "numbers below are refused unless they are known")
}

func (k *Caller) visit(c *coder) {
	array(c, "node", &k.Node, "address of the node that has called")
	num(c, "dead", &k.Dead, "its incarnations up to this one are dead")
	flag(c, "gone", &k.Gone, "1: it has no later one")
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
