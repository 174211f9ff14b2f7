package rpc

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// A direct call that its callee does not get is sent again later and later, up to once a
// second. A node that has restarted may have crashed again by then. So it announces itself to
// its callers:
//
//	caller ── CALL, lost ──▶ (crashed)
//	caller ◀─ ACK, unbegun ─ callee: its service takes direct calls again
//	caller ── CALL ────────▶
//
// Its callers are those whose calls its ledger keeps. If the ACK is lost, or a caller is not
// among them, the call comes within endpoint.MaxTimeout.

// announce tells the callers that the service takes direct calls, unless this is the node's
// first incarnation.
func (x *export) announce() {
	n := x.node
	if !n.goesDirect() || n.self.Incarnation == 1 || x.gate.Load() || n.takes(x.hash) != x {
		return // when the gate opens, or the service is exported, announce is called again
	}
	n.ledger.mu.Lock()
	callers := n.ledger.table.Callers()
	n.ledger.mu.Unlock()
	m := rpcpacket.Message{Header: rpcpacket.Header{
		Type: rpcpacket.Ack, Flags: rpcpacket.FlagUnbegun.WithPolicy(PolicyRecover), CallerIncarnation: n.self.Incarnation,
	}}
	b := m.Append(nil)
	var out []netio.Message
	for _, caller := range slices.SortedFunc(maps.Keys(callers), compareNodes) {
		out = append(out, netio.Message{Buf: b, Remote: netip.AddrPortFrom(netip.AddrFrom16(caller), rackaddr.PortDirect)})
	}
	if len(out) > 0 {
		_, _ = n.directConn.WriteBatch(out) // a failure is a loss
	}
}

// announced takes a node's announcement. The switch vouches for the node's address, so a
// hostile node can only have the calls to itself sent again, and each no more often than
// a call that has just begun.
func (n *Node) announced(node netip.Addr) {
	n.out.mu.Lock()
	due, ok := n.out.core.Restarted(node.As16())
	n.out.mu.Unlock()
	if ok {
		n.wakeAt(due)
	}
}
