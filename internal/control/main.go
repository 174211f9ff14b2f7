package control

import "net/netip"

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
