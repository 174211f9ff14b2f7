package rpc

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/direct"
	"github.com/bifrost-rack/bifrost/rpc/record"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// A call of a former incarnation may be open in the switch: its callee reads what it was lent, and what its answer hands over is nobody's yet.
// Nobody waits for that answer, so the node asks for it, from the moment that it has joined:
//
//	Gatekeeper ── holdings: slots that are open, regions ──▶ node
//	node ── ASK slot, number ──▶ callee
//	node ◀── the call's answer, or: it never began ──┘      the slot is closed
//
// What was called again would be lent twice. So a re-run makes a call again, and memory takes back what an execution did, when the
// questions about the execution's calls are answered. One-ways to a node leave again when it is known what has become of those before.

// heldCall is a call of a former incarnation.
type heldCall struct {
	held   record.Call // its place, and whom it was sent to
	oneway bool
	over   chan struct{}     // closed when it is answered
	answer rpcpacket.Message // of which only the header and the regions count; valid then
}

// isOver reports whether it is known what has become of the call.
func (q *heldCall) isOver() bool {
	select {
	case <-q.over:
		return true
	default:
		return false
	}
}

// questions are those that a node has begun with. They do not change.
type questions struct {
	out  *outgoing
	life *lifetime

	all []*heldCall
	of  map[rpcpacket.ID]*heldCall // by the calls that the ledger has
}

// begin finds out which questions there are about the slots that a node's row has in the switch: what is open, and what became of one-ways.
func (qs *questions) begin(slots []control.HeldSlot, t *direct.Table) {
	type place struct {
		rpcpacket.Slot
		rpcpacket.Number
	}
	attempts := map[place]record.Call{}
	t.Attempts(func(_ *record.Execution, k record.Call) { attempts[place{k.Slot, k.Number}] = k })
	qs.of = map[rpcpacket.ID]*heldCall{}
	for i := range slots {
		s := &slots[i]
		attempt, known := attempts[place{rpcpacket.Slot(s.Slot), rpcpacket.Number(s.Number)}]
		if s.Place != 0 || s.State != control.SlotOpen && (s.State != control.SlotClosed || !s.Given && (!known || attempt.Incarnation != 0)) {
			continue
		}
		k := record.Call{Slot: rpcpacket.Slot(s.Slot), Number: rpcpacket.Number(s.Number), Node: s.Callee.As16(), Slots: 1}
		for _, o := range slots[i+1:] {
			if o.Number != s.Number || o.Slot != s.Slot+uint32(k.Slots) || o.Place != k.Slots {
				break
			}
			k.Slots++
		}
		q := &heldCall{held: k, oneway: s.Given, over: make(chan struct{})}
		if known {
			q.held.ID, q.held.Incarnation = attempt.ID, attempt.Incarnation
			qs.of[attempt.ID] = q
		}
		qs.all = append(qs.all, q)
	}
}

// ask sends the questions.
func (qs *questions) ask() {
	for _, q := range qs.all {
		qs.out.ask(q)
	}
	qs.out.leader.standIn() // for the answers
}

// heardOf takes the answer to a question.
func (n *Node) heardOf(q *heldCall, m *rpcpacket.Message) {
	q.answer = rpcpacket.Message{Header: m.Header, Lists: m.Lists}
	if q.oneway {
		w := departed{Item: direct.Item{ID: m.Call, Slot: q.held.Slot, Number: q.held.Number}, node: q.held.Node, slots: int(q.held.Slots)}
		if m.Type == rpcpacket.Reply {
			n.oneways.delivered(w)
		} else {
			n.oneways.onRecord(w, 0)
		}
	}
	if n.questions.of[m.Call] != q || q.held.Incarnation != 0 { // no execution asks for it again: what is made again of policy none is a new call
		n.freeUnheard(m)
		q.answer.Lists = nil
	}
	close(q.over)
	n.ledger.forgets.hurry(n)
}

// awaitOf waits until it is known what has become of a call that an execution makes again, which gives its worker's slot back meanwhile. The end of
// the call's context does not end the wait: a former run has sent the call, which this run gives up as it would have. It reports false if the node ends.
func (qs *questions) awaitOf(ctx context.Context, b *opSequence, id rpcpacket.ID) bool {
	within := b.e.journal.within
	if within == nil {
		within = context.WithoutCancel(ctx)
	}
	b.e.yield()
	defer b.e.resume()
	for q := qs.of[id]; q == nil || qs.life.await(within, q.over) == nil; {
		if !qs.unheard(id) {
			return true
		}
		select {
		case <-time.After(heardAgain): // a former run of a main has it out
		case <-within.Done():
			return false
		case <-qs.life.base.Done():
			return false
		}
	}
	return false
}

// open reports whether it is not known yet what has become of a call of a former incarnation.
func (qs *questions) open(id rpcpacket.ID) bool {
	q := qs.of[id]
	return q != nil && !q.isOver()
}

