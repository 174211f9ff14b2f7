package execution

import (
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Response is a held REPLY, EXCEPTION or completion of a one-way.
type Response struct {
	Message  *rpcpacket.Message
	Datagram []byte
	// Callee is who the identity table says sent it.
	Callee wal.Node
	Now    time.Time
}

// Reply takes the answer to a call. It counts only from the node and incarnation
// to which the call was delivered; then it is logged with its trailer, which is
// the commit of the execution (b2).
func (t *Table) Reply(r Response) (Verdict, Output) {
	h := &r.Message.Header
	k := t.calls[h.Call]
	switch {
	case k == nil: // nobody can ask for it any more, so it was logged
		t.do(Ack{Call: h.Call, To: r.Callee.Address, Done: true})
		return Done, t.take()
	case k.at.address != r.Callee.Address || h.CalleeIncarnation != r.Callee.Incarnation || r.Callee.Incarnation != k.incarnation || k.cut:
		return Stale, t.take()
	case k.stage == done:
		t.do(Ack{Call: k.id, To: k.at.address, Done: true, Number: k.delivery})
		return Done, t.take()
	case k.stage != running:
		return Waiting, t.take()
	}
	datagram := withoutTrailer(r.Message, r.Datagram)
	if k.order > 0 && t.changed(k, r.Message.Trailer, len(r.Datagram)) {
		datagram = r.Datagram
	}
	if k.serial {
		t.mark(k, r.Message.Trailer)
	}
	k.stage = committing
	t.settling(k)
	t.outcome(k, datagram, 0, r.Now)
	t.do(Commit{k.run()})
	return Fresh, t.take()
}

// run is the call's present run.
func (k *call) run() Run {
	return Run{Execution: k.id, At: wal.Node{Address: k.at.address, Incarnation: k.incarnation}}
}

// withoutTrailer is an answer as it is kept when its trailer is not needed: the journal
// in it ends with the execution.
func withoutTrailer(m *rpcpacket.Message, datagram []byte) []byte {
	if len(m.Trailer) == 0 {
		return datagram
	}
	whole := *m
	whole.Trailer = nil
	return whole.Append(nil)
}

// The Attempts of an outcome: abortedMark says that the execution is rolled back,
// movedMark that the results were handed over.
const (
	abortedMark = 1
	movedMark   = 2
)

// outcome logs how a call has ended.
func (t *Table) outcome(k *call, datagram []byte, mark uint32, now time.Time) {
	t.charge(k, len(datagram))
	t.put(wal.Record{
		Kind: wal.KindReply, ID: wal.ID(k.id), Time: now, Parent: k.parent, Caller: wal.Node{Address: k.caller},
		Callee: wal.Node{Address: k.at.address, Incarnation: k.incarnation}, Order: k.order, Attempt: mark, Packet: datagram,
	})
}

// Committed answers Commit.
func (t *Table) Committed(id rpcpacket.ID) Output {
	if k := t.calls[id]; k != nil && k.stage == committing {
		k.stage = returning
		t.do(Return{Call: id})
	} else if m := t.mains[id]; m != nil && m.committing {
		t.checkpointed(m)
	}
	return t.take()
}

// Moved says, just before Returned does, that the results of a call were handed over;
// datagram is its answer. From now on the caller passes them on, perhaps to where they
// came from, so a Gatekeeper that begins later must not repeat it.
func (t *Table) Moved(id rpcpacket.ID, datagram []byte, now time.Time) Output {
	if k := t.calls[id]; k != nil && k.stage == returning {
		t.outcome(k, datagram, movedMark, now)
	}
	return t.take()
}

// Returned answers Return. Why says that the results could not be handed over: an
// exception takes the answer's place.
func (t *Table) Returned(id rpcpacket.ID, why *fault.Error, now time.Time) Output {
	k := t.calls[id]
	if k == nil || k.stage != returning {
		return t.take()
	}
	if why != nil {
		t.outcome(k, exception(&k.header, why), 0, now)
	}
	t.finish(k)
	return t.take()
}

// finish lets out what the end of a call lets out: its one-ways, its answer, the
// acknowledgement; and it forgets the calls that nobody will repeat any more.
func (t *Table) finish(k *call) {
	k.stage = done
	delete(k.at.calls, k)
	delete(t.lonely, k)
	t.settleChildren(&k.execution)
	if !k.settled && !k.oneway {
		t.do(Answer{k.id, k.caller, k.astray})
	}
	if k.incarnation > k.at.dead {
		t.do(Ack{Call: k.id, To: k.at.address, Done: true, Number: k.delivery})
	}
	if k.attempts > 0 || k.at.logged && len(k.at.calls) == 0 {
		t.touch(k.at)
	}
	k.settled = k.settled || k.enlisted && k.at.gone
	t.effective(k)
	parent := t.owner(k.parent)
	t.forget(k)
	if parent != nil {
		t.tryRollback(parent)
	}
	if k.at.gone {
		t.whole(k.at)
	}
}

// settleChildren says that an execution has committed: its one-ways leave, and
// nobody asks for the outcomes of its calls any more.
func (t *Table) settleChildren(e *execution) {
	for _, child := range sorted(e.children) {
		t.settled(child)
		if child.record != nil {
			t.number(child)
		}
		t.release(child)
		t.forget(child)
	}
	e.children, e.journal = map[*call]struct{}{}, nil
}

// settled says that nobody asks for a call's outcome any more.
func (t *Table) settled(k *call) {
	k.settled = true
	if k.sent {
		t.lonely[k] = struct{}{}
	}
}

// forget strikes a call out that is done and that nobody will ask for.
func (t *Table) forget(k *call) {
	if k.stage != done || !k.settled || t.calls[k.id] != k {
		return
	}
	t.remove(k)
	t.strike(wal.KindCall, wal.ID(k.id))
	if k.order > 0 && t.service(k.service).keep(t, k) {
		return
	}
	t.strike(wal.KindReply, wal.ID(k.id))
}

// remove takes a call out of the Table.
func (t *Table) remove(k *call) {
	delete(t.calls, k.id)
	delete(k.at.calls, k)
	delete(t.lonely, k)
	if k.serial {
		delete(t.service(k.service).enlisted, k)
	}
	if k.at.logged && len(k.at.calls) == 0 {
		t.touch(k.at)
	}
	t.charge(k, -k.charged)
	if k.session != nil {
		t.leaveSession(k)
	}
	if p := t.owner(k.parent); p != nil {
		delete(p.children, k)
	}
}
