package rpc

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/rpc/direct"
	"github.com/bifrost-rack/bifrost/rpc/record"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// A direct call with pointers lends its callee memory. The switch holds it, and its answer, for the
// Gatekeeper to change the rights; nothing else is decided there:
//
//	CALL  ──▶ the callee's address ──held──▶ Gatekeeper: leases begin ──▶ callee, as any direct call
//	REPLY ──▶ the caller's address ──held──▶ Gatekeeper: leases end   ──▶ caller
//
// An execution that has lent memory is not taken back before the leases have ended: its callee may
// be reading. The next incarnation of its node asks the Gatekeeper.

// lendable reports whether a call with pointers can go direct: it fits a packet.
func (n *Node) lendable(codec *codec) bool {
	const lineage = (1 + control.MaxSerial) * len(rpcpacket.ID{}) // at most
	return codec.size()+lineage <= n.budget
}

// lentBy lists the calls of an execution that may have leases.
func lentBy(e *record.Execution) (ids []control.ExecutionID) {
	for _, k := range e.Called {
		if k.Lends {
			ids = append(ids, control.ExecutionID(k.ID))
		}
	}
	return ids
}

// loansOver reports whether none of these calls has leases any more; false, too, if the Gatekeeper
// does not say so.
func (n *Node) loansOver(ctx context.Context, ids []control.ExecutionID) bool {
	ctx, cancel := context.WithTimeout(ctx, servingPatience)
	defer cancel()
	for some := range slices.Chunk(ids, control.MaxDirectCalls) {
		if n.session.Calls(ctx, control.NodeCalls{Lent: some}) != nil {
			return false
		}
	}
	return true
}

// waitsForLoans reports whether an execution is not taken back yet, since calls of it have leases.
func (l *ledger) waitsForLoans(id rpcpacket.ID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.resumes.lent[id]) > 0
}

// loansAgain is how long the node waits until it asks the Gatekeeper again.
const loansAgain = 50 * time.Millisecond

// awaitLoans waits until the calls of an execution have no leases any more. It reports false if the
// node ends.
func (n *Node) awaitLoans(id rpcpacket.ID) bool {
	l := n.ledger
	l.mu.Lock()
	lent := l.resumes.lent[id]
	delete(l.resumes.lent, id)
	l.mu.Unlock()
	for !n.loansOver(n.base, lent) {
		select {
		case <-time.After(loansAgain):
		case <-n.base.Done():
			return false
		}
	}
	return true
}

// probed answers the Gatekeeper, which asks in its caller's name what has become of a call that
// has leases. One that is not known is refused for good first: a copy of it may be on its way.
func (n *Node) probed(from netip.AddrPort, m *rpcpacket.Message) {
	l := n.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	switch v, known := l.table.Probe(from.Addr().As16(), &m.Header); {
	case v == direct.Answer && !l.settling[m.Call]:
		go n.sendRecorded(from, known.Done.Answer, 0)
	case v == direct.Late && l.place != nil:
		last := l.add(l.table.Refuse(from.Addr().As16(), &m.Header))
		refusal := n.exception(m, Unavailable, "the call has not come", true, nil)
		go func() {
			if l.settle(last) {
				n.send(from, refusal)
			}
		}()
	case v == direct.Malformed:
		n.malformed(from.Addr())
	case v == direct.Foreign:
		n.foreign(from.Addr())
	}
}
