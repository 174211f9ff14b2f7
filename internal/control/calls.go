package control

import (
	"net/netip"

	"github.com/bifrost-rack/bifrost/internal/fault"
)

// NodeCalls is what a node tells of the direct calls that it serves, which nobody else sees. It
// comes a moment after something has changed, and now and then while calls are under way.
type NodeCalls struct {
	Node        netip.Addr `json:"node"`
	Incarnation uint32     `json:"incarnation"`
	// First says that the node has told nothing before.
	First bool `json:"first,omitempty"`
	// Running are the calls under way, the oldest first; More is how many there are besides.
	Running []DirectCall `json:"running,omitempty"`
	More    int          `json:"more,omitempty"`
	// Ended are calls that have ended since it told last: the latest ones.
	Ended []DirectCall `json:"ended,omitempty"`
	// Counts are all calls that have ended since the node joined.
	Counts []MethodCount `json:"counts,omitempty"`
	// Room is how many bytes new calls may still take in the node's ledger; nil if it has none
	// yet.
	Room *uint64 `json:"room,omitempty"`
	// Over says that the node is about to leave in order, and that nobody will ask for the
	// outcome of any direct call that it has run: one that is still out to it has not run, and
	// never will. Nothing else is set.
	Over bool `json:"over,omitempty"`
	// Owes says, in a message of its own, that the node's ledger is about to have one-ways which are to be delivered though
	// its program ends. From then on a node of a program that was started by hand stays, until it says Over and leaves.
	// The answer is NoSpace if its blade has MaxKeptByHand such nodes.
	Owes bool `json:"owes,omitempty"`
	// Waits, if it is set, is all that is told. It counts until the next one.
	Waits *NodeWaits `json:"waits,omitempty"`
	// Frees, if there are some, are all that is told: regions of the node that go, each after its last lease. The node may say so again: what it does not
	// have is left alone. At most MaxFrees.
	Frees []FreedRegions `json:"frees,omitempty"`
	// TakeBack, if it is set, is all that is told: why the node is to be fenced, and its program started anew. It shares the
	// fate of a call's other side.
	TakeBack string `json:"takeBack,omitempty"`
	// Lent, if it is set, is all that is told: calls with pointers that an earlier incarnation of the
	// node has made. The answer is Overloaded while one of them has leases. At most MaxDirectCalls.
	Lent []ExecutionID `json:"lent,omitempty"`
	// Main, if it is set, is all that is told. The answer says that it is logged.
	Main *EndedMain `json:"main,omitempty"`
}

// EndedMain is a durable main that has come to its end, by what the node's ledger says. It owes nothing but one-ways
// without pointers.
type EndedMain struct {
	Execution ExecutionID `json:"execution"`
	// Index is the place of its last checkpoint among its operations: the next run's begin above it.
	Index uint32 `json:"index"`
}

// MaxFrees is how many addresses of regions are in one NodeCalls.
const MaxFrees = 512

// FreedRegions is regions that go, named by addresses in them. Those stay in which an address of But lies.
type FreedRegions struct {
	Regions []netip.Addr `json:"regions"`
	But     []netip.Addr `json:"but,omitempty"`
}

// Size is how much of MaxFrees it takes.
func (r *FreedRegions) Size() int { return len(r.Regions) + len(r.But) }

// NodeWaits is which calls have waited for some time for their turn at services with state of a
// node. It comes while there are any, again and again, and empty when there are none any more.
// Calls that cannot be part of a deadlock are left out.
type NodeWaits struct {
	Calls []WaitingCall `json:"calls,omitempty"`
}

// WaitingCall is a call that waits for its turn.
type WaitingCall struct {
	ID ExecutionID `json:"id"`
	// Behind is the call that the service runs.
	Behind ExecutionID `json:"behind"`
	// For are the executions of services with state that wait for the call, as far as the
	// Gatekeeper does not know them: those of a direct call.
	For     []ExecutionID `json:"for,omitempty"`
	Service string        `json:"service"`
	Method  string        `json:"method"`
}

// DirectCall is a direct call as its callee knows it.
type DirectCall struct {
	ID          ExecutionID `json:"id"`
	Parent      ExecutionID `json:"parent,omitzero"`
	Caller      netip.Addr  `json:"caller"`
	Incarnation uint32      `json:"incarnation"` // the caller's
	Service     string      `json:"service"`
	Method      string      `json:"method"`
	// Began is how many µs ago the callee has got it, and Took for how many it ran. What is
	// under way has no Took.
	Began   int64      `json:"began"`
	Took    int64      `json:"took,omitempty"`
	Attempt uint16     `json:"attempt,omitempty"`  // how often its execution was begun before
	Code    fault.Code `json:"code,omitempty"`     // of an answer that is an exception
	Oneway  bool       `json:"oneway,omitempty"`   // nobody waits for it
	Policy  uint8      `json:"policy,omitempty"`   // as in its header
	GivenUp uint32     `json:"given_up,omitempty"` // after how many failures it has been given up; 0: it has not
}

// MethodCount is how many calls of a method have ended with a code.
type MethodCount struct {
	Service string     `json:"service"`
	Method  string     `json:"method"`
	Code    fault.Code `json:"code,omitempty"`
	Calls   uint64     `json:"calls"`
}

// MaxDirectCalls is how many calls are in each list of a NodeCalls at most,
// MaxMethodCounts how many counts, MaxWaits how many calls a NodeWaits, and
// MaxSerial how many executions wait for one of these.
const (
	MaxDirectCalls  = 128
	MaxMethodCounts = 2048
	MaxWaits        = 256
	MaxSerial       = 16
)

// BeginMain asks whether a node may run a durable main, and registers the node as the one that runs it. The
// reply comes when no call has leases any more that the former run gave.
type BeginMain struct {
	Node        netip.Addr `json:"node"`
	Incarnation uint32     `json:"incarnation"`
	Name        string     `json:"name"`
}

// BegunMain says that a run of a durable main may begin, or that the main is over.
type BegunMain struct {
	// Over: the main has come to its end, and must not run again. The record of
	// it goes when its node has left in an orderly way.
	Over bool `json:"over,omitempty"`
	// Index is the number of the last operation of the run that is over, 0 if there is none.
	Index uint32 `json:"index,omitempty"`
	// Key is what the main's calls are named with (rpc/endpoint.Key).
	Key []byte `json:"key,omitempty"`
	// Memory is what memory blades know the main as.
	Memory ExecutionID `json:"memory,omitzero"`
	// Run is the number of this run of the main (Run.Main).
	Run uint64 `json:"run,omitempty"`
}
