package rpc

import "sync/atomic"

// Stats counts what a node has done with packets since it joined.
type Stats struct {
	Calls      uint64 // calls and one-ways begun by this node
	Resent     uint64 // datagrams sent again: calls, and answers to duplicates
	Served     uint64 // handlers run
	Duplicates uint64 // calls and answers dropped because they are known already or settled
	Refused    uint64 // calls answered with a system exception
	Malformed  uint64 // datagrams dropped because they are no message for this node
	Full       uint64 // calls dropped for lack of room, or not whole in time; they will be sent again
	Stale      uint64 // calls dropped because they were meant for another incarnation
	Parts      uint64 // parts of large messages sent
	Direct     uint64 // direct calls accepted
	Enlisted   uint64 // executions of direct calls that were handed over to the Gatekeeper
	Resumed    uint64 // executions of direct calls that earlier incarnations had begun, run again or handed over
	Recalled   uint64 // copies of direct calls answered from the ledger
}

type counters struct {
	calls, resent, served, duplicates, refused, malformed, full, stale, parts, direct, enlisted, resumed, recalled atomic.Uint64
}

// Stats returns the node's counters.
func (n *Node) Stats() Stats {
	c := &n.stats
	return Stats{
		Calls: c.calls.Load(), Resent: c.resent.Load(), Served: c.served.Load(), Duplicates: c.duplicates.Load(),
		Refused: c.refused.Load(), Malformed: c.malformed.Load(), Full: c.full.Load(), Stale: c.stale.Load(),
		Parts: c.parts.Load(), Direct: c.direct.Load(), Enlisted: c.enlisted.Load(), Resumed: c.resumed.Load(), Recalled: c.recalled.Load(),
	}
}
