package control

import (
	"net/netip"
	"strings"

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
	// yet. States is how many bytes the states of its services and the checkpoints of its durable mains have in it, MaxStates how many
	// they may have together.
	Room      *uint64 `json:"room,omitempty"`
	States    uint64  `json:"states,omitempty"`
	MaxStates uint64  `json:"max_states,omitempty"`
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
	// TakeBack, if it is set, is all that is told: why the node is to be fenced, and its program started anew. It shares the
	// fate of a call's other side.
	TakeBack string `json:"takeBack,omitempty"`
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
	// Slot and Number are the call's first slot, and its number there.
	Slot    uint32 `json:"slot,omitempty"`
	Number  uint64 `json:"number,omitempty"`
	Service string `json:"service"`
	Method  string `json:"method"`
	// Began is how many µs ago the callee has got it, and Took for how many it ran. What is
	// under way has no Took.
	Began   int64       `json:"began"`
	Took    int64       `json:"took,omitempty"`
	Attempt uint16      `json:"attempt,omitempty"`  // how often its execution was begun before
	Code    fault.Code  `json:"code,omitempty"`     // of an answer that is an exception
	Oneway  bool        `json:"oneway,omitempty"`   // nobody waits for it
	Policy  uint8       `json:"policy,omitempty"`   // as in its header
	GivenUp uint32      `json:"given_up,omitempty"` // after how many failures it has been given up; 0: it has not
	Details CallDetails `json:"details,omitzero"`
}

// CallDetails is what people may want to know of a call besides. Nothing depends on it. Of a call under way it is what is known so far.
type CallDetails struct {
	// Arguments is how many bytes the message with the arguments and the headers has, Answer how many the answer has.
	Arguments uint64 `json:"arguments,omitempty"`
	Answer    uint64 `json:"answer,omitempty"`
	// Headers are those of the call. Their values may be secrets.
	Headers []Header `json:"headers,omitempty"`
	// Exception is the type of an exception that the IDL declares, Text what any exception says.
	Exception string `json:"exception,omitempty"`
	Text      string `json:"text,omitempty"`
}

// Header is a header of a call.
type Header struct {
	Name  string `json:"name"`
	Value string `json:"value,omitempty"`
}

// Secret reports whether the value may be a secret: it is not one of W3C Trace Context.
func (h *Header) Secret() bool { return h.Name != "traceparent" && h.Name != "tracestate" }

// Bounds of a CallDetails: bytes of Exception, of Text, of the names and values of all headers together, and how many headers. MaxDetails
// is how many bytes of all these are in a NodeCalls.
const (
	MaxExceptionName = 64
	MaxExceptionText = 256
	MaxHeadersText   = 512
	MaxHeaders       = 16
	MaxDetails       = 32 << 10
)

// Fit leaves details of calls out that are more than MaxDetails: those of the last ones.
func (c *NodeCalls) Fit() {
	left := MaxDetails
	for _, calls := range [][]DirectCall{c.Ended, c.Running} {
		for i := range calls {
			d := &calls[i].Details
			size := len(d.Exception) + len(d.Text)
			for _, h := range d.Headers {
				size += len(h.Name) + len(h.Value)
			}
			if left -= size; left < 0 {
				*d = CallDetails{Arguments: d.Arguments, Answer: d.Answer}
			}
		}
	}
}

// Bounded is d within its bounds: what is too long is cut, and ends with "…"; what is too much is left out.
func (d *CallDetails) Bounded() CallDetails {
	out := *d
	out.Exception, out.Text, out.Headers = cut(d.Exception, MaxExceptionName), cut(d.Text, MaxExceptionText), nil
	left := MaxHeadersText
	for _, h := range d.Headers[:min(len(d.Headers), MaxHeaders)] {
		h.Name = cut(h.Name, left)
		left -= len(h.Name)
		h.Value = cut(h.Value, left)
		left -= len(h.Value)
		if h.Name != "" {
			out.Headers = append(out.Headers, h)
		}
	}
	return out
}

// cut is a text of so many bytes at most, which is UTF-8.
func cut(text string, most int) string {
	const more = "…"
	if len(text) > most {
		text = text[:max(0, most-len(more))] + more[:min(most, len(more))]
	}
	return strings.ToValidUTF8(text, "")
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