// hearGivenUp goes on with the calls that executions have given up, and that are answered: what the answers have handed over goes, then the callees
// forget them.
func (l lockedLedger) hearGivenUp() {
	n := l.node
	for _, k := range l.table.Asks() {
		if _, heard := l.heard[k.ID]; heard || n.questions.unheard(k.ID) {
			continue
		}
		f := direct.Free{Owner: k.ID, Heard: true}
		if answer, brought := l.brought[k.ID]; brought {
			f.Regions, _ = n.regions.handedOver(&answer)
		} else if q := n.questions.of[k.ID]; q != nil {
			news, own := n.regions.handedOver(&q.answer) // which may have come to the former incarnation, too
			f.Regions = slices.Concat(news, n.left.among(own))
		}
		delete(l.brought, k.ID)
		if len(f.Regions) == 0 {
			l.add(l.table.Freed(&f)...)
			n.out.unhold(k.Slot, k.Number, int(k.Slots))
			continue
		}
		if l.heard == nil {
			l.heard = map[rpcpacket.ID]record.Call{}
		}
		l.heard[k.ID] = k
		l.free(f)
	}
}

// asked takes a question of a later incarnation of a caller, or of the Gatekeeper in its name.
func (n *Node) asked(from netip.AddrPort, m *rpcpacket.Message) {
	if m.CalleeIncarnation != 0 {
		n.answerVolatile(from, m, n.askVolatile(from.Addr(), m))
		return
	}
	l := n.ledger
	b := l.lock()
	v, known := l.table.Ask(from.Addr().As16(), &m.Header)
	switch {
	case v == direct.Answer && !l.settling[known.ID]:
		answer := n.ports.answerFor(known.Done.Answer, &m.Header)
		b.unlock()
		n.stats.answeredFromLedger.Add(1)
		n.large.sendRecorded(from, answer, rpcpacket.Push{})
		return
	case v == direct.Duplicate && known != nil && known.Begun != nil && isOneway(known.Begun.Call):
		ack := rpcpacket.Message{Header: n.ports.answerHeader(m)}
		ack.Call = known.ID
		b.unlock()
		l.whenSettled(func() { n.ports.send(from, ack.Append(nil)) })
		return
	case v == direct.Superseded:
		b.unlock()
		n.superseded(from.Addr(), m)
		return
	case v == direct.Unbegun: // by the ledger's word
		a := n.askVolatile(from.Addr(), m)
		if a.Verdict != direct.Unbegun {
			b.unlock()
			n.answerVolatile(from, m, a)
			return
		}
		last := l.last
		if r := l.table.Bury(from.Addr().As16(), m.CallerIncarnation-1, false); r != nil {
			last = b.add(r)
		}
		b.unlock()
		refusal := n.ports.neverBegan(m)
		go func() {
			if l.settle(last) {
				n.ports.send(from, refusal)
			}
		}()
		return
	}
	b.unlock()
	switch v {
	case direct.Malformed:
		n.stats.countMalformed(from.Addr())
	case direct.Foreign:
		n.stats.countForeign(from.Addr())
	default:
		n.stats.duplicates.Add(1)
	}
}

func isOneway(call []byte) bool {
	m, err := rpcpacket.Parse(call)
	return err == nil && m.Type == rpcpacket.Oneway
}

// unaccounted are the regions that a former incarnation had, and that nothing in the ledger accounts for: those of the node's executions that run
// again will ask for theirs.
func (r *regions) unaccounted(s *record.State, all []netip.Addr) (left map[dsm.Pointer]bool) {
	left = map[dsm.Pointer]bool{}
	for _, a := range all {
		left[a.As16()] = true
	}
	drop := func(all [][16]byte) {
		for _, p := range all {
			delete(left, p)
		}
	}
	named := func(message []byte) {
		if m, err := rpcpacket.Parse(message); err == nil {
			for _, p := range r.of(&m) {
				delete(left, p)
			}
		}
	}
	s.Each(func(e *record.Execution) {
		o := e.Owed()
		drop(o.Frees)
		drop(o.Rest)
		for i := range o.Oneways {
			named(o.Oneways[i].Message)
		}
		if e.Begun != nil && isOneway(e.Begun.Call) {
			named(e.Begun.Call)
		}
		if e.Checkpoint != nil {
			drop(e.Checkpoint.Has)
		}
	})
	return left
}

// freeLeft frees what a former incarnation has left, and no execution has asked for again: when the last one has ended that is run again. What a
// service's state or a durable main may know stays.
func (l *ledger) freeLeft() {
	b := l.lock()
	defer b.unlock()
	if l.table.Reruns() > 0 || l.table.State().Remembers() {
		return
	}
	if all := l.node.left.takeAll(); len(all) > 0 {
		b.free(direct.Free{Regions: all})
	}
}

