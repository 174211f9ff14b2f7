package rpc

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/bulk"
	"github.com/bifrost-rack/bifrost/rpc/internal/sent"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// large moves what exceeds a packet of calls and their answers (package bulk). The message has a port of its own, so that its first packet and its
// parts come in order, and to one reader. The switch judges first packets there as it judges calls.
//
//	caller: pending.payload ──first packet, parts──▶ callee: transfer ──whole──▶ accept, run
//	callee: Entry's payload, or the ledger's ──first packet, parts──▶ caller: transfer ──whole──▶ deliver
type large struct {
	conn netio.Conn // [node]:45103
	size int        // bytes of a part that fit a datagram
	most uint64     // bytes of a message

	last atomic.Int64 // when parts have been sent or awaited last, in node time

	mu    sync.Mutex // never held while another of the node's is taken
	in    *bulk.Receiver
	takes map[netip.Addr]uint64 // how many bytes of parts nodes take unasked, by what they have said last
}

// defaultWindow is how many bytes are on their way to a node at most, where its
// socket does not tell how large its buffer is.
const defaultWindow = 1 << 20

// senders is for how many largest messages a node has room. Four senders of one owner may have one at a time, and one of another owner:
// what is left then is for smaller ones.
const senders = 7

// partBatch is how many parts are handed to the network at a time.
const partBatch = 16

// openLarge opens the node's endpoint for parts.
func (n *Node) openLarge(most uint64) error {
	l := &n.large
	conn, err := n.stack.ListenUDP(netip.AddrPortFrom(n.self.Address, rackaddr.PortBulk))
	if err != nil {
		return err
	}
	n.spinWhileLarge(conn, true)
	n.spinWhileLarge(n.conn, false)
	window := defaultWindow
	if b, ok := conn.(netio.Buffered); ok {
		window = min(b.ReceiveBuffer()/2, bulk.MaxPull)
	}
	l.conn, l.size, l.most = conn, n.budget-bulk.HeaderSize, most
	l.takes = map[netip.Addr]uint64{}
	l.in = bulk.NewReceiver(bulk.Config{Window: window, Message: most, PerPeer: most, Total: senders * most, OwnerOf: n.ownerOf})
	return nil
}

// busyLarge is for how long after the last part was sent or awaited the next one, or a
// pull, may come any moment.
const busyLarge = 5 * time.Millisecond

// spinWhileLarge makes an endpoint's reader sleep at once while large messages are on their way, since what comes next comes to their endpoint; or,
// if it is that one's, while none are.
func (n *Node) spinWhileLarge(conn netio.Conn, large bool) {
	if s, ok := conn.(netio.Spinning); ok {
		s.SpinWhile(func() bool { return (n.now()-time.Duration(n.large.last.Load()) <= busyLarge) == large })
	}
}

// stir notes that parts are being sent or awaited.
func (n *Node) stir() { n.large.last.Store(int64(n.now())) }

// receivePart takes a part, and what it completes.
func (n *Node) receivePart(key bulk.Key, h *bulk.Header, data []byte) {
	l := &n.large
	l.mu.Lock()
	now := n.now()
	l.last.Store(int64(now))
	t, v := l.in.Receive(now, key, h, data)
	asks := l.asks()
	l.mu.Unlock()
	n.ask(asks)
	switch v {
	case bulk.Whole:
		n.whole(t)
	case bulk.Malformed:
		n.malformed(key.Peer)
	case bulk.Known, bulk.Unrequested:
		n.stats.duplicates.Add(1)
	default: // taken: the rest is still to come
	}
}

// asks takes the pulls that are to be sent. The caller holds the lock.
func (l *large) asks() []bulk.Ask {
	asks := l.in.Asks
	l.in.Asks = nil
	return asks
}

// ask sends pulls, and sees to it that they are repeated.
func (n *Node) ask(asks []bulk.Ask) {
	for _, a := range asks {
		h := a.Header(bulk.Pull)
		h.Offset = a.Takes
		n.sendBulk(a.Peer, &h, a.Ranges)
		if a.Answer {
			n.postpone(a.Call) // the answer is on its way
		}
	}
	if len(asks) > 0 {
		n.wakeAt(n.now() + bulk.LeastWait)
	}
}

func (n *Node) sendBulk(to netip.Addr, h *bulk.Header, ranges []bulk.Range) {
	m := netio.Message{Buf: h.Append(nil, ranges...), Remote: netip.AddrPortFrom(to, rackaddr.PortBulk)}
	_, _ = n.large.conn.WriteBatch([]netio.Message{m}) // a failure is a loss
}

