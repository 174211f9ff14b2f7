package rpc

import (
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/rpc/bulk"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
	"github.com/bifrost-rack/bifrost/rpc/internal/sent"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// incoming is the called side of a node, for all of its services.
type incoming struct {
	mu   sync.Mutex
	core *endpoint.Callee
}

// receive takes the i-th datagram that an export's endpoint has received, a call of policy none. It
// returns the execution of a call that the goroutine is to run, or nil.
func (x *export) receive(r *reader, i int) *execution {
	n := x.node
	from := r.messages[i].Remote
	m, err := rpcpacket.Parse(r.messages[i].Buf)
	if err != nil || m.Type != rpcpacket.Call && m.Type != rpcpacket.Oneway || m.Service != x.hash {
		n.malformed(from.Addr())
		return nil
	}
	a, e := x.decide(from, &m)
	switch a.Verdict {
	case endpoint.Run:
		if m.Flags&rpcpacket.FlagMore != 0 {
			return x.acceptLarge(e, len(r.messages[i].Buf))
		}
		e.buffer = r.take(i)
		return x.accept(e)
	case endpoint.Resend:
		n.stats.resent.Add(1)
		n.send(from, a.Reply)
	case endpoint.Duplicate, endpoint.Late:
		n.stats.duplicates.Add(1)
	case endpoint.Gone:
		x.refuse(from, &m, Unavailable, "the service has been restarted since, the call may have run before")
	case endpoint.Lost:
		x.refuse(from, &m, Unavailable, "the call has run, its answer is no longer kept")
	case endpoint.Malformed:
		n.malformed(from.Addr())
	case endpoint.Stale:
		n.stats.stale.Add(1)
	default:
		n.stats.full.Add(1)
	}
	return nil
}

// decide asks the core, and makes the execution of a call to run.
func (x *export) decide(from netip.AddrPort, m *rpcpacket.Message) (endpoint.Arrival, *execution) {
	n := x.node
	n.in.mu.Lock()
	defer n.in.mu.Unlock()
	a := n.in.core.Receive(n.now(), x.since, from.Addr(), m)
	for _, entry := range a.Abandoned {
		e := entry.Tag.(*execution)
		e.giveUp()
		n.large.cancel(bulk.Key{Peer: e.from.Addr(), Call: entry.ID})
	}
	if a.Verdict != endpoint.Run {
		return a, nil
	}
	e := &execution{node: n, export: x, entry: a.Entry, call: *m, from: from}
	e.trunk.e = e
	e.lineage, _ = lineageIn(m.Trailer) // a stranger's trailer that is none names nobody
	if m.Timeout != 0 {
		e.deadline = time.Now().Add(time.Duration(m.Timeout) * time.Millisecond)
	}
	a.Entry.Tag = e
	return a, e
}

// acceptLarge begins to fetch the rest of a new call of so many bytes so far. It
// returns the execution that the goroutine is to run, if any.
func (x *export) acceptLarge(e *execution, size int) *execution {
	m := e.call
	e.call.Payload, e.call.Trailer = nil, slices.Clone(m.Trailer) // the buffer is the reader's
	t, v := x.node.beginLarge(e.from.Addr(), &m, false, size, e)
	switch v {
	case bulk.Taken:
	case bulk.Whole:
		return x.wholeCall(e, t)
	case bulk.TooLong:
		o, _ := m.Opening()
		why := x.node.large.tooLong("a message", o.Total)
		if e.journal != nil {
			go x.answerException(e, BadRequest, why) // it waits for the ledger
		} else {
			x.answerException(e, BadRequest, why)
		}
	case bulk.Malformed:
		x.node.malformed(e.from.Addr())
		x.forget(e)
	default:
		x.drop(e)
	}
	return nil
}

// wholeCall goes on with a call that has come whole. It returns the execution that the
// goroutine is to run, if any.
func (x *export) wholeCall(e *execution, t *bulk.Transfer) *execution {
	e.call.Flags &^= rpcpacket.FlagMore
	e.call.Payload, e.claim = t.Body(), t.Size()
	return x.accept(e)
}

// receipt registers the receipt of a one-way of policy none, and returns it; nil for
// other calls.
func (x *export) receipt(e *execution) []byte {
	if !e.receipted() {
		return nil
	}
	h := x.node.answerHeader(&e.call)
	h.Flags |= rpcpacket.FlagDone
	b := (&rpcpacket.Message{Header: h}).Append(nil)
	x.node.in.mu.Lock()
	defer x.node.in.mu.Unlock()
	x.node.in.core.Answer(e.entry, b)
	return b
}

// accept finds a slot for a new call. It returns the execution that the goroutine is to run, if any. Of a one-way it
// tells the caller's runtime that it need not be sent again.
func (x *export) accept(e *execution) (run *execution) {
	x.accepting.Lock()
	defer x.accepting.Unlock()
	to, receipt := e.from, x.receipt(e) // a call that waits may be over before it is acknowledged
	var reply []byte
	if e.call.Type == rpcpacket.Oneway && e.journal != nil {
		reply = x.node.accepts(&e.call)
	}
	e.queued = x.node.now()
	switch x.pool.admit(e) {
	case begun:
		run = e
	case refused:
		x.turnAway(e)
		return nil
	default: // waiting: it runs in its turn
		x.watchWaits()
	}
	if e.journal != nil {
		e.mu.Lock()
		e.accepted = true
		e.mu.Unlock()
	}
	switch {
	case receipt != nil:
		x.node.send(to, receipt)
	case e.givenUp:
		x.node.tellBegun(to, &e.call, e)
	case reply != nil:
		x.beginOneway(e, reply)
	}
	return run
}

// drop forgets a call that there is no room for; it will come again.
func (x *export) drop(e *execution) {
	x.node.stats.full.Add(1)
	x.forget(e)
}

// forget undoes a call that has not run.
func (x *export) forget(e *execution) {
	defer e.freeBuffer()
	if e.journal != nil {
		l := x.node.ledger
		l.mu.Lock()
		defer l.mu.Unlock()
		l.table.Drop(e.call.Call)
		l.leave(e.call.Call)
		l.release(e)
		return
	}
	x.node.in.mu.Lock()
	defer x.node.in.mu.Unlock()
	x.node.in.core.Forget(e.entry)
}

// turnAway refuses a call of policy none for which there is no room, or no time any more. A
// one-way, whose caller has nobody to tell, is forgotten instead, as is an exactly-once call: it will be sent again.
func (x *export) turnAway(e *execution) {
	if e.receipted() || e.journal != nil {
		x.drop(e)
		return
	}
	defer e.freeBuffer()
	if x.node.failure() != nil {
		x.answerException(e, Unavailable, "the node is closing")
		return
	}
	x.answerException(e, Overloaded, "all workers are busy and the queue is full")
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

// send puts one message on the wire; a failure is a loss like any other.
func (n *Node) send(to netip.AddrPort, datagram []byte) {
	_, _ = n.conn.WriteBatch([]netio.Message{{Buf: datagram, Remote: to}})
}

// refuse answers a call that is not run, without remembering it: the core knows
// the call already.
func (x *export) refuse(to netip.AddrPort, call *rpcpacket.Message, code Code, why string) {
	x.node.stats.refused.Add(1)
	x.node.stats.blame.Add(to.Addr(), code.String())
	x.node.send(to, x.node.exception(call, code, why, false))
}

// exception makes a system exception in answer to a call, which did not begin if it is
// unbegun.
func (n *Node) exception(call *rpcpacket.Message, code Code, why string, unbegun bool) []byte {
	h := n.answerHeader(call)
	h.Type, h.Code = rpcpacket.Exception, code
	if unbegun {
		h.Flags |= rpcpacket.FlagUnbegun
	}
	why = why[:min(len(why), maxMessage, n.budget-rpcpacket.HeaderSize)]
	m := rpcpacket.Message{Header: h, Payload: []byte(strings.ToValidUTF8(why, ""))}
	return m.Append(nil)
}

// answerHeader is the header of an answer to a call. The answer to a call that
// was held is held, so that the leases end that the call began.
func (n *Node) answerHeader(call *rpcpacket.Message) rpcpacket.Header {
	h := call.Header
	h.Type, h.Timeout, h.Code = rpcpacket.Reply, 0, OK
	if h.Flags.Policy() == PolicyNone {
		h.Attempt = 0 // it told the call's age
	}
	h.CalleeIncarnation = n.self.Incarnation
	h.Flags = (h.Flags & rpcpacket.FlagSession).WithPolicy(call.Flags.Policy())
	if call.Flags&rpcpacket.FlagHeld != 0 || len(call.Pointers) > 0 && call.Type == rpcpacket.Call {
		h.Flags |= rpcpacket.FlagHeld
	}
	return h
}
