package rpc

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"math"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/share"
	"github.com/bifrost-rack/bifrost/rpc/bulk"
	"github.com/bifrost-rack/bifrost/rpc/direct"
	"github.com/bifrost-rack/bifrost/rpc/internal/sent"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// large moves what exceeds a packet of calls and their answers (package bulk). The message has a port of its own, so that its first packet and its
// parts come in order, and to one reader. The switch judges first packets there as it judges calls.
//
//	caller: pending.payload ──first packet, parts──▶ callee: transfer ──whole──▶ accept, run
//	callee: Entry's payload, or the ledger's ──first packet, parts──▶ caller: transfer ──whole──▶ deliver
type large struct {
	self  *join.Identity
	ports *ports
	pulse *pulse
	stats *counters
	log   *slog.Logger
	uses  largeUses
	size  int    // bytes of a part that fit a datagram
	most  uint64 // bytes of a message

	last atomic.Int64 // when parts have been sent or awaited last, in node time

	mu    sync.Mutex // held while that of sharers is taken, and no other of the node's
	in    *bulk.Receiver
	takes map[netip.Addr]uint64 // how many bytes of parts nodes take unasked, by what they have said last
}

// largeUses is what the rest of the node does about large messages. None of it is called while the mutex is held.
type largeUses struct {
	first     func(packet netio.Message)                                               // takes the first packet of a large message
	payload   func(peer netip.Addr, h *bulk.Header) (body *sent.Payload, foreign bool) // is the message that a pull asks for; nil if it is not kept
	settle    func(peer netip.Addr, id rpcpacket.ID)                                   // forgets an answer that its caller has
	postpone  func(id rpcpacket.ID)                                                    // lets a call wait for the rest of its answer
	seekOwner func(peer netip.Addr)                                                    // asks whose a node is that sends much
	failed    func(error)                                                              // the endpoint has failed
}

// arrival is what a large message is part of. Its methods are not called while the mutex is held.
type arrival interface {
	whole(t *bulk.Transfer) // the message has come whole
	lost()                  // the rest does not come
}

// defaultWindow is how many bytes are on their way to a node at most, where its
// socket does not tell how large its buffer is.
const defaultWindow = 1 << 20

// senders is for how many largest messages a node has room. Four senders of one owner may have one at a time, and one of another owner:
// what is left then is for smaller ones.
const senders = 7

// partBatch is how many parts are handed to the network at a time.
const partBatch = 16

// open opens the endpoint for parts.
func (l *large) open(stack netio.Network, most uint64, ownerOf func(netip.Addr) share.Owner) error {
	conn, err := stack.ListenUDP(netip.AddrPortFrom(l.self.Address, rackaddr.PortBulk))
	if err != nil {
		return err
	}
	l.spinWhile(conn, true)
	l.spinWhile(l.ports.rpc, false)
	window := defaultWindow
	if b, ok := conn.(netio.Buffered); ok {
		window = min(b.ReceiveBuffer()/2, bulk.MaxPull)
	}
	l.ports.bulk, l.size, l.most = conn, l.ports.budget-bulk.HeaderSize, most
	l.takes = map[netip.Addr]uint64{}
	l.in = bulk.NewReceiver(bulk.Config{Window: window, Message: most, PerPeer: most, Total: senders * most, OwnerOf: ownerOf})
	return nil
}

// busyLarge is for how long after the last part was sent or awaited the next one, or a
// pull, may come any moment.
const busyLarge = 5 * time.Millisecond

// spinWhile makes an endpoint's reader sleep at once while large messages are on their way, since what comes next comes to their endpoint; or,
// if it is that one's, while none are.
func (l *large) spinWhile(conn netio.Conn, large bool) {
	if s, ok := conn.(netio.Spinning); ok {
		s.SpinWhile(func() bool { return (l.pulse.now()-time.Duration(l.last.Load()) <= busyLarge) == large })
	}
}

// stir notes that parts are being sent or awaited.
func (l *large) stir() { l.last.Store(int64(l.pulse.now())) }