// beginLarge takes the first packet of a large message; tag is what it belongs to.
func (n *Node) beginLarge(from netip.Addr, m *rpcpacket.Message, answer bool, packetSize int, tag any) (*bulk.Transfer, bulk.Verdict) {
	o, err := m.Opening()
	if err != nil {
		return nil, bulk.Malformed
	}
	l := &n.large
	size := packetSize - bulk.HeaderSize
	n.stir()
	l.mu.Lock()
	key := bulk.Key{Peer: from, Call: m.Call, Answer: answer}
	pushed := uint32(0)
	if o.Pushed.Node == numberOf(n.self.Address) {
		pushed = max(o.Pushed.Parts, bulk.Pushes(0, max(1, size)))
	}
	t, v := l.in.Begin(n.now(), key, o.Total, o.First, size, pushed)
	if t != nil {
		t.Tag, t.Caller, t.Callee = tag, m.CallerIncarnation, m.CalleeIncarnation
		if !answer {
			t.Callee = n.self.Incarnation
		}
	}
	asks, crowded := l.asks(), l.in.Crowded()
	l.mu.Unlock()
	n.ask(asks)
	if crowded {
		n.seekOwner(from)
	}
	if v == bulk.Taken {
		n.wakeAt(n.now() + bulk.FirstWait)
	}
	return t, v
}

// endLarge gives a transfer up. What it was part of begins anew when its first packet
// is sent again.
func (n *Node) endLarge(key bulk.Key, why string) {
	l := &n.large
	l.mu.Lock()
	t := l.in.Find(key)
	if t != nil {
		l.in.End(t)
	}
	l.mu.Unlock()
	if t != nil {
		n.gaveUp(t, why)
	}
}

// cancel ends a transfer, if there is one, of a call that nobody waits for, and reports whether there was one.
func (l *large) cancel(key bulk.Key) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.in.Find(key)
	if t != nil {
		l.in.End(t)
	}
	return t != nil
}

// gaveUp forgets the call that a transfer was of.
func (n *Node) gaveUp(t *bulk.Transfer, why string) {
	n.stats.full.Add(1)
	n.log.Debug("rpc: a large message has not come whole", "node", n.self.Name, "call", t.Call.String(), "bytes", t.Size(), "why", why)
	if e, ok := t.Tag.(*execution); ok {
		e.export.drop(e)
	}
}

// releaseLarge gives back what a message counts for.
func (n *Node) releaseLarge(peer netip.Addr, size uint64) {
	if size == 0 {
		return
	}
	n.large.mu.Lock()
	defer n.large.mu.Unlock()
	n.large.in.Release(peer, size)
}

// whole goes on with a message that has come whole.
func (n *Node) whole(t *bulk.Transfer) {
	switch tag := t.Tag.(type) {
	case *execution:
		if run := tag.export.wholeCall(tag, t); run != nil {
			go run.export.pool.work(run)
		}
	case *answerTo:
		h := t.Header(bulk.Done)
		n.sendBulk(t.Peer, &h, nil)
		n.releaseLarge(t.Peer, t.Size())
		m := tag.first
		m.Flags &^= rpcpacket.FlagMore
		m.Payload = t.Body()
		if n.completeWith(nil, m, tag.from) {
			n.interrupt() // whoever waits may be reading
		}
	}
}

// answerTo is a large answer's first packet.
type answerTo struct {
	first rpcpacket.Message
	from  netip.Addr
}

// tickLarge asks again for what has not come, and returns when it has to be called next.
func (n *Node) tickLarge(now time.Duration) (next time.Duration, ok bool) {
	l := &n.large
	l.mu.Lock()
	silent := l.in.Tick(now)
	asks := l.asks()
	next, ok = l.in.Due()
	l.mu.Unlock()
	for _, t := range silent {
		n.gaveUp(t, "its sender is silent")
	}
	for _, a := range asks {
		n.stats.resent.Add(uint64(len(a.Ranges)))
	}
	n.ask(asks)
	return next, ok
}

