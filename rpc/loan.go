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
//
// So it is if an execution lends memory to a call of policy none. The ledger has the call's id before the call leaves. The
// execution's next run makes another call, which has an id of its own. It meets the leases of the first one, which keep it
// from writing, unless it waits for their end. So it waits, also if it has nothing to take back. (The Gatekeeper
// lets a durable main begin again when the leases of its calls have ended.)

// lentBy lists the calls that may have leases, of those that an execution has made. If it has changed nothing in memory,
// only those of policy none count: its next run makes the others again.
func lentBy(called []record.Call, changed bool) (ids []control.ExecutionID) {
	for _, k := range called {
		if k.Lends && (changed || !k.Direct()) {
			ids = append(ids, control.ExecutionID(k.ID))
		}
	}
	return ids
}

// lends gives a call of policy none its id, and has the ledger say that the call lends memory. It reports whether the
// execution may go on.
func (o *operation) lends(p *pending) bool {
	n := o.b.e.node
	n.out.mu.Lock()
	n.out.core.Name(n.now(), &p.Call)
	n.out.mu.Unlock()
	if o.durable(record.Call{ID: p.ID, Lends: true}) {
		return true
	}
	n.out.mu.Lock()
	defer n.out.mu.Unlock()
	n.out.core.Unname(&p.Call)
	return false
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
	case v == direct.Late && l.placed():
		last := l.add(l.table.Void(from.Addr().As16(), &m.Header))
		refusal := n.exception(m, Unavailable, "the call has not come", true)
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
	for _, d := range l.table.Tells() {
		l.tellRegions(commitOf(d))
	}
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

// gains notes that a direct call is answered, and may have handed regions over to the execution that has made
// it. What becomes of them is told at its end: of those of a durable main, the Gatekeeper hears that the main is
// over.
func (o *operation) gains(p *pending) {
	if o == nil || !p.straight {
		return
	}
	e := o.b.e
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.recorded.answered(p.ID); len(p.answer.Pointers) > 0 {
		e.account.ever = true
	}
}

// An execution may give a call up, or end while one is out. That is in its journal, so its next run does not make the call.
// What the call returns before the execution has ended is the execution's, and goes at its end. When the execution is done, the
// Gatekeeper hears which calls it has given up: from then on their answers hand nothing over, and what they would have handed
// over stays their callees'. After that the callees are told to forget the calls. What a call was lent, it has until it is
// answered.
//
//	done settled ─▶ Gatekeeper: regions go, these calls hand nothing over ─▶ callees forget them ─▶ over

// toForget are the calls that nodes are to forget when the execution is done.
func (r *recorded) toForget() []record.Call {
	others := func(k record.Call) bool { return !k.Direct() }
	if !slices.ContainsFunc(r.called, others) {
		return r.called
	}
	return slices.DeleteFunc(slices.Clone(r.called), others)
}

// leaves is toForget at the end of the execution, which gives up the calls that are open.
func (r *recorded) leaves() []record.Call {
	all := r.toForget()
	if len(r.open) == 0 {
		return all
	}
	all = slices.Clone(all)
	for i := range all {
		all[i].GivenUp = slices.Contains(r.open, all[i].ID)
	}
	return all
}

// opens notes that the execution waits for a call's answer.
func (r *recorded) opens(id rpcpacket.ID) {
	if !slices.Contains(r.open, id) {
		r.open = append(r.open, id)
	}
}

// answered notes that the execution has a call's answer.
func (r *recorded) answered(id rpcpacket.ID) {
	r.open = slices.DeleteFunc(r.open, func(o rpcpacket.ID) bool { return o == id })
}
