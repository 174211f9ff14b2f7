package rpc

import (
	"context"
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/direct"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
	"github.com/bifrost-rack/bifrost/rpc/record"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
	"github.com/bifrost-rack/bifrost/rpc/trailer"
)

// commitment is an exactly-once call whose handler has returned, until the
// Gatekeeper has acknowledged its answer.
type commitment struct {
	export *export
	to     netip.AddrPort
	slot   bool // the service's, which the next call waits for
	// changed: the ledger has what the call has made of the service's state, and whether
	// that counts is not written.
	changed bool
	sent    []direct.Item // where its direct calls were in their lanes
}

// calledIn tells where the direct calls of an execution were in their lanes.
func (e *execution) calledIn() []direct.Item {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.recorded.sent
}

// replays reports whether a call is delivered again because its execution was cut
// off. Its trailer is then the execution's own journal; that of other calls is the
// caller's, and for the log alone.
func replays(h *rpcpacket.Header) bool {
	return h.Flags.Exact() && h.Flags&rpcpacket.FlagReplay != 0 && h.Attempt > 0
}

// journalOf is the journal that a call's execution begins with; nil if it is not
// exactly-once. One that the packet had no room for is empty so far.
func journalOf(m *rpcpacket.Message) (*journal, error) {
	switch {
	case !m.Flags.Exact():
		return nil, nil
	case replays(&m.Header) && !trailer.IsSpilled(m.Trailer):
		return newJournal(m.Trailer)
	}
	return newJournal(nil)
}

// fetchJournal gets the journal of a call that is run again, if the packet had no
// room for it. It tries until the node ends, and reports false then: without what
// it did before the execution must do nothing.
func (e *execution) fetchJournal() bool {
	if !replays(&e.call.Header) || !trailer.IsSpilled(e.call.Trailer) {
		return true
	}
	e.promote()
	for e.node.base.Err() == nil {
		b, err := join.FetchJournal(e.node.base, e.node.session, e.call.Call)
		if err == nil {
			e.journal, err = newJournal(append(slices.Clone(e.earlier), b...))
		}
		if err == nil {
			return true
		}
		e.node.log.Warn("rpc: the journal of a call that is run again", "call", e.call.Call.String(), "error", err)
		select {
		case <-time.After(journalRetry):
		case <-e.node.base.Done():
		}
	}
	return false
}

// fetchPayload gets the rest of a logged call that exceeds a packet. It tries until the
// node ends, and reports false then.
func (e *execution) fetchPayload() bool {
	if e.call.Flags&rpcpacket.FlagMore == 0 {
		return true
	}
	e.promote()
	for e.node.base.Err() == nil {
		b, err := e.node.restOf(e.node.base, &e.call, false)
		if err == nil {
			e.call.Payload = b
			e.call.Flags &^= rpcpacket.FlagMore
			return true
		}
		e.node.log.Warn("rpc: the rest of a logged call", "call", e.call.Call.String(), "error", err)
		select {
		case <-time.After(journalRetry):
		case <-e.node.base.Done():
		}
	}
	return false
}

// restOf fetches the payload of a logged message whose first packet has come.
func (n *Node) restOf(ctx context.Context, m *rpcpacket.Message, answer bool) ([]byte, error) {
	o, err := m.Opening()
	if err != nil {
		return nil, err
	}
	return join.FetchPayload(ctx, n.session, m.Call, answer, o.Total)
}

// seal makes the trailer of an exactly-once answer that has so many bytes without
// it: how the service's state has changed and, if the datagram has room for it, the
// journal, which the log does not need any more.
func (x *export) seal(e *execution, size int) ([]byte, *Error) {
	var b []byte
	if x.manager != nil && e.begun && !e.spoilt {
		room := x.node.logged - size
		if x.inLedger() {
			room = x.node.ledger.room()
		}
		former := x.manager.was
		change, err := x.manager.change(room)
		if err != nil {
			if err.Err != nil {
				x.node.fail(err) // only the log knows the state now; the next incarnation asks it
			}
			return nil, err
		}
		b = change
		if x.inLedger() {
			b = x.recordChange(e, former, change)
		}
	}
	if e.direct.Load() {
		return nil, nil
	}
	if entries, _ := e.journal.pending(); size+len(b)+len(entries) <= x.node.budget {
		b = append(b, entries...)
	}
	return b, nil
}