// servePull sends the parts that a receiver has asked for. All messages of a node are cut into parts of one size: another
// size is a mistake, or that of the node's last incarnation, whose message begins anew.
func (n *Node) servePull(key bulk.Key, h *bulk.Header, ranges []bulk.Range) {
	var body *sent.Payload
	if h.Answer {
		body = n.answerOf(key.Peer, h)
	} else if h.CallerIncarnation == n.self.Incarnation {
		var foreign bool
		if body, foreign = n.out.payload(key.Peer, h, n.now()); foreign {
			n.foreign(key.Peer)
		}
	}
	defer body.Release()
	payload := body.Bytes()
	resized := int(h.Size) != n.large.size
	if resized && payload != nil {
		n.malformed(key.Peer)
	}
	if resized || uint64(len(payload)) != h.Total {
		gone := *h
		gone.Kind, gone.Size = bulk.Gone, 0
		n.sendBulk(key.Peer, &gone, nil)
		return
	}
	n.large.hears(key.Peer, h.Offset)
	n.sendParts(key.Peer, *h, payload, bulk.Cut(nil, ranges, n.large.size))
}

// mostHeard is of how many nodes it is known how much they take.
const mostHeard = 1024

// hears notes how many bytes of parts a node takes unasked.
func (l *large) hears(node netip.Addr, takes uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, known := l.takes[node]; !known && len(l.takes) == mostHeard {
		clear(l.takes)
	}
	l.takes[node] = takes
}

// pushTo says that the first parts of a message go to a node, which may not have asked for them.
func (l *large) pushTo(node netip.Addr) rpcpacket.Push {
	l.mu.Lock()
	defer l.mu.Unlock()
	return rpcpacket.Push{Node: numberOf(node), Parts: bulk.Pushes(l.takes[node], l.size)}
}

// numberOf is a node's number, in the low half of its address.
func numberOf(node netip.Addr) uint32 {
	a := node.As16()
	return binary.BigEndian.Uint32(a[12:])
}

// answerOf is the payload of the answer that a pull asks for, nil if it is not kept.
func (n *Node) answerOf(peer netip.Addr, h *bulk.Header) *sent.Payload {
	if h.CalleeIncarnation == n.self.Incarnation {
		if body := n.in.payload(peer, h.Call); body != nil {
			return body
		}
	}
	return n.ledger.payload(peer, h.Call)
}

// sendParts sends parts of a payload, which must not change any more. They leave from
// the port that they go to: the switch checks that of all that speaks of calls.
func (n *Node) sendParts(to netip.Addr, h bulk.Header, payload []byte, cuts []bulk.Range) {
	remote := netip.AddrPortFrom(to, rackaddr.PortBulk)
	h.Kind = bulk.Part
	n.stir()
	var out []netio.Message
	for _, c := range cuts {
		h.Offset, h.Size = c.Offset, uint32(c.Length) //nolint:gosec // of a datagram
		m := netio.Message{Buf: h.Append(make([]byte, 0, bulk.HeaderSize)), Remote: remote}
		m.More[0] = payload[c.Offset : c.Offset+c.Length]
		if out = append(out, m); len(out) == partBatch {
			_, _ = n.large.conn.WriteBatch(out) // a failure is a loss: it is asked for again
			out = out[:0]
		}
	}
	n.stats.parts.Add(uint64(len(cuts)))
	if len(out) > 0 {
		_, _ = n.large.conn.WriteBatch(out)
	}
}

// sendLarge sends a large message's first packet, and behind it the parts that are pushed, as it says. It releases the payload.
func (n *Node) sendLarge(first netio.Message, body *sent.Payload, answer bool) error {
	defer body.Release()
	m, err := rpcpacket.Parse(first.Buf)
	if err != nil {
		return err
	}
	first.Remote = netip.AddrPortFrom(first.Remote.Addr(), rackaddr.PortBulk)
	o, err := m.Opening()
	if err != nil {
		return err
	}
	if _, err := n.large.conn.WriteBatch([]netio.Message{first}); err != nil || o.Pushed == (rpcpacket.Push{}) {
		return err
	}
	h := bulk.Header{
		Answer: answer, Call: m.Call, CallerIncarnation: m.CallerIncarnation, CalleeIncarnation: m.CalleeIncarnation,
		Total: o.Total, First: uint32(len(o.First)), //nolint:gosec // of a datagram
	}
	n.sendParts(first.Remote.Addr(), h, body.Bytes(), bulk.Cut(nil, []bulk.Range{bulk.Pushed(h.Total, uint64(h.First), n.large.size, o.Pushed.Parts)}, n.large.size))
	return nil
}

// tooLong is why a message is refused.
func (l *large) tooLong(what string, size uint64) string {
	return fmt.Sprintf("%s of %d bytes, at most %d are taken: pass it by reference, or raise rpc.WithMaxMessage", what, size, l.most)
}

