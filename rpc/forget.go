package rpc

import (
	"context"
	"maps"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/pace"
	"github.com/bifrost-rack/bifrost/rpc/direct"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
	"github.com/bifrost-rack/bifrost/rpc/record"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Answers to direct calls are kept until nobody will ask for them. Whoever made the calls
// says so, some at a time, until that is acknowledged: a session that has gone on to another
// node or is idle, and the node of an execution that is done. Its word leaves when the record
// is settled that says it is done: else its next run would ask for what is forgotten.
//
// An execution, or a durable main, may give an exactly-once call up: its context ends. It acts on that only when it has the
// callee's word: the callee's ledger has the call, which therefore runs to its end, once, or has its answer. Without that
// word a call whose copies are all lost would never run, though its caller has made it.
//
//	caller ── CALL, given up ──▶ callee ── begun ──▶ ledger
//	caller ◀── ACK, given up ───── settled ◀──────────┘      or REPLY, which is the call's answer
//
// Plain clients, and handlers of policy none, get no such word: nobody runs them again, and they keep their deadlines.
//
// An execution may also end while a call is out. Either is in its journal, so its next run does not make the call. When the
// execution is done, its runtime still waits for these calls: their slots are open in the switch until they are answered, and what they were
// lent they have so long. What they hand over is freed. After that the callees are told to forget the calls.
//
//	done settled ─▶ given-up calls are answered ─▶ what they hand over is freed ─▶ callees forget them ─▶ over

// forgets is when the nodes are told. The ledger's mutex guards it.
type forgets struct {
	to    map[[16]byte]*repeat
	asked time.Duration // when it was asked last which callers are there
	// asking are the callers of which somebody asks whether they are there. That may take long, without a Gatekeeper.
	asking map[[16]byte]bool
	// crowded is when that was asked last because there was no room.
	crowded time.Duration
}

// repeat is when a node is told again.
type repeat struct {
	due, interval time.Duration
	asking        bool
}

const (
	// forgetAfter is how long words to forget are gathered.
	forgetAfter = 20 * time.Millisecond
	// callersEvery is how often it is asked whether the callers are there whose answers
	// nobody has had forgotten.
	callersEvery = 5 * time.Second
)

// wordPauses are those between words to a node that it does not answer: what to forget, or that an execution waits for its caller.
var wordPauses = pace.Pauses{First: forgetAfter, Most: time.Second}

// hurry has the nodes told soon.
func (f *forgets) hurry(n *Node) { n.pulse.wakeAt(n.pulse.now() + forgetAfter) }

// tickForgets tells nodes what to forget, and returns when it has to be called next.
func (n *Node) tickForgets(now time.Duration) (next time.Duration, ok bool) {
	left := n.out.left(now)
	l := n.ledger
	b := l.lock()
	for _, k := range left {
		l.table.Left(k.Node, k.Call)
	}
	b.hearGivenUp()
	var out []netio.Message
	all := l.table.Forgets()
	for node := range l.forgets.to {
		if len(all[node]) == 0 {
			delete(l.forgets.to, node)
		}
	}
	for _, node := range slices.SortedFunc(maps.Keys(all), compareNodes) {
		items := all[node]
		p := l.forgets.told(node, now)
		if p.due <= now {
			out = n.ports.appendForgets(out, netip.AddrFrom16(node), items)
			p.due, p.interval = now+p.interval, wordPauses.Next(p.interval)
			if p.interval == wordPauses.Most && !p.asking {
				p.asking = true
				go n.askForgetter(node)
			}
		}
		if !ok || p.due < next {
			next, ok = p.due, true
		}
	}
	if due, waits := b.askCallers(now); waits && (!ok || due < next) {
		next, ok = due, true
	}
	b.unlock()
	if len(out) > 0 {
		l.whenSettled(func() {
			for _, m := range out {
				_, _ = n.ports.direct.WriteBatch([]netio.Message{m}) // a failure is a loss
			}
		})
	}
	return next, ok
}

func (f *forgets) told(node [16]byte, now time.Duration) *repeat {
	p := f.to[node]
	if p == nil {
		if f.to == nil {
			f.to = map[[16]byte]*repeat{}
		}
		p = &repeat{due: now, interval: wordPauses.First}
		f.to[node] = p
	}
	return p
}

// toForget takes a caller's word that it asks no more for calls. It is acknowledged when the
// ledger has it.
func (n *Node) toForget(from netip.Addr, m *rpcpacket.Message) {
	if len(m.Payload)%rpcpacket.ItemSize != 0 {
		n.stats.countMalformed(from)
		return
	}
	ack := rpcpacket.Message{Header: rpcpacket.Header{Type: rpcpacket.Ack, Flags: rpcpacket.FlagSettled.WithPolicy(PolicyRecover), CallerIncarnation: n.self.Incarnation}}
	var items []direct.Item
	for b := m.Payload; len(b) > 0; b = b[rpcpacket.ItemSize:] {
		id, s, number := rpcpacket.ParseItem(b)
		items = append(items, direct.Item{ID: id, Slot: s, Number: number})
	}
	l := n.ledger
	b := l.lock()
	w := l.table.Forget(from.As16(), m.CallerIncarnation, items, b.left())
	if l.table.Crowded() {
		n.sharers.seekOwner(from)
	}
	if w.Record != nil {
		b.add(w.Record)
		b.progresses(from)
	}
	if w.Full > 0 {
		b.crowded(from)
		b.makeRoom()
	}
	b.unlock()
	if w.Foreign > 0 {
		n.stats.countForeign(from)
	}
	for _, id := range w.Forgotten {
		ack.Payload = append(ack.Payload, id[:]...)
	}
	if len(ack.Payload) == 0 {
		return // it says so again
	}
	l.whenSettled(func() { n.ports.sendDirect(from, &ack) })
}

// forgotten takes a node's word that it has forgotten calls.
func (n *Node) forgotten(node netip.Addr, ids []byte) {
	if len(ids)%16 != 0 {
		n.stats.countMalformed(node)
		return
	}
	var all []rpcpacket.ID
	for ; len(ids) > 0; ids = ids[16:] {
		all = append(all, rpcpacket.ID(ids[:16]))
	}
	l := n.ledger.lock()
	defer l.unlock()
	delete(l.forgets.to, node.As16())
	l.add(l.table.Acknowledged(node.As16(), all)...)
	l.freeDue()
	if l.table.Owes() {
		l.forgets.hurry(n)
	}
}

// askForgetter asks whether a node is there that does not answer. What one that is gone for
// good had is forgotten with it.
func (n *Node) askForgetter(node [16]byte) {
	incarnation, _ := n.endedUpTo(netip.AddrFrom16(node))
	l := n.ledger.lock()
	defer l.unlock()
	if incarnation == math.MaxUint32 {
		var all []rpcpacket.ID
		for _, i := range l.table.Forgets()[node] {
			all = append(all, i.ID)
		}
		l.add(l.table.Acknowledged(node, all)...)
	}
	if p := l.forgets.to[node]; p != nil {
		p.asking = false
	}
}

// endedUpTo asks up to which incarnation those of a node have ended: math.MaxUint32 if it is gone for good.
// One that is away has ended, though nobody may ever start its program anew.
func (n *Node) endedUpTo(node netip.Addr) (incarnation uint32, known bool) {
	info, err := n.session.Who(n.life.base, node)
	switch {
	case info.Left || fault.CodeOf(err) == fault.NotFound:
		return math.MaxUint32, true
	case err != nil:
		return 0, false
	case info.Away:
		return info.Incarnation, true
	}
	return info.Incarnation - 1, true
}

// askCallers asks from time to time whether callers are there whose answers are kept. It
// returns when it has to be called next.
func (l lockedLedger) askCallers(now time.Duration) (next time.Duration, ok bool) {
	if !l.placed() || l.lost != nil || !l.table.Keeps() {
		return 0, false
	}
	if l.forgets.asked == 0 {
		l.forgets.asked = now
	}
	if now >= l.forgets.asked+callersEvery {
		l.forgets.asked = now
		l.askAll(l.table.Callers())
	}
	return l.forgets.asked + callersEvery, true
}

// askAll has it asked whether callers' incarnations are there, one after the other. It leaves out callers of which that is asked already.
func (l lockedLedger) askAll(callers map[[16]byte]uint32) {
	f, n := &l.forgets, l.node
	maps.DeleteFunc(callers, func(caller [16]byte, _ uint32) bool { return f.asking[caller] })
	if len(callers) == 0 {
		return
	}
	if f.asking == nil {
		f.asking = map[[16]byte]bool{}
	}
	for caller := range callers {
		f.asking[caller] = true
	}
	go func() {
		for _, caller := range slices.SortedFunc(maps.Keys(callers), compareNodes) {
			n.askCaller(caller, callers[caller])
		}
	}()
}

// crowded counts what a caller has no room for, and asks from time to time which of all callers are gone: what
// is kept of them gives room.
func (l lockedLedger) crowded(caller netip.Addr) {
	l.node.stats.blame.Add(caller, "quota")
	if now := l.node.pulse.now(); l.forgets.crowded == 0 || now >= l.forgets.crowded+callersEvery {
		l.forgets.crowded = now
		l.askAll(l.table.Holders())
	}
}

func compareNodes(a, b [16]byte) int { return slices.Compare(a[:], b[:]) }

// askCaller asks whether a caller's incarnation is there.
func (n *Node) askCaller(caller [16]byte, incarnation uint32) {
	ended, known := n.endedUpTo(netip.AddrFrom16(caller))
	l := n.ledger.lock()
	defer l.unlock()
	delete(l.forgets.asking, caller)
	if !known || ended < incarnation {
		return
	}
	gone := ended == math.MaxUint32
	if gone {
		ended = incarnation
	}
	if r := l.table.Bury(caller, ended, gone); r != nil {
		l.add(r)
	}
}

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
	n.out.askBegun(p)
	answered := n.leader.await(within, p)
	if !answered && !n.out.abandon(p) {
		<-p.ready // answered at the last moment
		answered = true
	}
	if answered && !p.begun {
		return nil
	}
	n.out.release(p)
	return why
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
	h := n.ports.answerHeader(m)
	h.Type, h.Flags = rpcpacket.Ack, rpcpacket.FlagGivenUp.WithPolicy(h.Flags.Policy())
	l.whenSettled(func() { n.ports.sendDirect(from.Addr(), &rpcpacket.Message{Header: h}) })
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
	if !e.recorded.begun {
		e.tryWrite(record.Call{})
	}
	e.promised = e.recorded.begun
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
	if policy == PolicyNone {
		return false
	}
	key, err := e.key()
	if err != nil {
		return false
	}
	return e.bound(endpoint.ChildID(key, e.call.Call, o.at.branch, o.at.index)).IsValid()
}

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
