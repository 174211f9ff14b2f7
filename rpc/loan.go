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
// The first packet of a call that exceeds a packet has all of its pointers. The callee asks the caller for the
// rest when the Gatekeeper has let the first packet through (large.go).
//
// A one-way with pointers hands its receiver memory in the same way. Control moves, rather than leases begin, and what
// comes back is the acknowledgement (oneway.go):
//
//	ONEWAY ──▶ the receiver's address ──held──▶ Gatekeeper: control moves ──▶ receiver, as any direct one-way
//	REPLY, or EXCEPTION: it never takes the one-way ──held──▶ Gatekeeper: control returns ──▶ sender
//
// An execution that has lent memory is not taken back before the leases have ended: its callee may
// be reading. The next incarnation of its node asks the Gatekeeper.

// lendable reports whether a call with pointers can go direct: its first packet has room for all of them.
func (n *Node) lendable(codec *codec) bool {
	const trailer = originSize + (1+control.MaxSerial)*len(rpcpacket.ID{}) + argumentsSize // at most
	return codec.size()+trailer <= n.budget || rpcpacket.FirstFits(codec.front()+trailer, n.budget)
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

// loansAgain is how long the node waits until it asks the Gatekeeper again.
const loansAgain = 50 * time.Millisecond

// awaitLoans waits until calls have no leases any more. It reports false if the node ends.
func (n *Node) awaitLoans(lent []control.ExecutionID) bool {
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
		go n.sendRecorded(from, answerOf(known), 0)
	case v == direct.Duplicate && m.Type == rpcpacket.Oneway && known != nil:
		go n.whenSettled(from, n.accepts(m))
	case v == direct.Duplicate && l.table.Shares(m.Call):
		go l.askCaller(from.Addr().As16(), m.CallerIncarnation) // its next incarnation may be waiting for the end of the call
	case v == direct.Late && l.place != nil:
		last := l.add(l.table.Void(from.Addr().As16(), &m.Header))
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

// An answer with pointers goes direct, too: it hands the regions over. They move when the switch holds
// it. So the Gatekeeper hears what becomes of the callee's regions when nobody asks for the answer any
// more: what has not moved by then goes, or stays with a service that has state.

// tellLater tells the Gatekeeper of the regions of executions whose answers nobody asks for any
// more. The caller holds l.mu.
func (l *ledger) tellLater() {
	l.tellRegions(l.table.Tells()...)
}

// answerOf is what is said of an execution that is done. One that is forgotten hands nothing over: the
// Gatekeeper alone asks, and somebody else may have the regions by now.
func answerOf(e *record.Execution) []byte {
	if !e.Forgotten || !e.Done.Owed.Later {
		return e.Done.Answer
	}
	m, err := rpcpacket.Parse(e.Done.Answer)
	if err != nil {
		return e.Done.Answer
	}
	m.Type, m.Code, m.Pointers, m.Trailer, m.Payload = rpcpacket.Exception, Unavailable, nil, nil, []byte("nobody asks for the answer any more")
	m.Flags |= rpcpacket.FlagHeld
	return m.Append(nil)
}

// handsOver reports whether an answer has pointers.
func handsOver(answer []byte) bool {
	m, err := rpcpacket.Parse(answer)
	return err == nil && m.Type == rpcpacket.Reply && len(m.Pointers) > 0
}

// gains notes that the answer to a direct call has handed regions over to the execution that has made
// it. What becomes of them is told at its end: of those of a durable main, the Gatekeeper hears that the main is
// over. (An execution that gives a call up was handed over.)
func (o *operation) gains(p *pending) {
	if o != nil && p.straight && len(p.answer.Pointers) > 0 {
		o.b.e.mu.Lock()
		defer o.b.e.mu.Unlock()
		o.b.e.account.ever = true
	}
}
