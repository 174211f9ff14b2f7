package rpc

import (
	"net/netip"
	"slices"
	"sync"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/direct"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
	"github.com/bifrost-rack/bifrost/rpc/record"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
	"github.com/bifrost-rack/bifrost/rpc/trailer"
)

// An execution of a direct call that needs the Gatekeeper, because it is about to use
// distributed memory, to call a service with state, or to answer with pointers, is handed
// over: the ledger says so, and then the Gatekeeper logs its call as one that runs here. From
// then on it is as one that the Gatekeeper has delivered; copies of its call are passed on.
//
//	begun, journal, handed settled ─▶ ENLIST ─▶ logged ─▶ acknowledged ─▶ goes on, held

// enlistPlace is where in an execution no operation is: that of its enlistment.
const enlistPlace = 1<<32 - 1

// enlist hands an execution over to the Gatekeeper, unless that decides about it already.
// The error says that the node has ended.
func (e *execution) enlist() error {
	if !e.direct.Load() {
		return nil
	}
	e.enlisting <- struct{}{}
	defer func() { <-e.enlisting }()
	if !e.direct.Load() {
		return nil
	}
	n, l := e.node, e.node.ledger
	e.promote()
	l.mu.Lock()
	l.table.Asks(e.call.Call)
	l.mu.Unlock()
	defer l.asked(e.call.Call)
	e.mu.Lock()
	last := l.write(append(e.unwritten(nil), &record.Handed{Execution: e.call.Call})...)
	e.mu.Unlock()
	l.mu.Lock()
	l.leave(e.call.Call)
	l.mu.Unlock()
	if !l.settle(last) {
		return n.whyEnded()
	}
	n.stats.enlisted.Add(1)
	n.in.mu.Lock() // before it is logged: another Gatekeeper may deliver it as soon as it is
	e.entry = n.in.core.Adopt(e.call.Call)
	e.entry.Tag = e
	n.in.mu.Unlock()
	if err := n.tellEnlisted(e.from.Addr(), &e.call, true); err != nil {
		return err
	}
	e.call.Flags |= rpcpacket.FlagHeld | rpcpacket.FlagEnlist
	e.direct.Store(false)
	return nil
}

// whyEnded is why the node can do nothing any more.
func (n *Node) whyEnded() error {
	if err := n.failure(); err != nil {
		return err
	}
	return fault.New(Unavailable, "node "+n.self.Name, "the node has ended")
}

// enlists numbers the messages that hand executions over, so that the Gatekeeper can tell
// late copies of them.
type enlists struct {
	mu   sync.Mutex
	last uint64
	open map[uint64]bool // those that are not acknowledged
}

// begin returns the number of the next message.
func (l *enlists) begin() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open == nil {
		l.open = map[uint64]bool{}
	}
	l.last++
	l.open[l.last] = true
	return l.last
}

func (l *enlists) end(number uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.open, number)
}

// floor is the number below which all are acknowledged.
func (l *enlists) floor() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	floor := l.last + 1
	for n := range l.open {
		floor = min(floor, n)
	}
	return floor
}

// enlistment is the message that has the Gatekeeper decide about a direct call of a node: its
// payload is the caller's address (16 bytes), 1 if the call runs here or 0 (1), and the CALL.
// The CALL's trailer is left out; the message's parent is the execution that the Gatekeeper
// knows of which the call was made, as far as that is known. The header's order is the message's number, 0 for a copy that
// nobody waits for.
func (n *Node) enlistment(caller netip.Addr, call *rpcpacket.Message, runs bool, number uint64) []byte {
	h := rpcpacket.Header{
		Type: rpcpacket.Call, Flags: (rpcpacket.FlagHeld | rpcpacket.FlagEnlist).WithPolicy(PolicyRecover), CallerIncarnation: n.self.Incarnation,
		Call: endpoint.ChildID(nil, call.Call, enlistPlace, enlistPlace), Service: call.Service, Order: number, Floor: n.enlists.floor(),
	}
	if len(call.Trailer) == len(h.Parent) {
		h.Parent = rpcpacket.ID(call.Trailer)
	}
	a := caller.As16()
	payload := append(a[:], 0)
	if runs {
		payload[len(a)] = 1
	}
	inner := rpcpacket.Message{Header: call.Header, Payload: call.Payload}
	inner.Flags |= rpcpacket.FlagHeld | rpcpacket.FlagEnlist
	inner.Attempt, inner.Order, inner.Floor = 0, 0, 0
	return (&rpcpacket.Message{Header: h, Payload: inner.Append(payload)}).Append(nil)
}

