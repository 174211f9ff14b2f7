package rpc

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/bifrost-rack/bifrost/internal/duration"
	"github.com/bifrost-rack/bifrost/rpc/bulk"
	"github.com/bifrost-rack/bifrost/rpc/direct"
	"github.com/bifrost-rack/bifrost/rpc/internal/sent"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Calls of policy none come to the same endpoint as exactly-once calls. No ledger has them: what the node knows of them is in
// memory (direct.Volatile), and goes with the incarnation.

// incoming is what the node knows of calls of policy none.
type incoming struct {
	mu   sync.Mutex
	core *direct.Volatile
}

// receiveVolatile takes a copy of a call of policy none. It returns the execution of a call that the goroutine is to run, or nil.
func (n *Node) receiveVolatile(r *reader, i int, from netip.AddrPort, m *rpcpacket.Message) *execution {
	if m.Type != rpcpacket.Call && m.Type != rpcpacket.Oneway {
		n.stats.countMalformed(from.Addr())
		return nil
	}
	x := n.exports.of(m.Service)
	if x == nil {
		n.stats.stale.Add(1) // it does not serve it yet, or any more: the caller asks whether it is there
		return nil
	}
	line, ok := lineageIn(m.Trailer)
	if !ok && m.Flags&rpcpacket.FlagGivenUp == 0 {
		n.stats.countMalformed(from.Addr())
		return nil
	}
	a, e, given := n.decide(x, from, m, line)
	if given != nil && n.large.cancel(bulk.Key{Peer: given.from.Addr(), Call: given.call.Call}) {
		given.export.forget(given) // it has not come whole, and will not
	}
	switch a.Verdict {
	case direct.Run:
		return n.takeVolatile(x, r, i, e)
	case direct.Answer:
		n.stats.resent.Add(1)
		n.large.sendAgain(from, a)
	case direct.Late:
		n.stats.duplicates.Add(1)
	case direct.Duplicate:
		n.stats.duplicates.Add(1)
	case direct.Refused:
		n.stats.duplicates.Add(1)
		n.ports.send(from, n.ports.exception(m, Unavailable, "its caller has given the call up before it began", true))
	case direct.Gone:
		n.ports.refuse(from, m, Unavailable, "the node has been restarted since, the call may have run before")
	case direct.Lost:
		n.audit.want(n)
		n.ports.refuse(from, m, Unavailable, "the call has run, its answer is no longer kept")
	case direct.Foreign:
		n.stats.countForeign(from.Addr())
	case direct.Full:
		n.stats.full.Add(1)
	default:
		n.stats.countMalformed(from.Addr())
	}
	return nil
}

// decide asks the core, holds the payload of a large answer, and makes the execution e of a call to run. Its caller has given up what the execution given runs, if there is one.
func (n *Node) decide(x *export, from netip.AddrPort, m *rpcpacket.Message, line lineage) (a direct.Arrival, e, given *execution) {
	in := &n.in
	in.mu.Lock()
	defer in.mu.Unlock()
	a = in.core.Receive(n.pulse.now(), from.Addr(), &m.Header)
	a.Payload.Hold()
	if in.core.Crowded() {
		n.sharers.seekOwner(from.Addr())
	}
	if a.Abandoned != nil {
		given = a.Abandoned.Tag.(*execution)
		given.giveUp()
	}
	if a.Verdict != direct.Run {
		return a, nil, given
	}
	e = &execution{node: n, export: x, entry: a.Entry, call: *m, from: from, lineage: line}
	e.trunk.e = e
	if m.Timeout != 0 {
		e.deadline = time.Now().Add(duration.Times(int64(m.Timeout), time.Millisecond))
	}
	a.Entry.Tag = e
	return a, e, given
}

// takeVolatile takes a new call of policy none. It returns the execution that the goroutine is to run, or nil.
func (n *Node) takeVolatile(x *export, r *reader, i int, e *execution) *execution {
	n.reports.takeUp(e)
	switch {
	case x.pool.isClosed():
		x.turnAway(e)
		return nil
	case x.manager != nil && x.pool.heldBy(e.serial):
		x.refuseWaiting(e, "the service runs a call that waits for this one")
		return nil
	case e.call.Flags&rpcpacket.FlagMore != 0:
		return x.acceptLarge(e, len(r.messages[i].Buf))
	}
	e.buffer = r.take(i)
	return x.accept(e)
}

// receipt registers the receipt of a one-way of policy none, and returns it; nil for
// other calls.
func (x *export) receipt(e *execution) []byte {
	if !e.receipted() {
		return nil
	}
	h := x.node.ports.answerHeader(&e.call)
	h.Flags |= rpcpacket.FlagDone
	b := (&rpcpacket.Message{Header: h}).Append(nil)
	x.node.in.mu.Lock()
	defer x.node.in.mu.Unlock()
	x.node.in.core.Answer(e.entry, b)
	x.node.regions.received(&e.call)
	return b
}

// finish ends a call of policy none, whose answer has this payload, if it is so large that reply is only the first packet. Reply
// is nil for a one-way, which has its receipt.
func (x *export) finish(e *execution, reply []byte, payload *sent.Payload) {
	x.node.reports.end(e, codeIn(reply))
	x.node.in.mu.Lock()
	defer x.node.in.mu.Unlock()
	x.node.in.core.Finish(e.entry, reply, payload)
}

// forget undoes a call that has not run.
func (in *incoming) forget(e *execution) {
	e.node.reports.leave(e.call.Call)
	in.mu.Lock()
	defer in.mu.Unlock()
	in.core.Forget(e.entry)
}

// payload is what is kept of a large answer. Whoever gets it releases it.
func (in *incoming) payload(from netip.Addr, id rpcpacket.ID) *sent.Payload {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.core.Payload(from, id).Hold()
}

// settle forgets a large answer that its caller has.
func (in *incoming) settle(from netip.Addr, id rpcpacket.ID) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.core.Settle(from, id)
}

// replyVolatile sends the answer to a call of policy none, and then keeps it. Until then a copy of the call counts as one of a
// running call, which is dropped, so no time is lost before the answer is on its way. One that hands regions over is kept before: the node's account has
// them until it is.
func (x *export) replyVolatile(e *execution, datagram []byte) {
	e.out[0].Buf, e.out[0].Remote = datagram, e.from
	if e.returns {
		x.finish(e, slices.Clone(datagram), nil)
		x.node.memory.Gave(x.node.regions.results(datagram)...)
	}
	_, _ = x.node.ports.rpc.WriteBatch(e.out[:]) // a failure is a loss: the caller asks again
	if !e.returns {
		x.finish(e, slices.Clone(datagram), nil)
	}
}