// largeReader takes datagrams off a node's endpoint for large messages. Parts come in the order
// in which they were asked for, so each is received where it belongs: behind its header,
// which lies elsewhere, into the message. What comes instead of it is moved away, and what is not
// expected lies together.
//
//	datagram:  header │ part              │ (nothing)
//	lies in:   heads  │ room of a message │ rest
type largeReader struct {
	conn     netio.Conn
	size     int // how many buffers it has; see reader
	messages [readBatch]netio.Message
	rooms    [readBatch]bulk.Room
	heads    [readBatch][bulk.HeaderSize]byte
	rest     [readBatch]*datagram
}

// next blocks for datagrams and returns how many there are; the first expected of the
// buffers have rooms.
func (r *largeReader) next(expected int) (count int, err error) {
	for i := range r.size {
		if r.rest[i] == nil {
			r.rest[i] = newDatagram()
		}
		m := &r.messages[i]
		m.Buf, m.More = r.rest[i][:bulk.HeaderSize], [netio.MaxMore][]byte{r.rest[i][bulk.HeaderSize:]}
		if i < expected {
			m.Buf, m.More = r.heads[i][:], [netio.MaxMore][]byte{r.rooms[i].Bytes, r.rest[i][:]}
		}
	}
	count, err = r.conn.ReadBatch(r.messages[:r.size])
	for i := range min(count, expected) {
		r.clear(i)
	}
	if count == r.size {
		r.size = min(2*r.size, readBatch)
	}
	return count, err
}

// clear moves what is not the part that was expected out of its room, before others are
// put in their places.
func (r *largeReader) clear(i int) {
	m, room := &r.messages[i], &r.rooms[i]
	h, _, data, err := r.parse(i)
	key := bulk.Key{Peer: m.Remote.Addr(), Call: h.Call, Answer: h.Answer}
	if err == nil && h.Kind == bulk.Part && key == room.Key && h.Offset == room.Offset && len(data) == len(room.Bytes) {
		return
	}
	b := m.Append(nil)
	n := min(len(b), bulk.HeaderSize)
	m.Buf, m.More = b[:n], [netio.MaxMore][]byte{b[n:]}
}

// parse takes the i-th datagram apart.
func (r *largeReader) parse(i int) (bulk.Header, []bulk.Range, []byte, error) {
	m := &r.messages[i]
	body := m.More[0]
	if len(m.More[1]) > 0 { // it is longer than the room
		body = append(append(make([]byte, 0, m.Size()), m.More[0]...), m.More[1]...)
	}
	return bulk.Parse(m.Buf, body)
}

func (r *largeReader) free() {
	for i, d := range r.rest {
		if d != nil {
			freeDatagram(d)
			r.rest[i] = nil
		}
	}
}

// readLarge takes parts and pulls off the endpoint until it is closed.
func (n *Node) readLarge(r *largeReader) {
	defer n.readers.Done()
	for {
		count, err := r.next(n.large.expected(r.rooms[:r.size]))
		if err != nil {
			r.free()
			n.readFailed(err)
			return
		}
		for i := range count {
			n.receiveBulk(r, i)
		}
	}
}

// expected finds the rooms of the parts that come next, and returns how many it has found.
func (l *large) expected(rooms []bulk.Room) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.in.Rooms(rooms)
}

// receiveBulk takes one datagram.
func (n *Node) receiveBulk(r *largeReader, i int) {
	if m := &r.messages[i]; len(m.Buf) >= 2 && binary.BigEndian.Uint16(m.Buf) == rpcpacket.Magic {
		n.receiveFirst(netio.Message{Buf: m.Buf[:m.Size()], Remote: m.Remote})
		return
	}
	h, ranges, data, err := r.parse(i)
	if err != nil {
		n.malformed(r.messages[i].Remote.Addr())
		return
	}
	key := bulk.Key{Peer: r.messages[i].Remote.Addr(), Call: h.Call, Answer: h.Answer}
	switch h.Kind {
	case bulk.Part:
		n.receivePart(key, &h, data)
	case bulk.Pull:
		n.servePull(key, &h, ranges)
	case bulk.Done:
		n.in.settle(key.Peer, h.Call)
	case bulk.Gone:
		n.endLarge(key, "its sender does not have it any more")
	}
}

// receiveFirst takes the first packet of a large message, which no one but the sender has seen.
func (n *Node) receiveFirst(packet netio.Message) {
	m, err := rpcpacket.Parse(packet.Buf)
	if err != nil || m.Flags&rpcpacket.FlagMore == 0 {
		n.malformed(packet.Remote.Addr())
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
			n.interrupt() // whoever waits may be reading
		}
	default:
		n.malformed(packet.Remote.Addr())
	}
}
