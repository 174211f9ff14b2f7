package rpc

import (
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/direct"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
	"github.com/bifrost-rack/bifrost/rpc/record"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// acknowledged takes an ACK of the Gatekeeper: nobody has got a call, or it knows of a settlement or has forgotten
// calls.
func (n *Node) acknowledged(r *reader, i int, m rpcpacket.Message) {
	switch {
	case m.Flags&rpcpacket.FlagReleased == 0:
		n.malformed(r.messages[i].Remote.Addr()) // the switch lets nobody else say so
	case m.Flags&rpcpacket.FlagUnbegun != 0:
		n.out.mu.Lock()
		defer n.out.mu.Unlock()
		n.out.core.Unbegun(m.Call)
	case m.Flags&rpcpacket.FlagSettled != 0:
		n.forgotten(rackaddr.Gatekeeper, m.Payload)
	default:
		n.out.mu.Lock()
		defer n.out.mu.Unlock()
		n.out.core.Settled(endpoint.Settlement{Session: m.Call.Session(), Floor: m.Floor})
	}
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
		to, flags = gatekeeperRPC, rpcpacket.FlagSettled|rpcpacket.FlagHeld
	}
	most := (n.budget - rpcpacket.HeaderSize) / itemSize
	for len(items) > 0 {
		some := items[:min(len(items), most)]
		items = items[len(some):]
		m := rpcpacket.Message{Header: rpcpacket.Header{
			Type: rpcpacket.Oneway, Flags: flags.WithPolicy(PolicyRecover), Call: some[0].ID, CallerIncarnation: n.self.Incarnation,
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
