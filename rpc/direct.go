package rpc

import (
	"context"
	"encoding/binary"
	"hash/crc32"
	"hash/fnv"
	"net/netip"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/direct"
	"github.com/bifrost-rack/bifrost/rpc/internal/sent"
	"github.com/bifrost-rack/bifrost/rpc/record"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Exactly-once calls go from node to node. What the callee's ledger has of them
// decides (package direct). Rights to what their pointers name change in the switch, as they pass (regions.go).
//
//	caller ── CALL ──▶ callee: runs ── begun, journal ──▶ ledger     before children and effects
//	                           ends ── done ────────────▶ ledger
//	caller ◀─ REPLY ─────────── settled ◀─────────────────┘
//
// They have a port of their own, at the node's address, so that all copies of a call come to
// one node, whatever the routes are.

// openDirect opens the node's endpoint for direct calls.
func (n *Node) openDirect() error {
	conn, err := n.stack.ListenUDP(netip.AddrPortFrom(n.self.Address, rackaddr.PortDirect))
	if err != nil {
		return &Error{Code: Unavailable, Op: "join", Msg: "listen", Err: err}
	}
	n.large.spinWhile(conn, false)
	n.ports.direct = conn
	return nil
}

// openLedger opens what exactly-once calls that go direct rest on: the endpoint, and what
// earlier incarnations of the node have written.
func (n *Node) openLedger(ctx context.Context) error {
	if err := n.ledger.read(ctx); err != nil {
		return err
	}
	var h control.Holdings // what the switch has of former incarnations
	if n.self.Before != 0 {
		var err error
		if h, err = n.session.Holdings(ctx, false); err != nil {
			return err
		}
	}
	n.oweMemory(&h)
	return n.openDirect()
}

// receiveDirect takes a datagram off the endpoint for direct calls. It returns the execution
// of a call that the goroutine is to run, or nil.
func (n *Node) receiveDirect(r *reader, i int) *execution {
	m, err := rpcpacket.Parse(r.messages[i].Buf)
	from := netip.AddrPortFrom(r.messages[i].Remote.Addr(), rackaddr.PortRPC)
	if err != nil || m.Flags&rpcpacket.FlagMore != 0 { // which has a port of its own
		n.stats.countMalformed(from.Addr())
		return nil
	}
	if m.Turned != rpcpacket.NotTurned {
		n.turnedBack(from.Addr(), &m)
		return nil
	}
	return n.receiveRequest(r, i, from, m)
}

// receiveRequest takes a call, or what belongs to one, that has come in the i-th datagram of a reader. It returns the execution of a call that the
// goroutine is to run, or nil.
func (n *Node) receiveRequest(r *reader, i int, from netip.AddrPort, m rpcpacket.Message) *execution {
	switch {
	case !plausible(&m.Header):
	case m.Type == rpcpacket.Ask:
		n.asked(from, &m)
		return nil
	case m.Flags.Policy() == PolicyNone:
		return n.receiveVolatile(r, i, from, &m)
	case m.Type == rpcpacket.Forget && m.Flags&rpcpacket.FlagSettled != 0:
		n.toForget(from.Addr(), &m)
		return nil
	case m.Type == rpcpacket.Call || m.Type == rpcpacket.Oneway:
		return n.receiveCall(r, i, from, &m)
	case m.Type == rpcpacket.Ack && m.Flags&rpcpacket.FlagSettled != 0:
		n.forgotten(from.Addr(), m.Payload)
		return nil
	case m.Type == rpcpacket.Ack && m.Flags&rpcpacket.FlagUnbegun != 0:
		n.heard(from.Addr(), &m)
		return nil
	case m.Type == rpcpacket.Ack && m.Flags&rpcpacket.FlagGivenUp != 0:
		n.out.hasBegun(from.Addr(), &m)
		return nil
	}
	n.stats.countMalformed(from.Addr())
	return nil
}

// plausible reports whether a direct call or one-way has only what its caller's runtime says of such a call.
func plausible(h *rpcpacket.Header) bool {
	const callers = rpcpacket.FlagMore | rpcpacket.FlagHeaders | rpcpacket.FlagTainted
	marks := h.Flags.WithPolicy(0) &^ callers
	if h.Type == rpcpacket.Call {
		marks &^= rpcpacket.FlagGivenUp
	}
	switch {
	case h.Type != rpcpacket.Call && h.Type != rpcpacket.Oneway:
		return true
	case h.Attempt != 0:
		return false // it has been begun by nobody but its callee
	}
	return marks == 0
}

// receiveCall takes a copy of a direct call.
func (n *Node) receiveCall(r *reader, i int, from netip.AddrPort, m *rpcpacket.Message) *execution {
	x := n.takes(m.Service)
	if x == nil {
		n.stats.stale.Add(1) // it does not serve it yet, or any more: the caller asks whether it is there
		return nil
	}
	size, arguments, err := measure(m)
	if _, ok := lineageIn(m.Trailer); err != nil || !ok {
		n.stats.countMalformed(from.Addr())
		return nil
	}
	givenUp := m.Flags&rpcpacket.FlagGivenUp != 0
	m.Flags &^= rpcpacket.FlagGivenUp
	l := n.ledger
	b := l.lock()
	left, first := b.left(), l.firstOf(weightOf(m, size))
	never := b.never(first)
	admitted := never || b.admits(from.Addr(), &m.Header, first, left)
	if !admitted && !b.dropped(from.Addr(), m, true) {
		b.crowded(from.Addr())
		b.opened()
		b.unlock()
		n.stats.full.Add(1)
		n.stats.noRoom.Add(1)
		return nil
	}
	v, known := l.table.Receive(from.Addr().As16(), &m.Header, arguments)
	if m.Type == rpcpacket.Oneway && v == direct.Duplicate && l.table.State().Execution(m.Call) != nil {
		b.unlock()
		n.stats.answeredFromLedger.Add(1)
		ack := n.ports.accepts(m)
		l.whenSettled(func() { n.ports.send(from, ack) })
		return nil
	}
	var running *execution
	if givenUp {
		running = n.reports.underWay(m.Call)
	}
	var answer []byte
	if v == direct.Answer && !l.settling[m.Call] {
		answer = n.ports.answerFor(known.Done.Answer, &m.Header)
	}
	var refusal *Error
	if v == direct.Run {
		fits := admitted && !never && (m.Flags&rpcpacket.FlagMore == 0 || b.opened()) && b.mayBegin(from.Addr(), &m.Header, left)
		may := permitted
		if fits {
			may = x.mayShare(from.Addr(), m)
		}
		switch {
		case may == unheard:
			l.table.Drop(m.Call) // it will be sent again
			b.unlock()
			return nil
		case fits:
			b.progresses(from.Addr())
			if may == forbidden {
				refusal = notShared(x, &m.Header)
			}
		case never:
			refusal = fault.New(NoSpace, "", "the node's ledger can never have room for a call of %d bytes: pass large values by reference, or give the ledgers more room (bifrost memory --ledger-space)", size)
		case !admitted || b.dropped(from.Addr(), m, false):
			refusal = fault.New(NoSpace, "", "the node's ledger has had no room for another call for %s: it keeps what callers have not forgotten; give the ledgers more room (bifrost memory --ledger-space)", shortPatience)
		default:
			b.opened()
			l.table.Drop(m.Call) // it will be sent again
			b.unlock()
			n.stats.full.Add(1)
			n.stats.noRoom.Add(1)
			return nil
		}
	}
	b.unlock()
	switch v {
	case direct.Run:
		e := n.directExecution(x, from, m, arguments, nil)
		e.givenUp = givenUp
		return n.takeCall(x, r, i, e, size, refusal)
	case direct.Answer:
		if answer != nil {
			n.stats.answeredFromLedger.Add(1)
			n.large.sendRecorded(from, answer, rpcpacket.Push{})
		}
	case direct.Refused:
		n.stats.duplicates.Add(1)
		refusal := x.refusal(m)
		l.whenSettled(func() { n.ports.send(from, refusal) })
	case direct.Superseded:
		n.superseded(from.Addr(), m)
	case direct.Diverged:
		n.ports.refuse(from, m, Nondeterminism, "the call had other arguments when it ran before")
	case direct.Malformed:
		n.stats.countMalformed(from.Addr())
	case direct.Foreign:
		n.stats.countForeign(from.Addr())
	default:
		n.stats.duplicates.Add(1)
		if givenUp && v == direct.Duplicate {
			n.tellBegun(from, m, running)
		}
	}
	return nil
}

// takeCall takes a new direct call, of so many bytes of arguments. If it is not to run, refusal says why. It returns the
// execution that the goroutine is to run, or nil.
func (n *Node) takeCall(x *export, r *reader, i int, e *execution, size int, refusal *Error) *execution {
	n.stats.accepted.Add(1)
	switch oneway := e.call.Type == rpcpacket.Oneway; {
	case len(e.call.Lists) == 0:
	case oneway:
		n.stats.onewaysWithRegions.Add(1)
	default:
		n.stats.lending.Add(1)
	}
	if x.manager != nil {
		n.stats.stateful.Add(1)
	}
	if e.call.Type == rpcpacket.Oneway {
		n.stats.oneways.Add(1)
	}
	expired := e.givenUp && isOver(&e.call)
	large := e.call.Flags&rpcpacket.FlagMore != 0
	if large {
		n.stats.largeMessages.Add(1)
	}
	if x.pool.isClosed() {
		n.refuseDirect(x, e.from, &e.call)
		return nil
	}
	n.reports.takeUp(e)
	if l := n.ledger; refusal == nil {
		b := l.lock()
		b.promiseFirst(e, weightOf(&e.call, size))
		b.unlock()
	}
	waits := x.manager != nil && x.pool.heldBy(e.serial)
	if waits || refusal != nil || expired {
		e.call.Payload, e.call.Trailer = nil, nil // the buffer is the reader's
	}
	switch {
	case waits:
		go x.refuseWaiting(e, "the service runs a call that waits for this one")
		return nil
	case refusal != nil:
		go x.endUnbegun(e, refusal.Code, refusal.Msg)
		return nil
	case expired:
		go x.endUnbegun(e, Deadline, tooLate)
		return nil
	case large:
		return x.acceptLarge(e, len(r.messages[i].Buf))
	}
	e.buffer = r.take(i)
	return x.accept(e)
}

// argumentsOf tells calls apart that have the same id: FNV-1a of service, method, regions and
// payload or, of a payload of more than 65,535 bytes, of its two CRC-32.
func argumentsOf(m *rpcpacket.Message) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(binary.BigEndian.AppendUint64(nil, m.Service)) // never fails
	_, _ = h.Write(m.Method[:])
	for i := range m.Lists {
		for _, r := range m.Lists[i].Of() {
			_, _ = h.Write(binary.BigEndian.AppendUint64(nil, uint64(r)))
		}
	}
	payload := m.Payload
	if len(payload) > maxDatagram {
		payload = binary.BigEndian.AppendUint32(nil, crc32.ChecksumIEEE(m.Payload))
		payload = binary.BigEndian.AppendUint32(payload, crc32.Checksum(m.Payload, castagnoli))
	}
	_, _ = h.Write(payload)
	return h.Sum64()
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// refuseDirect has the caller of a call that has not begun choose another node: this one
// closes.
func (n *Node) refuseDirect(x *export, from netip.AddrPort, m *rpcpacket.Message) {
	l := n.ledger
	b := l.lock()
	b.add(l.table.Refuse(from.Addr().As16(), &m.Header))
	b.unlock()
	refusal := x.refusal(m)
	l.whenSettled(func() { n.ports.send(from, refusal) })
}

// refusal has the caller of a call that has not begun, and never will here, choose another node.
func (x *export) refusal(m *rpcpacket.Message) []byte {
	return x.node.ports.exception(m, Unavailable, "the node is closing", true)
}

// drainDirect waits until nobody will ask for the answer to a direct call, or the node has
// ended. Callers that have gone do not say so: the rack is asked about each, at once and
// then every second.
func (n *Node) drainDirect(ctx context.Context) {
	l := n.ledger
	var asked time.Time
	for {
		b := l.lock()
		idle := l.lost != nil || l.table.Idle()
		if !idle && time.Since(asked) >= time.Second {
			asked = time.Now()
			b.askAll(l.table.Callers())
		}
		b.unlock()
		if idle {
			return
		}
		select {
		case <-time.After(forgetAfter):
		case <-ctx.Done():
			return
		case <-n.life.done:
			return
		}
	}
}

// directExecution makes the execution of a direct call, or that of its next run, of which
// the ledger knows what the former ones did.
func (n *Node) directExecution(x *export, from netip.AddrPort, m *rpcpacket.Message, arguments uint64, known *record.Execution) *execution {
	e := &execution{node: n, journal: &journal{life: n.life}, export: x, call: *m, from: from, arguments: arguments}
	e.trunk.e = e
	if m.Type == rpcpacket.Oneway {
		e.account.got = n.regions.of(m) // the regions are its own
		n.regions.received(m)
	}
	e.lineage, _ = lineageIn(m.Trailer)
	if m.Timeout != 0 {
		e.deadline = time.Now().Add(time.Duration(m.Timeout) * time.Millisecond)
	}
	if known != nil {
		e.remember(known)
	}
	return e
}

// remember makes an execution one that goes on from what former runs did.
func (e *execution) remember(known *record.Execution) {
	e.resumed = true
	e.recorded.begun = true
	e.recorded.called = slices.Clone(known.Called)
	for _, k := range known.Called {
		if k.Direct() {
			e.recorded.opens(k.ID)
		}
	}
	e.recorded.machines = slices.Clone(known.Machines)
}

// bound is the node that a call was sent to, or was about to be, by this run or a former one;
// the zero Addr if there is none, or it has refused the call.
func (e *execution) bound(id rpcpacket.ID) netip.Addr {
	e.mu.Lock()
	defer e.mu.Unlock()
	node := e.sentTo(id)
	if node == [16]byte{} || e.hasRefused(id, node) {
		return netip.Addr{}
	}
	return netip.AddrFrom16(node)
}

// sentTo is the node that a call was sent to last, zero if there is none. The caller holds e.mu.
func (e *execution) sentTo(id rpcpacket.ID) [16]byte {
	k, _ := e.lastTry(id)
	return k.Node
}

// lastTry is what the ledger has of the last try of a call. The caller holds e.mu.
func (e *execution) lastTry(id rpcpacket.ID) (k record.Call, known bool) {
	r := &e.recorded
	if len(r.called) > fewCalls {
		if r.tries == nil {
			r.tries = map[rpcpacket.ID]int{}
		}
		for ; r.indexed < len(r.called); r.indexed++ {
			r.tries[r.called[r.indexed].ID] = r.indexed
		}
		if i, known := r.tries[id]; known {
			return r.called[i], true
		}
		return k, false
	}
	for _, k := range slices.Backward(r.called) {
		if k.ID == id {
			return k, true
		}
	}
	return k, false
}

// unrefused notes that a call leaves for a node, which may have refused an earlier try of it.
func (e *execution) unrefused(id rpcpacket.ID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.recorded.refused = slices.DeleteFunc(e.recorded.refused, func(k record.Call) bool { return k.ID == id })
}

// hasRefused reports whether a node has refused the last try of a call. The caller holds e.mu.
func (e *execution) hasRefused(id rpcpacket.ID, node [16]byte) bool {
	return slices.ContainsFunc(e.recorded.refused, func(k record.Call) bool { return k.ID == id && k.Node == node })
}

// replyDirect commits the execution of a direct call, and sends its answer.
func (x *export) replyDirect(e *execution, datagram []byte) {
	l, h := x.node.ledger, &e.call.Header
	d := &record.Done{
		Execution: h.Call, Caller: e.from.Addr().As16(), Incarnation: h.CallerIncarnation, Arguments: e.arguments,
		Answer: datagram, Service: x.hash, Slot: h.Slot, Number: h.Number,
	}
	if cap(datagram) <= maxDatagram { // else the codec lets go of it
		d.Answer = slices.Clone(datagram)
	}
	e.mu.Lock()
	e.recorded.begun = true // or need not be any more
	d.Owed.Called, d.Owed.Machines = e.recorded.leaves(), e.recorded.machines
	if len(d.Owed.Machines) > 0 {
		d.Owed.Run = x.node.self.Incarnation
	}
	if h.Type == rpcpacket.Oneway && codeIn(datagram) != OK {
		x.node.regions.notReceived(&e.call)
		e.account.got = nil // it has not begun: what it would have got is its sender's again
	}
	var answer []dsm.Pointer
	if e.returns {
		answer = x.node.regions.results(datagram)
	}
	e.owedOfRegions(&d.Owed, answer)
	d.Owed.Oneways = e.oneways
	d.Over = d.Owed.Nothing()
	sent := e.recorded.sent
	e.mu.Unlock()
	if e.processed {
		e.served.hasChanged(d.Owed.Machines)
	}
	d.State = e.change
	b := l.lock()
	if l.table.Obsolete(d.Caller, h) {
		l.table.Drop(h.Call)
		x.node.reports.leave(h.Call)
		b.release(e)
		b.unlock()
		x.node.memory.Kept(answer...)
		x.takeBack(e)
		return
	}
	l.settling[h.Call] = true
	b.putInPlace(d.Owed.Oneways)
	n := b.write(e.promise.folds, d)
	b.release(e)
	for _, i := range sent {
		l.table.Sent(i)
	}
	b.unlock()
	x.node.memory.Gave(answer...)
	if x.manager != nil && len(d.Owed.Machines) == 0 { // the next call begins, and what it does is settled after this
		go l.tell(e, d, n)
		return
	}
	e.promote()
	l.tell(e, d, n)
}

// payload is that of a settled answer which the ledger keeps for a caller, nil if there is none. It does not change. Whoever gets it releases it.
func (l *ledger) payload(caller netip.Addr, id rpcpacket.ID) *sent.Payload {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.table.State().Execution(id)
	if e == nil || e.Done == nil || e.Forgotten || l.settling[id] || e.Done.Caller != caller.As16() {
		return nil
	}
	m, err := rpcpacket.Parse(e.Done.Answer)
	if err != nil {
		return nil
	}
	return sent.New(nil, m.Payload)
}

// codeIn is the outcome in an answer.
func codeIn(answer []byte) Code {
	m, err := rpcpacket.Parse(answer)
	if err != nil {
		return OK
	}
	return m.Outcome()
}

// takes returns the service with a hash if the node takes direct calls of it.
func (n *Node) takes(hash uint64) *export {
	switch {
	case !n.ledger.placed():
		return nil
	case n.heir != nil:
		return n.inherited(hash)
	}
	return n.exports.of(hash)
}

// receiveFirst takes the first packet of a large message, which no one but the sender has seen.
func (n *Node) receiveFirst(packet netio.Message) {
	m, err := rpcpacket.Parse(packet.Buf)
	if err != nil || m.Flags&rpcpacket.FlagMore == 0 {
		n.stats.countMalformed(packet.Remote.Addr())
		return
	}
	if m.Turned != rpcpacket.NotTurned {
		n.turnedBack(packet.Remote.Addr(), &m)
		return
	}
	switch m.Type {
	case rpcpacket.Call, rpcpacket.Oneway:
		r := &reader{messages: [readBatch]netio.Message{packet}}
		if e := n.receiveRequest(r, 0, netip.AddrPortFrom(packet.Remote.Addr(), rackaddr.PortRPC), m); e != nil {
			go e.export.pool.work(e)
		}
	case rpcpacket.Reply, rpcpacket.Exception:
		if n.completeLarge(len(packet.Buf), m, packet.Remote.Addr()) {
			n.leader.interrupt() // whoever waits may be reading
		}
	default:
		n.stats.countMalformed(packet.Remote.Addr())
	}
}
