package execution

import (
	"net/netip"

	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Direct calls go past the Gatekeeper, until their execution needs it: then the callee has
// the Table decide (rpc, enlist.go). Such a call is on record as any that was delivered to
// its callee, but it belongs to no session and to no parent here, and nobody but its callee
// says that its outcome is not needed any more.

// Enlistment is a callee's message that has the Table decide about a direct call.
type Enlistment struct {
	// Runs says that the present incarnation of the callee runs the call; else it is delivered, once
	// more if that has happened: the delivery may have been lost, and the caller sends to the callee.
	Runs bool
	// Receipt is the id that the callee waits to be acknowledged.
	Receipt rpcpacket.ID
	// Number counts the callee's messages; below Floor all have been acknowledged. So a late
	// copy does not bring back what was forgotten since.
	Number, Floor uint64
}

// enlistments is the number of a node's session of Enlistments. Clients do not use it.
const enlistments = 0

// Enlist takes a direct call over from its callee.
func (t *Table) Enlist(r Request, q Enlistment) (Verdict, Output) {
	k := t.calls[r.Message.Call]
	v := Fresh
	if r.Callee.Incarnation <= t.node(r.Callee.Address).dead {
		return Stale, t.take()
	}
	s := t.session(r.Callee.Address, enlistments)
	t.settle(s, q.Floor)
	switch {
	case k == nil && q.Number < s.floor:
		return Stale, t.take()
	case k != nil && (!k.enlisted || k.at.address != r.Callee.Address):
		return Refused, t.take()
	case k == nil:
		k = t.enlist(r)
		if q.Runs {
			k.at.delivered++
			k.delivery, k.incarnation, k.sent = k.at.delivered, r.Callee.Incarnation, true
		} else {
			t.release(k)
		}
	case k.stage == done:
		v = Done
		t.do(Answer{Call: k.id, To: k.caller})
	case !q.Runs && t.deliverable(k):
		v = Running
		t.deliver(k, k.incarnation != 0)
	default:
		v = Running
	}
	t.do(Ack{Call: q.Receipt, To: r.Callee.Address})
	return v, t.take()
}

// enlist puts a direct call on record.
func (t *Table) enlist(r Request) *call {
	h := &r.Message.Header
	k := &call{
		execution: execution{id: h.Call, at: t.node(r.Callee.Address), children: map[*call]struct{}{}},
		header:    *h, parent: h.Parent, caller: r.Caller.Address, service: h.Service,
		print: printOf(r.Message), trail: trailOf(r.Message), leases: lends(r.Message), stage: running, enlisted: true, serial: r.Serial,
	}
	t.adopt(k)
	t.charge(k, len(r.Datagram))
	record := wal.Record{
		Kind: wal.KindCall, ID: wal.ID(k.id), Time: r.Now, Parent: k.parent, Caller: r.Caller, Callee: k.at.next(), Packet: r.Datagram,
	}
	if k.serial {
		record.Attempt = serialMark
		t.service(k.service).enlisted[k] = struct{}{}
	}
	t.put(record)
	return k
}

// serialMark is the Attempt of an enlisted call of a service that runs one call at a time.
const serialMark = 3

// ForgetDirect takes a node's word about direct calls: nobody asks any more for the outcomes of
// those that it has served, and nobody waits for those that it has made. Floor is as in
// Enlistment. It returns those that are forgotten: of one that has no answer yet the node keeps what it
// knows, since it may be run again.
func (t *Table) ForgetDirect(from netip.Addr, ids []rpcpacket.ID, floor uint64) (forgotten []rpcpacket.ID, out Output) {
	s := t.session(from, enlistments)
	t.settle(s, floor)
	for _, id := range ids {
		k := t.calls[id]
		if k == nil || !k.enlisted {
			forgotten = append(forgotten, id)
			continue
		}
		if k.caller == from {
			k.disowned = true
		}
		if k.at.address == from {
			t.settled(k)
			t.forget(k)
			t.keepSession(s)
		}
		if k.at.address != from || k.stage == done {
			forgotten = append(forgotten, id)
		}
	}
	return forgotten, t.take()
}

// forgetEnlisted settles the enlisted calls of a node that is gone: it says nothing any more.
func (t *Table) forgetEnlisted(n *node) {
	for _, k := range t.calls {
		if k.enlisted && k.at == n && k.stage == done {
			t.settled(k)
			t.forget(k)
		}
	}
}

// Unborn reports whether an answer hands something over to an execution that is not known
// here yet: that has to be enlisted first. It returns the execution and its node. What a durable main gets is the main's until it is
// over, also if it is direct.
func (t *Table) Unborn(m *rpcpacket.Message) (execution rpcpacket.ID, at netip.Addr, unborn bool) {
	k := t.calls[m.Call]
	if k == nil || !k.enlisted || k.disowned || k.stage != running || len(m.Pointers) == 0 || k.header.Flags&rpcpacket.FlagSession != 0 {
		return rpcpacket.ID{}, netip.Addr{}, false
	}
	if t.calls[k.parent] != nil || t.mains[k.parent] != nil {
		return rpcpacket.ID{}, netip.Addr{}, false
	}
	return k.parent, k.caller, true
}