// tellEnlisted sends an enlistment until the Gatekeeper has logged it.
func (n *Node) tellEnlisted(caller netip.Addr, call *rpcpacket.Message, runs bool) error {
	number := n.enlists.begin()
	defer n.enlists.end(number)
	datagram := n.enlistment(caller, call, runs, number)
	p := n.out.pendings.Get().(*pending)
	p.RTT, p.Logged, p.to = &n.enlistRTT, true, netio.Message{Remote: gatekeeperRPC}
	p.datagram = slices.Clone(datagram)
	o := &n.out
	o.mu.Lock()
	err := o.err
	if err == nil && !o.core.BeginAs(n.now(), &p.Call, rpcpacket.ID(datagram[24:40])) {
		err = fault.New(Internal, "enlist", "call %s is being handed over", call.Call)
	}
	if err == nil {
		n.wakeAt(p.Due())
	}
	o.mu.Unlock()
	if err != nil {
		n.release(p)
		return err
	}
	n.send(gatekeeperRPC, p.datagram)
	if !n.await(n.base, p) {
		n.end(p)
		return n.whyEnded() // p is the core's to forget
	}
	defer n.release(p)
	switch {
	case p.err != nil:
		return p.err
	case p.answer.Type == rpcpacket.Exception:
		n.log.Error("rpc: the Gatekeeper refuses an execution", "call", call.Call.String(), "why", string(p.answer.Payload))
		return fault.Remote(p.answer.Code, "enlist", "%s", p.answer.Payload)
	}
	return nil
}

// askedToEnlist takes the Gatekeeper's word that a call of an execution is answered with
// pointers: the execution has to be enlisted first, or nobody would own what they point to. If
// nobody waits for the call any more, the Gatekeeper is told so.
func (n *Node) askedToEnlist(call, parent rpcpacket.ID) {
	l := n.ledger
	n.out.mu.Lock()
	var waits *execution
	if k := n.out.core.Out(call); k != nil {
		waits = k.Tag.(*pending).of
	}
	n.out.mu.Unlock()
	l.mu.Lock()
	e := l.table.State().Execution(parent)
	over := e == nil || e.Done != nil
	l.mu.Unlock()
	switch {
	case waits != nil:
		go func() { _ = waits.enlist() }() // it fails if the node has ended
	case over:
		n.sendSettled(n.appendForgets(nil, rackaddr.Gatekeeper, []direct.Item{{ID: call}}))
	}
}

// handedBefore makes an execution whose call the Gatekeeper delivers go on from what it did
// while it was direct.
func (n *Node) handedBefore(e *execution) {
	if !n.goesDirect() {
		return
	}
	l := n.ledger
	l.mu.Lock()
	known := l.table.State().Execution(e.call.Call)
	l.mu.Unlock()
	if known == nil || !known.Handed {
		return
	}
	e.remember(known)
	b := slices.Clone(known.Journal)
	if replays(&e.call.Header) && !trailer.IsSpilled(e.call.Trailer) {
		b = append(b, e.call.Trailer...)
	}
	j, err := newJournal(b)
	if err != nil {
		n.log.Error("rpc: the ledger's journal of a call is not the Gatekeeper's", "call", e.call.Call.String(), "err", err)
		return
	}
	e.journal = j
}