// receivePart takes a part, and what it completes.
func (l *large) receivePart(key bulk.Key, h *bulk.Header, data []byte) {
	l.mu.Lock()
	now := l.pulse.now()
	l.last.Store(int64(now))
	t, v := l.in.Receive(now, key, h, data)
	asks := l.asks()
	l.mu.Unlock()
	l.ask(asks)
	switch v {
	case bulk.Whole:
		t.Tag.(arrival).whole(t)
	case bulk.Malformed:
		l.stats.countMalformed(key.Peer)
	case bulk.Known, bulk.Unrequested:
		l.stats.duplicates.Add(1)
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
func (l *large) ask(asks []bulk.Ask) {
	for _, a := range asks {
		h := a.Header(bulk.Pull)
		h.Offset = a.Takes
		l.sendBulk(a.Peer, &h, a.Ranges)
		if a.Answer {
			l.uses.postpone(a.Call) // the answer is on its way
		}
	}
	if len(asks) > 0 {
		l.pulse.wakeAt(l.pulse.now() + bulk.LeastWait)
	}
}

func (l *large) sendBulk(to netip.Addr, h *bulk.Header, ranges []bulk.Range) {
	m := netio.Message{Buf: h.Append(nil, ranges...), Remote: netip.AddrPortFrom(to, rackaddr.PortBulk)}
	_, _ = l.ports.bulk.WriteBatch([]netio.Message{m}) // a failure is a loss
}

// begin takes the first packet of a large message; tag is what it belongs to.
func (l *large) begin(from netip.Addr, m *rpcpacket.Message, answer bool, packetSize int, tag arrival) (*bulk.Transfer, bulk.Verdict) {
	o, err := m.Opening()
	if err != nil {
		return nil, bulk.Malformed
	}
	size := packetSize - bulk.HeaderSize
	l.stir()
	l.mu.Lock()
	key := bulk.Key{Peer: from, Call: m.Call, Answer: answer}
	pushed := uint32(0)
	if o.Pushed.Node == numberOf(l.self.Address) {
		pushed = max(o.Pushed.Parts, bulk.Pushes(0, max(1, size)))
	}
	t, v := l.in.Begin(l.pulse.now(), key, o.Total, o.First, size, pushed)
	if t != nil {
		t.Tag, t.Caller, t.Callee = tag, m.CallerIncarnation, m.CalleeIncarnation
		if !answer {
			t.Callee = l.self.Incarnation
		}
	}
	asks, crowded := l.asks(), l.in.Crowded()
	l.mu.Unlock()
	l.ask(asks)
	if crowded {
		l.uses.seekOwner(from)
	}
	if v == bulk.Taken {
		l.pulse.wakeAt(l.pulse.now() + bulk.FirstWait)
	}
	return t, v
}

// end gives a transfer up. What it was part of begins anew when its first packet
// is sent again.
func (l *large) end(key bulk.Key, why string) {
	l.mu.Lock()
	t := l.in.Find(key)
	if t != nil {
		l.in.End(t)
	}
	l.mu.Unlock()
	if t != nil {
		l.gaveUp(t, why)
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
func (l *large) gaveUp(t *bulk.Transfer, why string) {
	l.stats.full.Add(1)
	l.log.Debug("rpc: a large message has not come whole", "node", l.self.Name, "call", t.Call.String(), "bytes", t.Size(), "why", why)
	t.Tag.(arrival).lost()
}

// release gives back what a message counts for.
func (l *large) release(peer netip.Addr, size uint64) {
	if size == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.in.Release(peer, size)
}

// tick asks again for what has not come, and returns when it has to be called next.
func (l *large) tick(now time.Duration) (next time.Duration, ok bool) {
	l.mu.Lock()
	silent := l.in.Tick(now)
	asks := l.asks()
	next, ok = l.in.Due()
	l.mu.Unlock()
	for _, t := range silent {
		l.gaveUp(t, "its sender is silent")
	}
	for _, a := range asks {
		l.stats.resent.Add(uint64(len(a.Ranges)))
	}
	l.ask(asks)
	return next, ok
}

// servePull sends the parts that a receiver has asked for. All messages of a node are cut into parts of one size: another
// size is a mistake, or that of the node's last incarnation, whose message begins anew.
func (l *large) servePull(key bulk.Key, h *bulk.Header, ranges []bulk.Range) {
	body, foreign := l.uses.payload(key.Peer, h)
	if foreign {
		l.stats.countForeign(key.Peer)
	}
	defer body.Release()
	payload := body.Bytes()
	resized := int(h.Size) != l.size
	if resized && payload != nil {
		l.stats.countMalformed(key.Peer)
	}
	if resized || uint64(len(payload)) != h.Total {
		gone := *h
		gone.Kind, gone.Size = bulk.Gone, 0
		l.sendBulk(key.Peer, &gone, nil)
		return
	}
	l.hears(key.Peer, h.Offset)
	l.sendParts(key.Peer, *h, payload, bulk.Cut(nil, ranges, l.size))
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

// sendParts sends parts of a payload, which must not change any more. They leave from
// the port that they go to: the switch checks that of all that speaks of calls.
func (l *large) sendParts(to netip.Addr, h bulk.Header, payload []byte, cuts []bulk.Range) {
	remote := netip.AddrPortFrom(to, rackaddr.PortBulk)
	h.Kind = bulk.Part
	l.stir()
	var out []netio.Message
	for _, c := range cuts {
		h.Offset, h.Size = c.Offset, uint32(c.Length) //nolint:gosec // of a datagram
		m := netio.Message{Buf: h.Append(make([]byte, 0, bulk.HeaderSize)), Remote: remote}
		m.More[0] = payload[c.Offset : c.Offset+c.Length]
		if out = append(out, m); len(out) == partBatch {
			_, _ = l.ports.bulk.WriteBatch(out) // a failure is a loss: it is asked for again
			out = out[:0]
		}
	}
	l.stats.parts.Add(uint64(len(cuts)))
	if len(out) > 0 {
		_, _ = l.ports.bulk.WriteBatch(out)
	}
}

// send sends a large message's first packet, and behind it the parts that are pushed, as it says. It releases the payload.
func (l *large) send(first netio.Message, body *sent.Payload, answer bool) error {
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
	if _, err := l.ports.bulk.WriteBatch([]netio.Message{first}); err != nil || o.Pushed == (rpcpacket.Push{}) {
		return err
	}
	h := bulk.Header{
		Answer: answer, Call: m.Call, CallerIncarnation: m.CallerIncarnation, CalleeIncarnation: m.CalleeIncarnation,
		Total: o.Total, First: uint32(len(o.First)), //nolint:gosec // of a datagram
	}
	l.sendParts(first.Remote.Addr(), h, body.Bytes(), bulk.Cut(nil, []bulk.Range{bulk.Pushed(h.Total, uint64(h.First), l.size, o.Pushed.Parts)}, l.size))
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

// read takes parts and pulls off the endpoint until it is closed.
func (l *large) read(r *largeReader) {
	for {
		count, err := r.next(l.expected(r.rooms[:r.size]))
		if err != nil {
			r.free()
			l.uses.failed(err)
			return
		}
		for i := range count {
			l.receive(r, i)
		}
	}
}

// expected finds the rooms of the parts that come next, and returns how many it has found.
func (l *large) expected(rooms []bulk.Room) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.in.Rooms(rooms)
}

// receive takes one datagram.
func (l *large) receive(r *largeReader, i int) {
	if m := &r.messages[i]; len(m.Buf) >= 2 && binary.BigEndian.Uint16(m.Buf) == rpcpacket.Magic {
		l.uses.first(netio.Message{Buf: m.Buf[:m.Size()], Remote: m.Remote})
		return
	}
	h, ranges, data, err := r.parse(i)
	if err != nil {
		l.stats.countMalformed(r.messages[i].Remote.Addr())
		return
	}
	key := bulk.Key{Peer: r.messages[i].Remote.Addr(), Call: h.Call, Answer: h.Answer}
	switch h.Kind {
	case bulk.Part:
		l.receivePart(key, &h, data)
	case bulk.Pull:
		l.servePull(key, &h, ranges)
	case bulk.Done:
		l.uses.settle(key.Peer, h.Call)
	case bulk.Gone:
		l.end(key, "its sender does not have it any more")
	}
}

// taken acknowledges an answer that has come whole, and gives back what it counts for.
func (l *large) taken(t *bulk.Transfer) {
	h := t.Header(bulk.Done)
	l.sendBulk(t.Peer, &h, nil)
	l.release(t.Peer, t.Size())
}

// sendRecorded sends a recorded answer. Of one that exceeds a packet it sends the beginning, and
// the first parts if they are pushed; the record has the rest.
func (l *large) sendRecorded(to netip.AddrPort, answer []byte, pushed rpcpacket.Push) {
	if len(answer) <= l.ports.budget {
		_, _ = l.ports.rpc.WriteBatch([]netio.Message{{Buf: answer, Remote: to}}) // a failure is a loss: the caller asks again
		return
	}
	m, err := rpcpacket.Parse(answer)
	first, ok := rpcpacket.First(answer, l.ports.budget, pushed)
	if err == nil && ok { // always: see rpcpacket.First
		_ = l.send(netio.Message{Buf: first, Remote: to}, sent.New(nil, m.Payload), true) // likewise
	}
}

// sendAgain sends an answer again; of a large one the first packet. It releases the payload.
func (l *large) sendAgain(to netip.AddrPort, a direct.Arrival) {
	if a.Payload == nil {
		l.ports.send(to, a.Reply)
		return
	}
	reply := slices.Clone(a.Reply)
	a.Payload.Release()
	rpcpacket.SetUnpushed(reply)
	_ = l.send(netio.Message{Buf: reply, Remote: to}, nil, true) // a failure is a loss: the caller asks again
}

// transmit puts a call on the wire, whose address is that of the one message.
func (l *large) transmit(conn netio.Conn, to []netio.Message, out *outbound) error {
	to[0].Buf = out.datagram
	if out.payload != nil {
		return l.send(to[0], out.payload, false)
	}
	_, err := conn.WriteBatch(to)
	return err
}

// limit is how many bytes a message has at most, header included.
func (l *large) limit() int {
	return rpcpacket.HeaderSize + int(min(l.most, math.MaxInt-rpcpacket.HeaderSize)) //nolint:gosec // bounded
}

// tooLongIn is why a message that a codec has written is refused.
func (l *large) tooLongIn(what string, c *codec) string {
	return l.tooLong(what, uint64(c.size()-rpcpacket.HeaderSize)) //nolint:gosec // not negative
}

// learn charges what a node sends to its owner, of whom there is news.
func (l *large) learn(peer netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.in.Learn(peer)
}
