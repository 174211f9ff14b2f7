package execution

import (
	"net/netip"

	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Output is what an input leads to: first the records, as one batch, then the
// actions in their order.
type Output struct {
	Put     []wal.Record
	Delete  []wal.Key
	Actions []Action
}

// Action is something to do. It is one of the types below; carrying one out twice
// does no harm.
type Action interface{ action() }

// Admit asks the call graph and the lease machine about a new call. Admitted
// answers, when the rules of its leases are in place. (Before the call is logged:
// one that is refused must take no number in a stateful service.)
type Admit struct{ Call rpcpacket.ID }

// Drop takes back what Admit led to: the caller is gone, or the execution that
// made the call was given up before it let it go.
type Drop struct{ Call rpcpacket.ID }

// Hand moves control of what a one-way hands over, which waits for its parent's commit:
// its caller has sent it again, perhaps after a rollback that took it back. Handed
// answers, when the rules are in place.
type Hand struct{ Call rpcpacket.ID }

// Deliver releases a logged call or one-way to its callee.
type Deliver struct {
	Call rpcpacket.ID
	To   wal.Node
	// Number is the call's among those that this Table has delivered to the node: it
	// counts up from 1, and a call keeps its number.
	Number uint64
	// Order is its number in a stateful service, else 0.
	Order uint64
	// Attempt is how often its execution was cut off; if it was, Journal takes the
	// place of the packet's trailer.
	Attempt uint16
	Journal []byte
	// Replay: it may have been delivered before. Resumed: by another Gatekeeper only.
	Replay, Resumed bool
}

// Answer sends the caller the logged outcome of a call (KindReply).
type Answer struct {
	Call rpcpacket.ID
	To   netip.Addr
	// Replay: the caller has sent the call again with another trailer than the one that
	// is logged, so the answer is no receipt for that.
	Replay bool
}

// Except sends the caller an exception that is not logged.
type Except struct {
	Call rpcpacket.ID
	To   netip.Addr
	Why  *fault.Error
}

// Ack tells a node that the call, answer, completion or checkpoint with this call
// id is logged.
type Ack struct {
	Call rpcpacket.ID
	To   netip.Addr
	// Done: it acknowledges an answer, not a call of To's own. Number is then that of
	// the call's Deliver, or 0 if the Table has not delivered it or knows it no more.
	Done   bool
	Number uint64
	// Replay is as for Answer.
	Replay bool
}

// Run is what of an execution a Commit or Rollback is for: see control.Run.
type Run struct {
	Execution rpcpacket.ID
	At        wal.Node
	// Of a durable main: which of its runs there, and which checkpoint.
	Main       uint64
	Checkpoint uint32
	// AtNode: of a durable main that is direct. Its node decides about what it changes in memory.
	AtNode bool
}

// Commit makes the memory servers keep what a run of an execution did. Committed
// answers, when all that are in service have.
type Commit struct{ Run }

// Return ends the leases of a call and hands its results over; an aborted one has
// none. Returned answers, when the rules are in place; if the leases have ended
// before (the action was repeated), without an error.
type Return struct {
	Call    rpcpacket.ID
	Aborted bool
}

// Rollback makes the memory servers take back what runs of an execution did, up to
// this one, since its last commit. RolledBack answers, when all that are in service
// have. It is not asked twice, except by another Gatekeeper; a server must not obey an
// old one.
type Rollback struct{ Run }

// Begun says that a durable main may go on: the Begin that asked for this run can
// be answered, with what Table.Main tells.
type Begun struct {
	Main rpcpacket.ID
	At   wal.Node
	Run  uint64
	// Over: it had come to its end before its node failed. There is nothing to do.
	Over bool
}

// Whole says that nothing of a failed node is left to be rolled back.
type Whole struct{ Node netip.Addr }

// Diverged says that an execution has repeated a call with another method or other
// arguments. It is told so (Except); the operator is to be told, too.
type Diverged struct{ Call, Parent rpcpacket.ID }

// Aborted says that an execution was given up.
type Aborted struct {
	Call rpcpacket.ID
	Why  *fault.Error
}

func (Admit) action()    {}
func (Drop) action()     {}
func (Hand) action()     {}
func (Deliver) action()  {}
func (Answer) action()   {}
func (Except) action()   {}
func (Ack) action()      {}
func (Commit) action()   {}
func (Return) action()   {}
func (Rollback) action() {}
func (Begun) action()    {}
func (Whole) action()    {}
func (Diverged) action() {}
func (Aborted) action()  {}

// Verdict says what a held message is.
type Verdict uint8

// The verdicts.
const (
	Fresh    Verdict = iota + 1 // not known before
	Waiting                     // a copy is still being handled; this one is dropped
	Running                     // with its callee: released to it again
	Done                        // its outcome is logged: answered or acknowledged again
	Refused                     // answered with an exception, never executed
	Stale                       // from an incarnation or execution that does not count, or settled: dropped
	Diverges                    // a known id with other content
)

var verdicts = [...]string{"", "fresh", "waiting", "running", "done", "refused", "stale", "diverges"}

// String returns the verdict's name.
func (v Verdict) String() string { return verdicts[v&7] }
