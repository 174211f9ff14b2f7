package rpc

import (
	"context"
	"net/netip"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// An execution, or a durable main, may give an exactly-once call up: its context ends. It acts on that only when it has the
// callee's word: the callee's ledger has the call, which therefore runs to its end, once, or has its answer. Without that
// word a call whose copies are all lost would never run, though its caller has made it.
//
//	caller ── CALL, given up ──▶ callee ── begun ──▶ ledger
//	caller ◀── ACK, given up ───── settled ◀──────────┘      or REPLY, which is the call's answer
//
// Plain clients, and handlers of policy none, get no such word: nobody runs them again, and they keep their deadlines.

// giveUp waits for the callee's word, and returns why the call is given up. It returns nil if the call is answered
// instead. On error the pending call is no longer the caller's. A main whose context has ended does not wait: nothing that
// it does now counts.
func (c *client) giveUp(ctx context.Context, o *operation, p *pending, m *method) error {
	n, why := c.node, o.expired
	if why == nil {
		why = fault.FromContext(m.op, ctx.Err())
	}
	within := o.b.e.journal.within
	if within == nil {
		within = context.WithoutCancel(ctx) // the end of the node answers the call
	}
	n.askBegun(p)
	answered := n.await(within, p)
	if !answered && !n.end(p) {
		<-p.ready // answered at the last moment
		answered = true
	}
	if answered && !p.begun {
		return nil
	}
	n.release(p)
	return why
}

// askBegun marks a call as given up, and sends a copy at once.
func (n *Node) askBegun(p *pending) {
	o := &n.out
	o.mu.Lock()
	if o.core.Out(p.ID) != &p.Call {
		o.mu.Unlock() // answered at the last moment
		return
	}
	p.givenUp = true
	rpcpacket.SetGivenUp(p.datagram)
	again := p.again(n.now())
	o.mu.Unlock()
	_, _ = n.connOf(p).WriteBatch([]netio.Message{again}) // a failure is a loss: it is sent again
}

// hasBegun takes a callee's word that its ledger has a call which is given up.
func (n *Node) hasBegun(from netip.Addr, m *rpcpacket.Message) {
	o := &n.out
	o.mu.Lock()
	defer o.mu.Unlock()
	call := o.core.Out(m.Call)
	if call == nil || call.Node != from.As16() || !call.Tag.(*pending).givenUp {
		n.stats.duplicates.Add(1)
		return
	}
	p := call.Tag.(*pending)
	n.endNow(p)
	p.begun = true
	p.ready <- struct{}{} // it has room
	n.interrupt()         // whoever waits may be reading
}

// tellBegun tells the caller of a call, which gives it up, that the call has begun, when the ledger has that. If the call's
// time is over, and its handler has not begun, the call ends instead. Of e nothing is known if an earlier incarnation has begun it.
func (n *Node) tellBegun(from netip.AddrPort, m *rpcpacket.Message, e *execution) {
	if e != nil && !e.begins(isOver(m)) {
		return
	}
	l := n.ledger
	l.mu.Lock()
	known := l.table.State().Execution(m.Call) != nil
	l.mu.Unlock()
	if !known {
		return // it has not come whole, or there is no room for it: it will be sent again
	}
	h := n.answerHeader(m)
	h.Type, h.Flags = rpcpacket.Ack, rpcpacket.FlagGivenUp.WithPolicy(h.Flags.Policy())
	n.sendSettled([]netio.Message{{
		Buf: (&rpcpacket.Message{Header: h}).Append(nil), Remote: netip.AddrPortFrom(from.Addr(), rackaddr.PortDirect),
	}})
}

// tooLate is why a call ends whose handler does not run.
const tooLate = "the deadline passed before the handler began"

// isOver reports whether a copy of a call says that no time is left.
func isOver(m *rpcpacket.Message) bool { return m.Timeout == 1 }

// begins writes down that an execution has begun which its caller gives up, if it is not known yet, so that its handler
// runs. One that is over, and waits for its turn, ends instead. It reports false if the handler does not run.
func (e *execution) begins(over bool) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.expired:
		return false
	case !e.accepted || e.promised:
		return true
	case over && !e.recorded.begun && e.export.pool.withdraw(e):
		e.expired = true
		go e.export.endUnbegun(e, Deadline, tooLate)
		return false
	}
	e.promised = e.recorded.begun || e.write(e.unwritten(nil)...)
	return true
}

// shed reports whether an execution ends whose time is over before its handler begins: not if its caller is told that it has begun.
func (e *execution) shed() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.expired = !e.promised
	return e.expired
}

// sentBefore reports whether a former run of the execution has sent the call that an operation makes now, and no node has
// refused it.
func (o *operation) sentBefore(policy Policy) bool {
	e := o.b.e
	if policy == PolicyNone || !e.resumed {
		return false
	}
	key, err := e.key()
	if err != nil {
		return false
	}
	id, _ := endpoint.Child(key, policy, e.call.Call, o.at.branch, o.at.index)
	return e.bound(id).IsValid()
}
