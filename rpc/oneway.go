package rpc

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/direct"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
	"github.com/bifrost-rack/bifrost/rpc/internal/sent"
	"github.com/bifrost-rack/bifrost/rpc/record"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// One-ways that executions and mains send are part of their commit: done, or the next checkpoint, has
// them whole, and they leave when it is settled (package direct, oneways.go).
//
//	Client.Call ─▶ execution.oneways ── done, checkpoint ──▶ ledger, settled ─▶ ONEWAY to the receiver's node
//
// A one-way with pointers hands regions over. The switch holds it, and what its receiver says of it, for the Gatekeeper to
// move control (regions.go). So an execution has what its one-ways hand over until its end, and the Gatekeeper hears what
// becomes of the execution's regions when they are delivered. A durable main has it until its next checkpoint, and is over
// when its one-ways with pointers are delivered.

// maxOwing is how many bytes of one-ways an execution sends at most: they are in one record.
const maxOwing = 32 << 20

// owe keeps a one-way until its execution is done. It is for the node that takes calls of the method now.
func (c *client) owe(o *operation, p *pending, to netip.Addr, m *method, codec *codec, h rpcpacket.Header, id rpcpacket.ID, proof endpoint.Proof) error {
	e := o.b.e
	h.Call = id
	size := codec.size()
	e.mu.Lock()
	e.owing += size
	all := e.owing
	e.mu.Unlock()
	if all > maxOwing || all > c.node.budget && !e.reserveOneway(size) {
		return fault.New(NoSpace, m.op, "no room for a one-way of %d bytes: the node's ledger needs room for it, and an execution sends %d bytes of one-ways at most", size, maxOwing)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	codec.trailer = originOf(o, proof).append(nil)
	e.oneways = append(e.oneways, record.Oneway{
		ID: id, Node: to.As16(), Service: []byte(c.service), Method: []byte(m.name), Message: slices.Clone(codec.datagram(&h)),
	})
	e.gives(codec.pointers)
	p.kept = true
	return nil
}

// reserveOneway keeps room in the ledger for a one-way until the execution is done. It waits for a
// while, and reports whether there is room.
func (e *execution) reserveOneway(size int) bool {
	l := e.node.ledger
	if !l.reserve(e, roomOf(size)) {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	kept := min(e.reserved, roomOf(size)) // less if the execution is done meanwhile
	e.reserved, e.kept = e.reserved-kept, e.kept+kept
	return true
}

// putInPlace gives the one-ways of a commit that is about to be written their place among those of the
// node. The caller holds l.mu.
func (l *ledger) putInPlace(all []record.Oneway) {
	place := l.table.Place()
	for i := range all {
		all[i].Place = place
	}
}

// mayLeave returns the one-ways that leave now that an execution's may. The caller holds l.mu.
func (l *ledger) mayLeave(id rpcpacket.ID) []record.Oneway {
	l.table.Leave(id)
	return l.table.Next()
}

// sendOneways sends one-ways that the ledger has, until they are acknowledged.
func (n *Node) sendOneways(all []record.Oneway) {
	for i := range all {
		n.sendOneway(&all[i])
	}
}

func (n *Node) sendOneway(w *record.Oneway) {
	m, err := rpcpacket.Parse(w.Message)
	if err != nil {
		n.log.Error("rpc: the ledger has a one-way that is no message", "call", w.ID.String(), "err", err)
		return
	}
	o, node := &n.out, netip.AddrFrom16(w.Node)
	p := o.pendings.Get().(*pending)
	p.RTT, p.straight, p.detached, p.owed, p.Node = &n.onewayRTT, true, true, true, w.Node
	hands := len(m.Pointers) > 0
	p.lends, p.Released, p.Held = hands, hands, hands
	conn, port := n.connOf(p), uint16(rackaddr.PortDirect)
	if hands {
		port = rackaddr.PortRPC
	}
	p.to = netio.Message{Remote: netip.AddrPortFrom(node, port)}
	p.moves = control.Serving{Service: string(w.Service), Method: string(w.Method)}
	o.mu.Lock()
	if o.err != nil || !o.core.BeginIn(n.now(), &p.Call, w.ID) {
		o.mu.Unlock() // the node has ended, or it is on its way
		n.release(p)
		return
	}
	m.Order, m.Floor, m.CallerIncarnation = p.Lane(), p.Floor, n.self.Incarnation
	p.datagram = m.Append(nil)
	if len(p.datagram) > n.budget {
		m.Trailer = appendArguments(m.Trailer, &m)
		whole := m.Append(nil)
		if !hands { // else the Gatekeeper may refuse it: its receiver asks for all of the rest
			p.pushed = serviceHash(node)
		}
		p.datagram, _ = rpcpacket.First(whole, n.budget, p.pushed, 0) // its pointers leave room: see checkPointers
		p.payload = sent.New(nil, m.Payload)
	}
	out := p.outbound
	out.payload.Hold() // for who sends it
	n.wakeAt(p.Due())
	n.stats.calls.Add(1)
	n.stats.onewaysSent.Add(1)
	o.mu.Unlock()
	first := netio.Message{Buf: out.datagram, Remote: netip.AddrPortFrom(node, port)}
	if out.payload != nil {
		_ = n.sendLarge(conn, first, out.payload, false, out.pushed) // a failure is a loss
		return
	}
	_, _ = conn.WriteBatch([]netio.Message{first}) // likewise
}

// departed is a one-way that the ledger has, and that has left.
type departed struct {
	direct.Item
	node  [16]byte        // that it went to
	may   control.Serving // who may take it
	owner rpcpacket.ID    // the execution that has sent it
	hands [][16]byte      // the regions that it hands over
}

// onewayAnswered takes what has become of a one-way that the ledger has. It reports false if the
// one-way has failed for good.
func (n *Node) onewayAnswered(p *pending, m *rpcpacket.Message) bool {
	w := departed{Item: direct.Item{ID: p.ID, Lane: p.Lane(), Number: p.Floor}, node: p.Node, may: p.moves}
	if p.lends && m.Type == rpcpacket.Exception {
		if sent, err := rpcpacket.Parse(p.datagram); err == nil {
			w.owner = sent.Parent
			for _, region := range sent.Pointers {
				w.hands = append(w.hands, region)
			}
		}
	}
	switch {
	case m.Type != rpcpacket.Exception:
		n.delivered(w)
	case m.Refuses(), p.lends && m.Code == Overloaded: // by the Gatekeeper: there is no record of it
		go n.redirect(w)
		return true
	case len(w.hands) > 0:
		go n.undelivered(w)
	default:
		n.delivered(w)
	}
	return m.Type != rpcpacket.Exception
}

// delivered notes that a one-way is not to be sent any more, and sends those that have waited for it.
func (n *Node) delivered(w departed) {
	l := n.ledger
	l.mu.Lock()
	l.add(l.table.Delivered(w.node, w.Item)...)
	l.tookAll()
	next := l.table.Next()
	l.mu.Unlock()
	n.sendOneways(next)
}

// awaitTaken waits until nothing of a durable main is handed over any more: when the Gatekeeper hears that the main is over, it
// frees what the main's node controls still.
func (l *ledger) awaitTaken(ctx context.Context, main rpcpacket.ID) error {
	l.mu.Lock()
	if !l.table.Hands(main) {
		l.mu.Unlock()
		return nil
	}
	taken := make(chan struct{})
	if l.hands == nil {
		l.hands = map[rpcpacket.ID]chan struct{}{}
	}
	l.hands[main] = taken
	l.mu.Unlock()
	return l.await(ctx, taken)
}

// tookAll lets the durable mains go on whose regions have been taken. The caller holds l.mu.
func (l *ledger) tookAll() {
	for main, taken := range l.hands {
		if !l.table.Hands(main) {
			close(taken)
			delete(l.hands, main)
		}
	}
}

// undelivered notes that nobody takes a one-way. What it was to hand over goes first: its execution does not know it any
// more.
func (n *Node) undelivered(w departed) {
	if len(w.hands) > 0 {
		k := &commit{id: w.owner, owed: record.Owed{Frees: w.hands}}
		for len(n.tellEnded([]*commit{k})) > 0 {
			select {
			case <-time.After(regionsAgain):
			case <-n.base.Done():
				return // the next incarnation sends it again
			}
		}
	}
	n.delivered(w)
}

// redirect chooses another node for a one-way whose node has refused it for good, or has left
// without it. It goes on until there is one, unless nobody serves the one-way any more.
func (n *Node) redirect(w departed) {
	n.servers.refuse(w.may, netip.AddrFrom16(w.node), n.now())
	for n.base.Err() == nil {
		to, err := n.findServer(n.base, w.may)
		if err == nil {
			n.sendTo(w, to)
			return
		}
		if _, err := n.session.Service(n.base, w.may.Service); fault.CodeOf(err) == fault.NotFound {
			n.log.Warn("rpc: nobody serves a one-way any more", "node", n.self.Name, "call", w.ID.String(), "service", w.may.Service)
			w.Item = direct.Item{ID: w.ID}
			n.undelivered(w)
			return
		}
		select {
		case <-time.After(servingLifetime):
		case <-n.base.Done():
		}
	}
}

// sendTo sends a one-way to a node, which may be the one that has refused it.
func (n *Node) sendTo(w departed, to netip.Addr) {
	l := n.ledger
	l.mu.Lock()
	if to.As16() == w.node {
		l.table.Again(w.node, w.ID)
	} else {
		l.add(l.table.Moves(w.node, w.ID, to.As16())...)
	}
	last, next := l.last, l.table.Next()
	l.mu.Unlock()
	if l.settle(last) {
		n.sendOneways(next)
	}
}

// A direct one-way is acknowledged when the receiver's ledger has it, so that its sender need not
// wait for its turn: the receiver writes begun when it accepts the one-way, not when it must.
//
//	sender ── ONEWAY ──▶ accepted ── begun ──▶ ledger
//	sender ◀── REPLY ──────── settled ◀──────────┘       copies are answered alike
//
// One that is refused before that is answered with an exception. Both are held if it has pointers: the Gatekeeper then
// knows whose the regions are.

// accepts is the acknowledgement of a one-way.
func (n *Node) accepts(m *rpcpacket.Message) []byte {
	return (&rpcpacket.Message{Header: n.answerHeader(m)}).Append(nil)
}

// beginOneway writes down that a direct one-way has begun, which it may not have yet, and then
// acknowledges it; not if it has ended meanwhile, or is run again. The reply is the acknowledgement.
func (x *export) beginOneway(e *execution, reply []byte) {
	e.mu.Lock()
	if e.recorded.begun {
		e.mu.Unlock()
		return
	}
	e.told = e.write(e.unwritten(nil)...)
	told := e.told
	e.mu.Unlock()
	if told {
		x.node.whenSettled(e.from, reply)
	}
}

// whenSettled sends an answer when all records so far are settled.
func (n *Node) whenSettled(to netip.AddrPort, reply []byte) {
	last, settled := n.ledger.unsettled()
	if settled {
		n.send(to, reply)
		return
	}
	go func() {
		if n.ledger.settle(last) {
			n.send(to, reply)
		}
	}()
}