// commit sends an answer that the Gatekeeper has to log, and goes on sending it
// until that has happened. A stateful service begins no other call before.
func (x *export) commit(e *execution, datagram []byte) {
	n := x.node
	if e.unsettled {
		return
	}
	datagram = slices.Clone(datagram)
	c := &commitment{export: x, to: e.from, slot: e.begun && x.manager != nil, changed: len(e.change) > 0, sent: e.calledIn()}
	e.keeps = c.slot
	n.in.mu.Lock()
	now := n.now()
	n.in.core.Commit(now, e.entry, datagram, c)
	n.in.mu.Unlock()
	n.send(c.to, datagram)
	n.wakeAt(now + endpoint.InitialTimeout)
	n.standIn() // for the acknowledgement
}

// acknowledged takes an ACK: the Gatekeeper has logged a call of this node, or an
// answer, or nobody has got a call. It reports whether a goroutine waits for it.
func (n *Node) acknowledged(r *reader, i int, m rpcpacket.Message) bool {
	if m.Flags&rpcpacket.FlagReleased == 0 {
		n.malformed(r.messages[i].Remote.Addr()) // the switch lets nobody else say that something is logged
		return false
	}
	if m.Flags&rpcpacket.FlagEnlist != 0 && n.goesDirect() {
		if n.forgotten(rackaddr.Gatekeeper, m.Payload); len(m.Payload) == 0 {
			n.askedToEnlist(m.Call, m.Parent)
		}
		return false
	}
	if m.Flags&rpcpacket.FlagUnbegun != 0 {
		n.out.mu.Lock()
		n.out.core.Unbegun(m.Call)
		n.out.mu.Unlock()
		return false
	}
	if m.Flags&rpcpacket.FlagDone == 0 {
		n.out.mu.Lock()
		if m.Call.Sequence() == 0 {
			n.out.core.Settled(endpoint.Settlement{Session: m.Call.Session(), Floor: m.Floor})
		}
		call := n.out.core.Acknowledge(n.now(), m.Call)
		n.out.mu.Unlock()
		return call != nil && n.deliver(call, func() *datagram { return r.take(i) }, m)
	}
	c, empty := n.in.acknowledge(&m.Header)
	if c != nil {
		n.ledger.answered(m.Call, c.sent)
		c.export.decided(c, m.Call)
	}
	if c != nil && c.slot {
		c.export.pool.release()
	}
	if empty {
		n.in.tellDrained()
	}
	return false
}

// acknowledge returns the call that has been committed, if any, and whether it was
// the last.
func (in *incoming) acknowledge(ack *rpcpacket.Header) (c *commitment, empty bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	c, _ = in.core.Acknowledge(ack.Call, ack.Floor).(*commitment)
	return c, in.core.Uncommitted() == 0
}

func (in *incoming) tellDrained() {
	select {
	case in.drained <- struct{}{}:
	default:
	}
}

// drain waits until every answer has been acknowledged, or the node has ended.
func (n *Node) drain() {
	for {
		n.in.mu.Lock()
		left := n.in.core.Uncommitted()
		n.in.mu.Unlock()
		if left == 0 {
			return
		}
		select {
		case <-n.in.drained:
		case <-n.done:
			return
		}
	}
}

// tickAnswers sends again the answers that wait to be acknowledged, and returns
// when it has to be called next.
func (n *Node) tickAnswers(now time.Duration) (next time.Duration, ok bool) {
	n.in.mu.Lock()
	var out []netio.Message
	for _, e := range n.in.core.Tick(now, nil) {
		out = n.pieces(out, netio.Message{Buf: e.Reply(), Remote: e.Tag.(*commitment).to})
	}
	next, ok = n.in.core.Due()
	n.in.mu.Unlock()
	if len(out) > 0 {
		n.stats.resent.Add(uint64(len(out)))
		_, _ = n.conn.WriteBatch(out) // a failure is a loss: it is sent again
	}
	return next, ok
}

// Answers to direct calls are kept until nobody will ask for them. Whoever made the calls
// says so, some at a time, until that is acknowledged: a session that has gone on to another
// node or is idle, and the node of an execution that is done. Its word leaves when the record
// is settled that says it is done: else its next run would ask for what is forgotten.

// forgets is when the nodes are told. The ledger's mutex guards it.
type forgets struct {
	to    map[[16]byte]*pace
	asked time.Duration // when it was asked last which callers are there
	// crowded is when that was asked last because there was no room.
	crowded time.Duration
}

