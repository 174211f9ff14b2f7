package control

import "net/netip"

// StatePartSize is how many bytes a StatePart carries at most.
const StatePartSize = 64 << 10

// State asks for a part of what is logged: of a service's state, before the node
// exports it, of a durable main, or of the journal of an execution that was
// delivered to the node again. To ask for a main's first part registers the node
// as the one that runs it.
type State struct {
	Node        netip.Addr `json:"node"`
	Incarnation uint32     `json:"incarnation"`
	Name        string     `json:"name"` // of the service or main
	Main        bool       `json:"main,omitempty"`
	// Execution asks for its journal, which must be logged as running at just this
	// node and incarnation; Name is not used then.
	Execution ExecutionID `json:"execution,omitzero"`
	// Message asks for the payload of a logged call that is delivered to this node and
	// incarnation or, with Answer, of the logged answer to a call of this node. Both
	// exceed a packet. Name is not used then.
	Message ExecutionID `json:"message,omitzero"`
	Answer  bool        `json:"answer,omitempty"`
	Offset  uint64      `json:"offset"`
}

// Of names what is asked for, for people.
func (s State) Of() string {
	switch {
	case s.Message != (ExecutionID{}) && s.Answer:
		return "the answer to call " + s.Message.String()
	case s.Message != (ExecutionID{}):
		return "call " + s.Message.String()
	case s.Execution != (ExecutionID{}):
		return "execution " + s.Execution.String()
	}
	return s.Name
}

// StatePart is the part from an offset on of what is logged, which is a row of
// sections as rpc/trailer writes them: of a service a snapshot and the deltas
// since; of a main the checkpoint's state and the journal since; of an execution
// the journal. Of a message it is the payload, as it is. It does not change while a node fetches it, for the node runs nothing meanwhile.
type StatePart struct {
	Data  []byte `json:"data"`
	Total uint64 `json:"total"` // bytes of all parts
	// Next is the order number of the service's next call, or the index of the
	// main's last checkpoint.
	Next uint64 `json:"next"`
	// First is the call that the service has to run before any that comes past the
	// Gatekeeper, 0 if there is none; it has no number if it came so itself. While
	// Unsettled, outcomes of earlier calls are not in effect yet.
	First     ExecutionID `json:"first,omitzero"`
	Unsettled bool        `json:"unsettled,omitempty"`
	// Done: the main has come to its end, and must not run again. The record of
	// it goes when its node has left in an orderly way.
	Done bool `json:"done,omitempty"`
	// Key is the main's, as Exported.Key is a service's.
	Key []byte `json:"key,omitempty"`
	// Memory is what memory blades know the main as.
	Memory ExecutionID `json:"memory,omitzero"`
	// Ledger: the main is direct, and the node's ledger has its checkpoints, and what it has
	// journalled since. Handed: what it has done since it was handed over is logged, too.
	Ledger bool `json:"ledger,omitempty"`
	Handed bool `json:"handed,omitempty"`
	// Run is the number of this run of the main (Run.Main).
	Run uint64 `json:"run,omitempty"`
}

// PartOf returns the part of the sections that a State asks for.
func PartOf(sections []byte, offset, next uint64) StatePart {
	p := StatePart{Total: uint64(len(sections)), Next: next}
	if offset < p.Total {
		p.Data = sections[offset:min(offset+StatePartSize, p.Total)]
	}
	return p
}