// leftovers are the regions of former incarnations that nothing accounts for yet.
type leftovers struct {
	mu  sync.Mutex
	all map[dsm.Pointer]bool
}

// accounts notes that an execution has regions which a former incarnation may have had.
func (l *leftovers) accounts(ptrs ...dsm.Pointer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range ptrs {
		delete(l.all, p)
	}
}

// among are those of some regions that are left.
func (l *leftovers) among(ptrs [][16]byte) (left [][16]byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range ptrs {
		if l.all[p] {
			left = append(left, p)
		}
	}
	return left
}

// takeAll returns them in order. They are not left any more.
func (l *leftovers) takeAll() [][16]byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make([][16]byte, 0, len(l.all))
	for p := range l.all {
		all = append(all, p)
	}
	l.all = nil
	slices.SortFunc(all, compareNodes)
	return all
}

// askVolatile is what is known of a call of policy none. One that has not come does not begin any more. Who gets a payload releases it.
func (n *Node) askVolatile(from netip.Addr, m *rpcpacket.Message) direct.Arrival {
	n.in.mu.Lock()
	defer n.in.mu.Unlock()
	a := n.in.core.Ask(from, &m.Header)
	a.Payload.Hold()
	return a
}

// answerVolatile answers a question by what is known of calls of policy none.
func (n *Node) answerVolatile(from netip.AddrPort, m *rpcpacket.Message, a direct.Arrival) {
	switch a.Verdict {
	case direct.Answer:
		n.stats.resent.Add(1)
		n.large.sendAgain(from, a)
	case direct.Unbegun, direct.Refused:
		n.ports.send(from, n.ports.neverBegan(m))
	case direct.Gone:
		n.ports.refuse(from, m, Unavailable, "the node has been restarted since, the call may have run before")
	case direct.Lost:
		n.audit.want(n)
		n.ports.refuse(from, m, Unavailable, "the call has run, its answer is no longer kept")
	case direct.Duplicate:
		n.stats.duplicates.Add(1)
	default:
		n.stats.countMalformed(from.Addr())
	}
}

// openTo is the first question that is open about a one-way to a node; nil if there is none.
func (qs *questions) openTo(node [16]byte) *heldCall {
	i := slices.IndexFunc(qs.all, func(q *heldCall) bool { return q.oneway && q.held.Node == node && !q.isOver() })
	if i < 0 {
		return nil
	}
	return qs.all[i]
}

// unheard reports whether a call of an execution may be open in the switch: this incarnation has it out, or asks about it.
func (qs *questions) unheard(id rpcpacket.ID) bool { return qs.open(id) || qs.out.has(id) }

// ask sends a question.
func (o *outgoing) ask(q *heldCall) {
	k, callee := &q.held, netip.AddrFrom16(q.held.Node)
	p := o.pendings.Get().(*pending)
	p.ID, p.Slot, p.Number, p.Slots, p.Node, p.RTT = k.ID, k.Slot, k.Number, int(k.Slots), k.Node, &o.oneway
	p.detached, p.question, p.Holds = true, q, q.oneway
	p.to = netio.Message{Remote: netip.AddrPortFrom(callee, rackaddr.PortDirect)}
	o.mu.Lock()
	for i := range rpcpacket.Slot(k.Slots) {
		o.core.Hold(k.Slot+i, k.Number, k.Node)
	}
	if o.err != nil || !callee.IsValid() || !o.core.Ask(o.pulse.now(), &p.Call) {
		o.mu.Unlock() // it stays held
		o.release(p)
		return
	}
	p.datagram = (&rpcpacket.Message{Header: rpcpacket.Header{
		Type: rpcpacket.Ask, Call: p.ID, Slot: k.Slot, Number: k.Number, CallerIncarnation: o.self.Incarnation, CalleeIncarnation: k.Incarnation,
	}}).Append(nil)
	o.pulse.wakeAt(p.Due())
	out := p.to
	out.Buf = p.datagram
	o.mu.Unlock()
	_, _ = o.ports.direct.WriteBatch([]netio.Message{out}) // a failure is a loss: it is sent again
}

// unheardOf lists those of an execution's calls that may be open in the switch. If it has changed nothing in memory, only those of policy none count:
// its next run makes the others again.
func (qs *questions) unheardOf(called []record.Call, changed bool) (ids []rpcpacket.ID) {
	for _, k := range called {
		if (changed || !k.Direct()) && qs.unheard(k.ID) {
			ids = append(ids, k.ID)
		}
	}
	return ids
}

// await waits until calls are not open in the switch any more. It reports false if the node ends.
func (qs *questions) await(ids []rpcpacket.ID) bool {
	for slices.ContainsFunc(ids, qs.unheard) {
		select {
		case <-time.After(heardAgain):
		case <-qs.life.base.Done():
			return false
		}
	}
	return true
}

// heardAgain is how long the node waits until it looks again whether calls are over.
const heardAgain = 50 * time.Millisecond