// pace is when a node is told again.
type pace struct {
	due, interval time.Duration
	asking        bool
}

const (
	// forgetAfter is how long words to forget are gathered.
	forgetAfter = 20 * time.Millisecond
	// maxForgetInterval is how often they are repeated when nobody answers.
	maxForgetInterval = time.Second
	// callersEvery is how often it is asked whether the callers are there whose answers
	// nobody has had forgotten.
	callersEvery = 5 * time.Second
)

// itemSize is a direct.Item on the wire: id, lane, number.
const itemSize = 32

// hurry has the nodes told soon.
func (f *forgets) hurry(n *Node) { n.wakeAt(n.now() + forgetAfter) }

// tickForgets tells nodes what to forget, and returns when it has to be called next.
func (n *Node) tickForgets(now time.Duration) (next time.Duration, ok bool) {
	if !n.goesDirect() {
		return 0, false
	}
	n.out.mu.Lock()
	left := n.out.core.Left(now)
	n.out.mu.Unlock()
	l := n.ledger
	l.mu.Lock()
	for _, k := range left {
		l.table.Settled(k.Node, direct.Item{ID: k.Call, Lane: k.Call.Session(), Number: k.Call.Sequence()})
	}
	var out []netio.Message
	all := l.table.Forgets()
	for node := range l.forgets.to {
		if len(all[node]) == 0 {
			delete(l.forgets.to, node)
		}
	}
	for _, node := range slices.SortedFunc(maps.Keys(all), compareNodes) {
		items := all[node]
		p := l.forgets.pace(node, now)
		if p.due <= now {
			out = n.appendForgets(out, netip.AddrFrom16(node), items)
			p.due, p.interval = now+p.interval, min(2*p.interval, maxForgetInterval)
			if p.interval == maxForgetInterval && !p.asking && node != rackaddr.Gatekeeper.As16() {
				p.asking = true
				go n.askForgetter(node)
			}
		}
		if !ok || p.due < next {
			next, ok = p.due, true
		}
	}
	if due, waits := l.askCallers(now); waits && (!ok || due < next) {
		next, ok = due, true
	}
	l.mu.Unlock()
	n.sendSettled(out)
	return next, ok
}

// sendSettled sends words about what is to be forgotten, or is, when all records so far are
// settled.
func (n *Node) sendSettled(out []netio.Message) {
	send := func() {
		for _, m := range out {
			conn := n.directConn
			if m.Remote == gatekeeperRPC {
				conn = n.conn
			}
			_, _ = conn.WriteBatch([]netio.Message{m}) // a failure is a loss
		}
	}
	last, settled := n.ledger.unsettled()
	switch {
	case len(out) == 0:
	case settled:
		send()
	default:
		go func() {
			if n.ledger.settle(last) {
				send()
			}
		}()
	}
}

func (f *forgets) pace(node [16]byte, now time.Duration) *pace {
	p := f.to[node]
	if p == nil {
		if f.to == nil {
			f.to = map[[16]byte]*pace{}
		}
		p = &pace{due: now, interval: forgetAfter}
		f.to[node] = p
	}
	return p
}

// appendForgets appends the messages that tell a node to forget calls.
func (n *Node) appendForgets(out []netio.Message, node netip.Addr, items []direct.Item) []netio.Message {
	to, flags := netip.AddrPortFrom(node, rackaddr.PortDirect), rpcpacket.FlagSettled
	if node == rackaddr.Gatekeeper {
		to, flags = gatekeeperRPC, rpcpacket.FlagEnlist|rpcpacket.FlagHeld
	}
	most := (n.budget - rpcpacket.HeaderSize) / itemSize
	for len(items) > 0 {
		some := items[:min(len(items), most)]
		items = items[len(some):]
		m := rpcpacket.Message{Header: rpcpacket.Header{
			Type: rpcpacket.Oneway, Flags: flags.WithPolicy(PolicyRecover), Call: some[0].ID, CallerIncarnation: n.self.Incarnation, Floor: n.enlists.floor(),
		}}
		for _, i := range some {
			m.Payload = append(m.Payload, i.ID[:]...)
			m.Payload = binary.BigEndian.AppendUint64(m.Payload, i.Lane)
			m.Payload = binary.BigEndian.AppendUint64(m.Payload, i.Number)
		}
		out = append(out, netio.Message{Buf: m.Append(nil), Remote: to})
	}
	return out
}

