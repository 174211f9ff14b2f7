package rpc

import (
	"encoding/hex"
	"sync/atomic"

	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// An operator may cancel a call where it runs: its handler's context ends, and what the handler
// then returns is the answer, as ever. So an exactly-once call ends once, whoever crashes
// meanwhile; a re-run of one that was cut short is not cancelled. A call that has not begun is
// answered with Canceled in the place of its handler.

// canceled says whether an operator has cancelled an execution.
type canceled struct{ atomic.Bool }

// heedCancels has calls cancelled that the daemon names, if it names any.
func (n *Node) heedCancels() {
	if s, ok := n.session.(join.Canceller); ok {
		s.OnCancel(n.cancelServed)
	}
}

// cancelServed cancels a call that this node runs, or has queued. Another one is none of ours
// any more.
func (n *Node) cancelServed(call string) {
	var id rpcpacket.ID
	if b, err := hex.DecodeString(call); err != nil || copy(id[:], b) != len(id) || len(b) != len(id) {
		return
	}
	if n.goesDirect() {
		n.ledger.cancelDirect(id)
	}
	n.in.mu.Lock()
	defer n.in.mu.Unlock()
	for _, entry := range n.in.core.Running(id) {
		if e, ok := entry.Tag.(*execution); ok {
			e.canceled.Store(true)
			e.abandon()
		}
	}
}