// toForget takes a caller's word that it asks no more for calls. It is acknowledged when the
// ledger has it.
func (n *Node) toForget(from netip.Addr, m *rpcpacket.Message) {
	if len(m.Payload)%itemSize != 0 {
		n.malformed(from)
		return
	}
	ack := rpcpacket.Message{Header: rpcpacket.Header{Type: rpcpacket.Ack, Flags: rpcpacket.FlagSettled.WithPolicy(PolicyRecover), CallerIncarnation: n.self.Incarnation}}
	var items []direct.Item
	for b := m.Payload; len(b) > 0; b = b[itemSize:] {
		items = append(items, direct.Item{ID: rpcpacket.ID(b[:16]), Lane: binary.BigEndian.Uint64(b[16:]), Number: binary.BigEndian.Uint64(b[24:])})
	}
	l := n.ledger
	l.mu.Lock()
	w := l.table.Forget(from.As16(), m.CallerIncarnation, items, l.left())
	if w.Record != nil {
		l.add(w.Record)
	}
	if w.Full > 0 {
		l.crowded(from)
	}
	l.mu.Unlock()
	if w.Foreign > 0 {
		n.foreign(from)
	}
	for _, id := range w.Forgotten {
		ack.Payload = append(ack.Payload, id[:]...)
	}
	if len(ack.Payload) == 0 {
		return // it says so again
	}
	n.sendSettled([]netio.Message{{Buf: ack.Append(nil), Remote: netip.AddrPortFrom(from, rackaddr.PortDirect)}})
}

// forgotten takes a node's word that it has forgotten calls.
func (n *Node) forgotten(node netip.Addr, b []byte) {
	if len(b)%16 != 0 {
		n.malformed(node)
		return
	}
	var all []rpcpacket.ID
	for ; len(b) > 0; b = b[16:] {
		all = append(all, rpcpacket.ID(b[:16]))
	}
	l := n.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.forgets.to, node.As16())
	l.add(l.table.Acknowledged(node.As16(), all)...)
	if l.table.Owes() {
		l.forgets.hurry(n)
	}
}

// askForgetter asks whether a node is there that does not answer. What one that is gone for
// good had is forgotten with it.
func (n *Node) askForgetter(node [16]byte) {
	info, err := n.session.Who(n.base, netip.AddrFrom16(node))
	l := n.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	if info.Left || fault.CodeOf(err) == fault.NotFound {
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

// askCallers asks from time to time whether callers are there whose answers are kept. It
// returns when it has to be called next. The caller holds l.mu.
func (l *ledger) askCallers(now time.Duration) (next time.Duration, ok bool) {
	if !l.placed() || l.lost != nil || !l.table.Keeps() {
		return 0, false
	}
	if l.forgets.asked == 0 {
		l.forgets.asked = now
	}
	if now >= l.forgets.asked+callersEvery {
		l.forgets.asked = now
		go l.askAll(l.table.Callers())
	}
	return l.forgets.asked + callersEvery, true
}

// askAll asks whether callers' incarnations are there, one after the other.
func (l *ledger) askAll(callers map[[16]byte]uint32) {
	for _, caller := range slices.SortedFunc(maps.Keys(callers), compareNodes) {
		l.askCaller(caller, callers[caller])
	}
}

// crowded counts what a caller has no room for, and asks from time to time which of all callers are gone: what
// is kept of them gives room. The caller holds l.mu.
func (l *ledger) crowded(caller netip.Addr) {
	l.node.stats.blame.Add(caller, "quota")
	if now := l.node.now(); l.forgets.crowded == 0 || now >= l.forgets.crowded+callersEvery {
		l.forgets.crowded = now
		go l.askAll(l.table.Holders())
	}
}

func compareNodes(a, b [16]byte) int { return slices.Compare(a[:], b[:]) }

// askCaller asks whether a caller's incarnation is there.
func (l *ledger) askCaller(caller [16]byte, incarnation uint32) {
	info, err := l.node.session.Who(l.node.base, netip.AddrFrom16(caller))
	var r record.Record
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case info.Left || fault.CodeOf(err) == fault.NotFound:
		r = l.table.Bury(caller, incarnation, true)
	case err == nil && info.Incarnation > incarnation:
		r = l.table.Bury(caller, info.Incarnation-1, false)
	}
	if r != nil {
		l.add(r)
	}
}
